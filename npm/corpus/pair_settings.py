"""Which sentences, or pairs and triplets of them, are trained on."""

from __future__ import annotations

from dataclasses import dataclass, field

from npm.errors import SettingError, check_range


@dataclass(kw_only=True, slots=True)
class SentenceDataSettings:
    """Sentences to be told apart: from files of sentences, pairs or triplets, or split out of the corpus."""

    files: list[str] = field(default_factory=list)
    """Files (.jsonl, .jsonl.zst, .csv, .tsv, .parquet, or .txt with a sentence a line); empty: the corpus's own."""
    anchor_column: str = "text"
    """Column with a sentence, a question or a premise; .txt files are this column."""
    positive_column: str = ""
    """Column with a sentence of the same meaning; empty: the same sentence again, under another dropout."""
    negative_column: str = ""
    """Column with a sentence that is near but of other meaning (hard negative); empty: none."""
    label_column: str = ""
    """Column with entailment, neutral or contradiction of the positive column, or 0, 1, 2; empty: none. Each anchor
    with an entailment and a contradiction then becomes one triplet, of the first of each; the rest is left out."""
    score_column: str = ""
    """Column with a score of similarity; empty: none. Pairs below `least_score` are left out."""
    least_score: float = 4.0
    """Pairs with this score or more are positives; in the unit of `score_column`."""
    max_sentence_tokens: int = 32
    """Tokens of a sentence as the encoder sees it, its special tokens included; longer ones are cut."""
    least_sentence_words: int = 5
    """Sentences of the corpus with fewer words are left out; files keep all of theirs."""
    max_sentences: int | None = None
    """Sentences, pairs or triplets used at most, from the beginning; null uses all."""
    pairs_per_device_batch: int = 64
    """Sentences, pairs or triplets that one device works on at once; they are each other's negatives."""

    def __post_init__(self) -> None:
        lowest = {"max_sentence_tokens": 4, "least_sentence_words": 1, "pairs_per_device_batch": 2}
        for name, low in lowest.items():
            value = getattr(self, name)
            check_range(value >= low, f"sentences.{name}", expected=f"at least {low}", got=value)
        most = self.max_sentences
        check_range(most is None or most >= 1, "sentences.max_sentences", expected="at least 1, or null", got=most)
        least = self.least_score
        check_range(least >= 0, "sentences.least_score", expected="at least 0", got=least)
        check_range(bool(self.anchor_column), "sentences.anchor_column", expected="the name of a column", got="nothing")
        for name in ("negative_column", "label_column", "score_column"):
            if getattr(self, name) and not self.positive_column:
                self._refuse(name, "a column of positives beside it", "name it with sentences.positive_column=")
        if self.label_column and self.negative_column:
            self._refuse("label_column", "labels or a column of hard negatives, not both", "leave one of the two empty")

    def _refuse(self, name: str, expected: str, fix: str) -> None:
        raise SettingError(
            "the columns of sentences do not fit together",
            expected=expected,
            got=f"{name}={getattr(self, name)}",
            where=f"sentences.{name}",
            fix=fix,
        )

    def check_files(self) -> None:
        """Raise SettingError if there are columns but no files: the corpus has sentences only."""
        if self.positive_column and not self.files:
            self._refuse("positive_column", "files to read pairs from", "give sentences.files=, or leave it empty")

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns that hold text, anchor first."""
        return tuple(name for name in (self.anchor_column, self.positive_column, self.negative_column) if name)

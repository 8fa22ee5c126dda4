"""Questions, their answers and the passage that contains them, as rows of JSON lines, Parquet or SQuAD's own JSON.

    {"question": "Who governs Iceland?", "answers": ["the Althing"], "context": "…", "title": "Iceland",
     "negatives": ["a passage without the answer", …], "rivals": ["Akureyri", …], "wrong_title": "…",
     "wrong_context": "…"}

A question has one `<mask>`, or none: then the mask is read behind it. `answers` may also be SQuAD's `{"text": […]}`.
`negatives` are passages of the same document, `rivals` phrases of the context that could be taken for an answer, and
`wrong_context` a passage of another document that looks like the right one. All but question, answers and context may
be missing, other fields are ignored. `scripts/make_questions.py` makes such rows.

Shapes: r rows, x texts of all rows, T tokens of all texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

import numpy as np
from pydantic import Field, PositiveInt

from npm.core.errors import CorpusError, SettingError, named
from npm.core.settings import INNER, Fraction, Settings
from npm.core.types import MASK_TEXT
from npm.corpus.readers import Row, read_records, unusable_value
from npm.corpus.sources import find_sources
from npm.corpus.text import with_mask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

EXAMPLE = f'{{"question": "Iceland is governed from {MASK_TEXT}.", "answers": ["Reykjavík"], "context": "…"}}'
ROWS_AT_ONCE = 1024


class SupervisionSettings(Settings):
    """Settings of `questions` in training."""

    questions_per_device_batch: PositiveInt = 24
    """Questions that one device works on at once; their passages are each other's negatives."""
    max_block_tokens: Annotated[int, Field(ge=8)] = 128
    """Tokens of a passage, title not counted; of a longer one a part with an answer in it is kept, drawn at random."""
    max_question_tokens: Annotated[int, Field(ge=8)] = 120
    """Tokens of a question, mask not counted; of a longer one those nearest to the mask are kept."""
    negative_fraction: Fraction = 0.5
    """Fraction of the questions that are read with a passage without an answer: one of their `negatives`, their wrong
    context, or a similar passage of another question. `objective.reader_weight` reads it instead of the right one,
    `objective.span_supervision_weight` in addition, among the passages of the batch."""
    joint_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the questions that `objective.span_supervision_weight` reads jointly with passages, which takes half
    of its time; the others are compared with stored vectors only."""
    max_answer_words: Annotated[PositiveInt, INNER] = 12
    """Longer answers are left out, and so are questions that have no other."""
    max_questions_per_context: Annotated[PositiveInt | None, INNER] = None
    """Questions taken from one passage, the first ones of a file; null: all."""
    file_weights: list[float] = field(default_factory=list)
    """Weights by which files of `questions` are drawn, as [0.65,0.35]; empty: each row equally often."""
    step_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Fraction of the micro-steps that show questions where other objectives, too, have a weight."""

    def check(self) -> None:
        """Raise SettingError for a weight that is not positive."""
        if not all(weight > 0 for weight in self.file_weights):
            raise SettingError(f"supervision.file_weights must be above 0, got {self.file_weights}")


@dataclass(frozen=True, slots=True)
class Question:
    """One row as token ids, without special tokens."""

    before: np.ndarray  # [.] of the question before its mask
    after: np.ndarray  # [.] after it
    title: np.ndarray  # [.] with a full stop, as before every block
    block: np.ndarray  # [.]
    wrong: tuple[np.ndarray, np.ndarray]  # title with a full stop, and block; [0] each if there is none
    negatives: list[np.ndarray]
    rivals: list[np.ndarray]
    answers: list[np.ndarray]  # one or more, each of which occurs in the block

    @property
    def without_answer(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Titles and texts of the passages without an answer: the negatives, and last the wrong block, if any."""
        return [(self.title, each) for each in self.negatives] + [self.wrong] * bool(len(self.wrong[1]))


@dataclass(frozen=True)
class QuestionTable:
    """All rows, tokenized. The texts of a row are those of `Question`, in its order."""

    token_ids: np.ndarray  # u16 or i32 [T]
    text_offsets: np.ndarray  # i64 [x + 1]; text t is [text_offsets[t], text_offsets[t + 1])
    row_offsets: np.ndarray  # i64 [r + 1], the texts of a row
    list_counts: np.ndarray  # i32 [r, 2], negatives and rivals
    files: np.ndarray  # i64 [r], the file of each row
    probabilities: np.ndarray | None  # f64 [r], of being drawn; None: all alike
    skipped: dict[str, int]
    """Numbers of rows that cannot be used, by reason."""

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    @cached_property
    def token_weights(self) -> np.ndarray:
        """The inverse frequency of every token id, log T / (1 + count), f64 [largest id + 1]."""
        return np.log(len(self.token_ids) / (1 + np.bincount(self.token_ids)))

    def __getitem__(self, row: int) -> Question:
        first, stop = self.row_offsets[row : row + 2].tolist()
        bounds = self.text_offsets[first : stop + 1].tolist()
        texts: list[np.ndarray] = [self.token_ids[start:end].astype(np.int64) for start, end in pairwise(bounds)]
        before, after, title, block, wrong_title, wrong_block, *lists = texts
        negatives, rivals = np.cumsum(self.list_counts[row]).tolist()
        wrong = wrong_title, wrong_block
        return Question(before, after, title, block, wrong, lists[:negatives], lists[negatives:rivals], lists[rivals:])


def read_questions(files: Sequence[str], skipped: Counter[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Checked rows in the form of this module with the index of their file.

    Rows with several blanks or without a context, and those none of whose answers occurs in the context, are left out
    and counted in `skipped` by reason. Raises CorpusError with file and line for a row in another form.
    """
    for number, source in enumerate(find_sources(files)):
        for line, record in read_records(source):
            for row in _flat_rows(record):
                where = f"{source.path}:{line}"
                row = _checked_row(row, where)
                reason = _unusable(row)
                if reason is None:
                    yield number, row
                elif skipped is not None:
                    skipped[reason] += 1


def _flat_rows(record: Row) -> Iterator[dict[str, Any]]:
    """A row as it is; of SQuAD's own JSON, whole or an article of it, all questions with paragraph and title."""
    for article in _listed(record, "data"):
        for paragraph in _listed(article, "paragraphs"):
            for asked in _listed(paragraph, "qas"):
                row = {"title": article.get("title"), "context": paragraph.get("context"), **asked}
                answers = row.get("answers")
                if isinstance(answers, dict):
                    row["answers"] = answers.get("text")
                elif isinstance(answers, list) and answers and all(isinstance(each, dict) for each in answers):
                    row["answers"] = [each.get("text") for each in answers]
                yield row


def _listed(row: Row, name: str) -> list[Row]:
    """The objects in a list of SQuAD's JSON, or the row itself where `name` is another field or none."""
    value = row.get(name)
    return value if isinstance(value, list) and value and all(isinstance(each, dict) for each in value) else [row]


def _checked_row(row: dict[str, Any], where: str) -> dict[str, Any]:
    question, answers = row.get("question"), row.get("answers")
    if not isinstance(question, str) or not question.strip() or question.count(MASK_TEXT) > 1:
        raise unusable_value(where, "question", f"a text with at most one {MASK_TEXT}", question)
    if not are_texts(answers) and answers != []:  # SQuAD 2 has questions without an answer
        raise unusable_value(where, "answers", "a list of texts", answers)
    for name in ("title", "context", "wrong_title", "wrong_context"):
        row[name] = row.get(name) or ""
        if not isinstance(row[name], str):
            raise unusable_value(where, name, "a text", row[name])
    for name in ("negatives", "rivals"):
        row[name] = row.get(name) or []
        if row[name] and not are_texts(row[name]):
            raise unusable_value(where, name, "a list of texts", row[name])
    return row


def _unusable(row: Mapping[str, Any]) -> str | None:
    """Why a row cannot be used; None if it can."""
    if with_mask(row["question"]).count(MASK_TEXT) > 1:
        return "with several blanks"
    if not row["context"].strip():
        return "without a context"
    context = row["context"].casefold()
    if row["answers"] and not any(each.casefold() in context for each in row["answers"]):
        return "whose context has no answer"
    return None


def are_texts(value: object) -> TypeGuard[list[str]]:
    """Return True for a list of texts, one at least and none of them blank."""
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) and text.strip() for text in value)


def question_table(
    files: Sequence[str], tokenizer: PreTrainedTokenizerFast, settings: SupervisionSettings, *, title_tokens: int
) -> QuestionTable:
    """Tokenize all rows of `files`. Raises CorpusError for a wrong row, and where no row can be used."""
    tokenize = _Tokenize(tokenizer, settings, title_tokens)
    id_type = np.uint16 if len(tokenizer) <= 1 << 16 else np.int32
    ids: list[np.ndarray] = []
    sizes: list[int] = []  # tokens of each text
    text_counts, list_counts, file_numbers = [], [], []  # of each row
    skipped: Counter[str] = Counter()
    rows = _chosen_rows(files, settings, skipped)
    while batch := list(islice(rows, ROWS_AT_ONCE)):
        for (number, _), question in zip(batch, tokenize([row for _, row in batch]), strict=True):
            if not question.answers:
                skipped["whose answers are no tokens of their context"] += 1
                continue
            texts = [question.before, question.after, question.title, question.block, *question.wrong]
            texts += question.negatives + question.rivals + question.answers
            ids.append(np.concatenate(texts).astype(id_type))  # [tokens of the row]
            sizes += map(len, texts)
            text_counts.append(len(texts))
            list_counts.append((len(question.negatives), len(question.rivals)))
            file_numbers.append(number)
    if not ids:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in skipped.items())
        raise CorpusError(
            f"{named(files)}: no question has an answer whose tokens occur in its context ({reasons or 'no rows'});"
            f" expected rows such as {EXAMPLE}"
        )
    return QuestionTable(
        token_ids=np.concatenate(ids),
        text_offsets=np.append(0, np.cumsum(sizes)),
        row_offsets=np.append(0, np.cumsum(text_counts)),
        list_counts=np.array(list_counts, dtype=np.int32),
        files=np.array(file_numbers),
        probabilities=_probabilities(np.array(file_numbers), settings.file_weights),
        skipped=dict(skipped),
    )


def _chosen_rows(
    files: Sequence[str], settings: SupervisionSettings, skipped: Counter[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with an answer of few enough words, as many of each context as the settings allow."""
    per_context: Counter[tuple[int, int]] = Counter()
    for number, row in read_questions(files, skipped):
        answers = [cleaned_answer(each) for each in row["answers"]]
        row["answers"] = [each for each in answers if len(each.split()) <= settings.max_answer_words]
        key = number, hash(row["context"])
        if not row["answers"]:
            skipped["without a short answer"] += 1
        elif settings.max_questions_per_context and per_context[key] >= settings.max_questions_per_context:
            skipped["beyond those of their context"] += 1
        else:
            per_context[key] += 1
            yield number, row


def cleaned_answer(answer: str) -> str:
    """An answer without the quotation marks around it and the punctuation of the sentence that it ends.

    >>> cleaned_answer('"interspersed repeats."'), cleaned_answer("the U.S.")
    ('interspersed repeats', 'the U.S.')
    """
    bare = answer.strip().strip("\"“”'‘’").strip()
    cut = bare.rstrip(".,;:").rstrip()
    return cut if cut and "." not in cut else bare or answer.strip()


def _probabilities(files: np.ndarray, weights: Sequence[float]) -> np.ndarray | None:
    """The probability f64 [r] of each row from the files i64 [r] that the rows are of and the files' weights."""
    if not weights:
        return None
    counts = np.bincount(files, minlength=len(weights))  # i64 [files]
    if len(counts) != len(weights) or not counts.all():
        raise SettingError(
            f"supervision.file_weights must have a weight for each of {len(counts)} files with questions,"
            f" got {list(weights)}"
        )
    weight_of_row = (np.array(weights) / counts)[files]  # f64 [r]
    return np.asarray(weight_of_row / weight_of_row.sum())


class _Tokenize:
    """Rows as `Question`s, of which those that cannot be used have no answers."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, settings: SupervisionSettings, title_tokens: int) -> None:
        self._tokenizer, self._settings, self._title_tokens = tokenizer, settings, title_tokens
        mask = tokenizer.backend_tokenizer.get_added_tokens_decoder().get(tokenizer.mask_token_id)
        self._strips = (mask.lstrip, mask.rstrip) if mask is not None else (False, False)
        self._full_stop = self._ids(["."])[0]  # [.]
        self._rng = np.random.default_rng(0)  # for the same parts in every run

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> list[Question]:
        texts: list[list[str]] = []
        list_counts = []
        for row in rows:
            before, after = with_mask(row["question"]).split(MASK_TEXT)
            before, after = before.rstrip() if self._strips[0] else before, after.lstrip() if self._strips[1] else after
            negatives, rivals = row["negatives"], _forms(row["rivals"])
            list_counts.append((len(negatives), len(rivals)))
            given = row["title"], row["context"], row["wrong_title"], row["wrong_context"]
            texts.append([before, after, *given, *negatives, *rivals, *_forms(row["answers"])])
        ids = iter(self._ids(list(chain.from_iterable(texts))))
        return [
            self._question(list(islice(ids, len(own))), *counts) for own, counts in zip(texts, list_counts, strict=True)
        ]

    def _ids(self, texts: list[str]) -> list[np.ndarray]:
        encoded = self._tokenizer(
            texts, add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
        )["input_ids"]
        return [np.array(each, dtype=np.int64) for each in encoded]  # [.] each

    def _question(self, texts: list[np.ndarray], negative_count: int, rival_count: int) -> Question:
        before, after, title, block, wrong_title, wrong_block, *lists = texts
        rivals, answers = (
            list({tuple(phrase.tolist()): phrase for phrase in phrases if len(phrase)}.values())
            for phrases in (lists[negative_count:][:rival_count], lists[negative_count + rival_count :])
        )
        half, most = self._settings.max_question_tokens // 2, self._settings.max_block_tokens
        if len(block) > most:
            block = self._part(block, answers)  # [most]
        without = [
            passage[:most]
            if len(passage) and all(first_occurrence(answer, passage[:most]) is None for answer in answers)
            else passage[:0]
            for passage in (wrong_block, *lists[:negative_count])
        ]
        return Question(
            before=before[-half:],
            after=after[:half],
            title=self._title(title),
            block=block,
            wrong=(self._title(wrong_title) if len(without[0]) else wrong_title[:0], without[0]),
            negatives=[passage for passage in without[1:] if len(passage)],
            rivals=[phrase for phrase in rivals if first_occurrence(phrase, block) is not None],
            answers=[phrase for phrase in answers if first_occurrence(phrase, block) is not None],
        )

    def _part(self, block: np.ndarray, answers: Sequence[np.ndarray]) -> np.ndarray:
        """`max_block_tokens` of a block i64 [.], around one of its answers at random."""
        most = self._settings.max_block_tokens
        found = [(place, len(each)) for each in answers if (place := first_occurrence(each, block)) is not None]
        if not found:
            return block[:most]
        place, size = found[self._rng.integers(len(found))]
        first, last = max(0, place + size - most), min(place, len(block) - most)
        start = int(self._rng.integers(first, max(first, last) + 1))
        return block[start : start + most]

    def _title(self, ids: np.ndarray) -> np.ndarray:
        """The first tokens of a title, and a full stop; nothing where titles are not read."""
        kept = ids[: self._title_tokens]  # [.]
        return np.concatenate([kept, self._full_stop]) if len(kept) else kept


def _forms(phrases: Iterable[str]) -> list[str]:
    """Phrases without and with a space before them, which some tokenizers join to the word that follows."""
    return list(dict.fromkeys(form for phrase in phrases for form in (phrase.strip(), f" {phrase.strip()}")))


def occurrences(phrase: np.ndarray, text: np.ndarray) -> Iterator[int]:
    """Positions of the tokens of a phrase, at least one, in succession among those of a text.

    >>> list(occurrences(np.array([7, 8]), np.array([7, 7, 8, 7, 8])))
    [1, 3]
    """
    for place in np.flatnonzero(text[: max(0, len(text) - len(phrase) + 1)] == phrase[0]).tolist():
        if np.array_equal(text[place : place + len(phrase)], phrase):
            yield int(place)


def first_occurrence(phrase: np.ndarray, text: np.ndarray) -> int | None:
    """First of the `occurrences` of a phrase in a text; None: nowhere."""
    return next(occurrences(phrase, text), None)

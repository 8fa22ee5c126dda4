"""Settings of `PhraseFiller`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from pydantic import Field

from npm.core.errors import SettingError, near
from npm.core.settings import (
    Fraction,
    PathText,
    PerRequest,
    Settings,
    config_folder,
    per_request,
    read_settings,
    read_yaml,
)

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


class Retrieval(Enum):
    """Rows in which phrases are searched."""

    dense = "dense"
    bm25 = "bm25"
    blocks = "blocks"
    hybrid = "hybrid"


class Overlaps(Enum):
    """Handling of overlapping phrases of one position, such as `Bank` and `Bank of America`."""

    merge = "merge"
    keep = "keep"


MAX_PHRASES = 10_000
"""Largest `k`."""
OVERLAPS_LOOKED_AT, PHRASES_PER_ENTRY = 20, 5
"""Phrases looked at beyond `k`, and for each entry, at least: there are `k` entries where the corpus has as many."""
MAX_PHRASE_WORDS, MAX_PHRASE_TOKENS = 10, 128
"""Defaults if phrases are counted in words: most words, and most tokens of such a phrase."""


LEAST_TEMPERATURE = 1e-3
"""Minimum temperature: below it only the best occurrence would count, and similarities would soon overflow."""


class Combination(Enum):
    """Combination of the start and the end of an occurrence."""

    sum = "sum"
    product = "product"


class ScoringSettings(Settings):
    """Settings that filter, weigh and combine candidate spans; the defaults are ours."""

    reference: bool = False
    """The rules of the implementation of arXiv 2212.01349 instead of ours: an occurrence weighs p_s + p_e, softmaxes
    over all start and all end positions, not e^(s + t) over its sum over all candidates; phrases are the same if their
    tokens are, not their text up to case and spaces; they contain no stop-words and no punctuation, not of, the, and,
    's as names do; and they may continue into the next clause."""
    length_exponent: Annotated[float, Field(ge=-10, le=10)] = -1.0
    """α: an occurrence of n tokens weighs n^α times as much."""
    temperature: Annotated[float, Field(ge=LEAST_TEMPERATURE)] = 1.0
    """Divides the scaled similarities s and t; at least 0.001."""
    cut_expressions: bool = False
    """A phrase may begin or end inside a number, a date, a quantity, a hyphenated word or an abbreviation."""
    exclude_query_phrases: bool = True
    """Omit phrases whose words, except function words, all occur in the question."""


class FilterSettings(Settings):
    """Documents that may answer."""

    documents: Annotated[list[str] | None, PerRequest(1_000)] = None
    """Ids of the only documents to answer from, as occurrences show them; unset: all, an empty list: none. The
    command line refuses an empty one."""
    where: Annotated[list[str], PerRequest(16)] = field(default_factory=list)
    """Conditions on fields kept from the corpus (corpus.kept_fields) that a document must meet, all of them, such as
    `lang=en`, `year>=1990`, `kind!=stub`, `topic in [rivers, lakes]`."""


class FillSettings(FilterSettings):
    """Settings for filling texts."""

    k: Annotated[int, Field(ge=1, le=MAX_PHRASES), PerRequest(100)] = 5
    """Maximum phrases of an answer."""
    occurrences: Annotated[int, Field(ge=0, le=10_000), PerRequest(50)] = 3
    """Maximum occurrences shown per phrase, best first."""
    min_share: Annotated[Fraction, PerRequest()] = 0.0
    """Smallest share of the evidence that the first phrase must have for a clear answer; with less, and for a text with
    a capitalized word that the corpus lacks, there is none, and phrases are candidates. `evaluate` suggests a value; 0,
    and sums of scoring.reference: every answer counts."""
    min_confidence: Annotated[Fraction | None, PerRequest()] = None
    """Least confidence of a clear answer, where the reader has one: the probability that the first phrase is right.
    Unset: what was chosen when it was fitted (`npmlm calibrate`). A text with a name that is not in the corpus has no
    clear answer either; 0: every answer counts."""
    overlaps: Overlaps = Overlaps.merge
    """Phrases whose best occurrences overlap: `merge` makes them one entry, under the best of them and with the sum of
    their scores; `keep` leaves each its own, as evaluations do."""
    retrieval: Annotated[Retrieval, PerRequest()] = Retrieval.hybrid
    """`dense`: by vectors over the entire corpus; `bm25`: by vectors within the blocks that share the rarest words
    with the text; `blocks`: within those whose block vectors are nearest to that of the text; `hybrid`: within the best
    by both, where the index has block vectors, else by words, and a better block's evidence weighs more."""
    bm25_blocks: Annotated[int, Field(ge=1, le=10_000)] = 3
    """Blocks that `bm25`, `blocks` and `hybrid` search."""
    vector_share: Fraction | None = None
    """In `hybrid`, how much of a block's score comes from its vector, the rest from BM25, each divided by the best; 0
    is BM25 alone; unset: 0.5 where the index has block vectors."""
    lexical_weight: Annotated[float, Field(ge=0, le=1_000)] = 8.0
    """Added, in `hybrid`, to the similarities in a block, times its score over that of the best block."""
    reader: PathText = ""
    """Model that finds the answer in the blocks of `hybrid`: a folder of `train experiment=reader`, or a folder or hub
    name that AutoModelForQuestionAnswering loads; `none` searches stored vectors instead, as the paper does. Empty: the
    shipped one, if the index was made with its tokenizer."""
    joint_share: Fraction = 0.75
    """In `hybrid` with a reader, how much of a similarity comes from the reader, the rest from the stored vectors."""
    literal_weight: Annotated[float, Field(ge=0, le=100)] = 12.0
    """In `hybrid`, how much it counts for a phrase that the words around the mask occur around it word for word, the
    more of them the more; 0: nothing, which saves the look-up."""
    candidates_per_side: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Best rows grown into phrases for the start query and for the end query in unrestricted search; unset: 4096
    where search is exact and 512 where it is not. An occurrence with neither end
    among them adds nothing to its phrase and is neither counted nor shown."""
    values: list[str] | None = None
    """Only phrases that may answer, such as [Paris, Rome], as they occur in the corpus up to case and spaces; scores
    are shares of the evidence for all phrases. Unset: any phrase."""
    max_phrase_tokens: Annotated[int, Field(ge=1, le=256)] = 10
    """Longest phrase in tokens; where max_phrase_words counts, the default means 128."""
    max_phrase_words: Annotated[int, Field(ge=1, le=64)] | None = None
    """Longest phrase in words, for any tokenizer; unset: 10 for an encoder of bytes, no such limit for others."""
    merged_groups: Annotated[int, Field(ge=1, le=1_000_000)] = 128
    """Best token sequences whose text is read, to merge spellings of one phrase; at least k. A spelling that ranks
    below them is not counted with its phrase."""
    beam_width: Annotated[int, Field(ge=1, le=256)] = 16
    """For a text with several masks, how many phrases of each mask are combined, and how many fillings are kept from
    one mask to the next, which also limits how many are shown."""
    cooccurrence_smoothing: Annotated[float, Field(ge=1e-6, le=1e6)] = 0.1
    """For a text with several masks, ε in blocks: the smaller, the more a filling gains from phrases that occur in the
    same blocks more often than by chance; 1000000 leaves the product of the masks' scores."""
    tokens_per_batch: Annotated[int, Field(ge=1, le=10_000_000)] = 8192
    """Tokens of texts encoded at once, padding included."""
    scoring: ScoringSettings = field(default_factory=ScoringSettings)
    """Weights and combination of candidate spans."""

    def check(self) -> None:
        """Refuse values that no phrase can equal."""
        if self.values == []:
            raise SettingError("values must have at least one text, got []: leave it out for any phrase")
        if blank := [value for value in self.values or () if not value.strip()]:
            raise SettingError(f"values must have no empty text, got {blank[0]!r}: take it out")

    @property
    def reads(self) -> bool:
        """Return True if a reader, where there is one, scores the blocks."""
        return self.retrieval is Retrieval.hybrid and self.joint_share > 0

    def phrase_limits(self, encoder: Encoder) -> tuple[int, int | None]:
        """Longest phrase in tokens, and in words if they count; one word where the encoder asks with one mask."""
        of_bytes = encoder.spells_bytes and self.max_phrase_words is None
        words = MAX_PHRASE_WORDS if of_bytes else self.max_phrase_words
        given = self.max_phrase_tokens != FillSettings().max_phrase_tokens
        tokens = self.max_phrase_tokens if words is None or given else MAX_PHRASE_TOKENS
        return tokens, 1 if encoder.query_masks == 1 else words

    def for_mask(self, *, is_alone: bool, has_confidence: bool) -> FillSettings:
        """The same with as many phrases as one mask needs, which is alone in its text or not."""
        count = self.k
        if self.overlaps is Overlaps.merge or has_confidence:
            count = min(max(self.k + OVERLAPS_LOOKED_AT, self.k * PHRASES_PER_ENTRY), MAX_PHRASES)
        # Fillings are made of more phrases than are shown, so that k does not decide which is the best.
        count = count if is_alone else max(count, self.beam_width)
        return replace(self, k=count, occurrences=max(self.occurrences, 1))

    @classmethod
    def reference(cls) -> FillSettings:
        """As the reference implementation fills: its scoring, within the 3 best blocks by BM25, without reading."""
        text = (config_folder() / "scoring" / "reference.yaml").read_text(encoding="utf-8")
        return read_settings(cls, read_yaml(text))


class FillOptions(TypedDict, total=False):
    """Options of `fill` for type checkers: the settings marked PerRequest. None leaves the setting of that name."""

    occurrences: int | None
    retrieval: Retrieval | str | None
    documents: Sequence[str] | None
    where: Sequence[str] | str | None
    min_share: float | None
    min_confidence: float | None


def given_options(kind: type[FilterSettings], **options: Any) -> dict[str, Any]:
    """The options that are not None, as settings of `kind`; raises SettingError for one that no request may replace."""
    if unknown := options.keys() - per_request(kind).keys():
        name = min(unknown)
        raise SettingError(f"unknown option {name}: {near(name, per_request(kind))}")
    if isinstance(condition := options.get("where"), str):
        options["where"] = [condition]
    return {name: value for name, value in options.items() if value is not None}


def closed_error(filler: object) -> SettingError:
    """Error for a filler that is used after `close`."""
    return SettingError(f"this {type(filler).__name__} is closed: open another one")

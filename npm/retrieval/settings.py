"""How texts are filled: the settings of `PhraseFiller`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from npm.errors import SettingError, check_range
from npm.retrieval.scoring import ScoringSettings


class Retrieval(Enum):
    """Where phrases are looked for."""

    dense = "dense"
    bm25 = "bm25"
    hybrid = "hybrid"


@dataclass(kw_only=True, slots=True)
class FillSettings:
    """How texts are filled."""

    k: int = 5
    """Phrases an answer has at most."""
    occurrences: int = 3
    """Occurrences shown for a phrase at most, best first."""
    retrieval: Retrieval = Retrieval.hybrid
    """`dense`: by vectors over the whole corpus; `bm25`: by vectors within the blocks that share the rarest words
    with the text; `hybrid`: the same, and a better block's evidence weighs more."""
    bm25_blocks: int = 3
    """Blocks that `bm25` and `hybrid` look in."""
    lexical_weight: float = 8.0
    """Added, in `hybrid`, to the similarities in a block, times its BM25 score over that of the best block."""
    reading_share: float = 0.75
    """In `hybrid`, how much of a query vector comes from the text read together with the block that is looked in, the
    rest from the text alone; 0 reads nothing, which is faster."""
    candidates_per_side: int | None = None
    """Best rows grown into phrases for the start query and for the end query in unrestricted search; unset: what
    `tune` wrote into the index, else 4096 where search is exact and 512 where it is not."""
    documents: list[str] = field(default_factory=list)
    """Ids of the only documents to answer from; empty: all."""
    where: list[str] = field(default_factory=list)
    """Conditions on fields kept from the corpus (corpus.kept_fields) that a document must meet, all of them, such as
    `lang=en`, `year>=1990`, `kind!=stub`, `topic in [rivers, lakes]`."""
    max_phrase_tokens: int = 10
    """Longest phrase in tokens."""
    merged_groups: int = 128
    """Best token sequences whose text is read, to merge spellings of one phrase; at least k."""
    tokens_per_batch: int = 8192
    """Tokens of texts encoded at once, padding included."""
    scoring: ScoringSettings = field(default_factory=ScoringSettings)
    """How candidate spans are weighed and put together."""

    def __post_init__(self) -> None:
        limits = {
            "k": (1, 10_000),
            "occurrences": (0, 10_000),
            "bm25_blocks": (1, 10_000),
            "lexical_weight": (0, 1_000),
            "reading_share": (0, 1),
            "candidates_per_side": (1, 10_000_000),
            "max_phrase_tokens": (1, 256),
            "merged_groups": (1, 1_000_000),
            "tokens_per_batch": (1, 10_000_000),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if value is None and name == "candidates_per_side":
                continue
            check_range(low <= value <= high, name, expected=f"a number in [{low}, {high}]", got=value)

    @classmethod
    def reference(cls) -> FillSettings:
        """As the reference implementation fills: its scoring, within the 3 best blocks by BM25, without reading."""
        return cls(
            retrieval=Retrieval.bm25,
            bm25_blocks=3,
            lexical_weight=0.0,
            reading_share=0.0,
            candidates_per_side=4096,
            scoring=ScoringSettings.reference(),
        )


def retrieval_named(name: Retrieval | str) -> Retrieval:
    """The retrieval of that name; raises SettingError if there is none."""
    if isinstance(name, str) and name not in Retrieval.__members__:
        expected = ", ".join(Retrieval.__members__)
        raise SettingError("unknown retrieval", expected=expected, got=name, where="retrieval", fix="choose one")
    return Retrieval(name)

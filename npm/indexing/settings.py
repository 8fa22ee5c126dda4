"""Settings of building, changing and copying an index."""

from __future__ import annotations

from dataclasses import field, replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated

from pydantic import ByteSize, Field, PositiveInt

from index.settings import SearchSettings
from npm.core.errors import SettingError
from npm.core.settings import INNER, Fraction, PathText, Settings, changed_settings
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.corpus.text import Stemming
from npm.models.settings import EncoderChoice, PoolerKind

if TYPE_CHECKING:
    from npm.models.encoder import Encoder


class PruningRule(Enum):
    """Tokens that have a vector, and so may start or end a phrase; special tokens never do."""

    all = "all"
    word_boundaries = "word_boundaries"
    without_punctuation = "without_punctuation"
    without_stopwords = "without_stopwords"


class Rotation(Enum):
    """Axes onto which vectors are projected before they are cut."""

    none = "none"
    pca = "pca"


class VectorDtype(Enum):
    """Number format of stored vectors: with `int8` a vector has a scale too, and as many bytes more."""

    int8 = "int8"
    float16 = "float16"
    float32 = "float32"


class VectorSettings(Settings):
    """Selection and format of the stored token vectors."""

    pruning: PruningRule = PruningRule.without_stopwords
    """`all` tokens; first and last tokens of words (`word_boundaries`); of these not punctuation
    (`without_punctuation`); of these not stop-words either (`without_stopwords`)."""
    dtype: Annotated[VectorDtype, INNER] = VectorDtype.int8
    """Of vectors of tokens and of blocks: 1, 2 or 4 bytes per dimension."""
    tokens_per_batch: PositiveInt = 4096
    """Tokens encoded at once, padding included; the last bits of a vector may depend on it."""
    tokens_per_shard: PositiveInt = 262_144
    """Tokens of a shard, up to one block more: what is encoded again after a build was killed."""
    tokens: Annotated[bool, INNER] = True
    """Store a vector of each token that `pruning` keeps. Without them a reader alone chooses the phrases: a small index
    that is built fast, for `retrieval=hybrid` only."""
    blocks: Annotated[bool, INNER] = True
    """Store a vector of each block too, to rank blocks by: only where the encoder has a pooler to make it with, as one
    trained with `objective.block_teacher_weight` has."""

    def block_pooler(self, encoder: Encoder) -> PoolerKind | None:
        """Pooler that makes block vectors with `encoder`; None: no block vectors."""
        return encoder.block_pooler if self.blocks else None


class LexiconSettings(Settings):
    """BM25's weights of words: Robertson and Zaragoza 2009, in Lucene's variant."""

    k1: Annotated[float, Field(ge=0, le=100), INNER] = 0.9
    """Saturation: with a larger k1, further occurrences of a word in a block count for more."""
    b: Annotated[Fraction, INNER] = 0.4
    """Length normalization, from 0 (none) to 1 (full)."""
    stemming: Stemming = Stemming.plural
    """`plural` takes English plural endings off (the S-stemmer, Harman 1991); `none` leaves words as they are."""
    keep_stopwords: Annotated[bool, INNER] = False
    """Count English function words too; without them a question's content words decide."""
    title_repeats: Annotated[int, Field(ge=0, le=100), INNER] = 2
    """Times that the document's title counts in each of its blocks; 0 omits it."""


class IndexBuildSettings(EncoderChoice):
    """A phrase index: from which documents, with which encoder, and how."""

    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """The documents."""
    blocks: BlockSettings = field(default_factory=BlockSettings)
    """Division of documents into blocks."""
    encoder: PathText = ""
    """The encoder, which stays bound to the index: a folder written by `save_pretrained`, a hub name, `minilm` (extra
    `pretrained`) or `encoder-mini`, the shipped one; empty: that one too."""
    vectors: VectorSettings = field(default_factory=VectorSettings)
    """The stored vectors."""
    lexicon: LexiconSettings = field(default_factory=LexiconSettings)
    """The lexical stage."""
    search: SearchSettings = field(default_factory=SearchSettings)
    """Search of the vectors."""
    memory: Annotated[ByteSize, Field(gt=0)] | None = None
    """Most memory that a search over all vectors (retrieval=dense) may read, such as 4GB: where the tier for their
    number needs more, a smaller one is made. Unset: no limit."""
    dimensions: PositiveInt | None = None
    """Store and search this many leading dimensions of every vector, such as 128: a smaller index, at little cost with
    an encoder that was trained for it (experiment=matryoshka) or with a rotation; unset: full-dimensional vectors."""
    rotation: Rotation = Rotation.none
    """`pca` projects vectors on their `dimensions` strongest principal axes, computed once from a sample of the corpus
    and stored in the index, so that those of any encoder can be shortened; `none` takes the numbers as they come."""
    copy_encoder: bool = False
    """Save the encoder inside the index, so that `fill` needs no `encoder=`."""
    segments: PositiveInt = 1
    """Parts that the index is made of, each of consecutive corpus files and packed by its own job:
    for corpora that one process would pack too slowly."""

    def check(self) -> None:
        """Pass the limit of memory on; raise SettingError for a rotation of full-dimensional vectors."""
        if self.memory is not None:
            object.__setattr__(self, "search", replace(self.search, memory_bytes=int(self.memory)))
        if self.rotation is not Rotation.none and self.dimensions is None:
            raise SettingError(f"rotation={self.rotation.value} requires dimensions, such as dimensions=128")
        if self.vectors.tokens:
            return
        default = IndexBuildSettings()
        changed = changed_settings(self, default, ["dimensions", "memory", "search.tier", "search.list_count"])
        if changed:
            raise SettingError(f"{changed[0]} requires vectors of tokens: leave it out, or build with vectors=tokens")


class Stage(Enum):
    """A part of a build that jobs may divide among themselves."""

    pack = "pack"
    encode = "encode"
    quantize = "quantize"
    code = "code"
    merge = "merge"


class EstimateSettings(IndexBuildSettings):
    """Estimate of a build's cost, with the settings of the build."""

    sample_documents: PositiveInt = 200
    """Documents that are read and cut, from up to 16 files spread over the corpus; a batch of them is encoded."""
    tokens: PositiveInt | None = None
    """Estimate for a corpus like the one given, of this many tokens; unset: for the one given."""
    partitions: PositiveInt = 1
    """Partitions that the index is to be searched in; with more than one, what each of their processes reads."""


class AddSettings(Settings):
    """Documents that come to an index."""

    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """The new documents; fields are kept as the index keeps them."""
    replace: bool = False
    """Replace documents that have the same id, and all parts of the same files; otherwise an id that exists is
    refused."""


class DeleteSettings(Settings):
    """Documents that leave an index."""

    ids: list[str] = field(default_factory=list)
    """Ids of the documents; the path of a file that was read in parts deletes all its parts."""
    ids_file: PathText = ""
    """File with one id per line, in addition to `ids`."""


class CompactSettings(Settings):
    """Rewriting of an index."""

    retrain: bool = False
    """Train the quantizer again; it always is if the number of rows now calls for another tier."""

"""What an index is built from, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from index.settings import SearchSettings
from npm.corpus.blocks import BlockSettings
from npm.corpus.documents import CorpusSettings
from npm.indexing.embed import VectorSettings
from npm.indexing.lexicon import LexiconSettings
from npm.models.encoder import Precision
from npm.settings import Bounds, CheckedSettings, PathText


@dataclass(kw_only=True, slots=True)
class IndexBuildSettings(CheckedSettings):
    """A phrase index: from which documents, with which encoder, and how."""

    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """The documents."""
    blocks: BlockSettings = field(default_factory=BlockSettings)
    """How documents are cut."""
    encoder: PathText = ""
    """The encoder, which stays bound to the index: a folder written by `save_pretrained`, a hub name, `minilm` (extra
    `pretrained`) or `encoder-mini`, the shipped one; empty: that one too."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, …; `auto` takes a GPU where there is one."""
    precision: Precision = Precision.auto
    """Number format of the encoder's forward pass; `auto` is bfloat16 where the processor computes in it, else
    float32."""
    vectors: VectorSettings = field(default_factory=VectorSettings)
    """Which token vectors are stored."""
    lexicon: LexiconSettings = field(default_factory=LexiconSettings)
    """The lexical stage."""
    search: SearchSettings = field(default_factory=SearchSettings)
    """How vectors are searched."""
    dimensions: Annotated[int | None, Bounds(1)] = None
    """Store and search this many leading numbers of every vector, such as 128: a smaller index, at little cost with
    an encoder that was trained for it (experiment=matryoshka); unset: whole vectors."""
    copy_encoder: bool = False
    """Whether the encoder is saved inside the index, so that `fill` needs no `encoder=`."""

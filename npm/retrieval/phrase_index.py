"""An opened phrase index: corpus, vectors, rows, search and lexicon of one folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.search import open_search, searches_exactly
from index.store import check_folder, verify_folder
from npm.corpus.store import BlockStore
from npm.errors import ArtefactError
from npm.models.encoder import ComputeDtype, Encoder, choose_device
from npm.models.places import shipped_encoder_folder
from npm.retrieval.embed import open_vectors
from npm.retrieval.lexical import BlockLexicon
from npm.retrieval.rows import RowMap

if TYPE_CHECKING:
    from index.types import Searcher

INDEX_KIND, ENCODER_KIND = "phrase-index", "encoder"
CORPUS_FOLDER, VECTORS_FOLDER, LEXICON_FOLDER = "corpus", "vectors", "lexicon"
SEARCH_FOLDER, ENCODER_FOLDER = "search", "encoder"


@dataclass(frozen=True, slots=True)
class PhraseIndex:
    """All parts of a phrase index, checked against their manifests."""

    folder: Path
    settings: dict[str, Any]
    store: BlockStore
    rows: RowMap
    searcher: Searcher
    lexicon: BlockLexicon | None

    @classmethod
    def open(cls, folder: Path) -> PhraseIndex:
        """Open a built index; raises ArtefactError if it is missing, unfinished, damaged or of another kind.

        Every file that is read as a whole is hashed; what is mapped and larger than 64 MB only `verify_index` reads.
        """
        manifest = check_folder(folder, kind=INDEX_KIND)
        store = BlockStore.open(folder / CORPUS_FOLDER)
        whole = searches_exactly(folder / SEARCH_FOLDER)
        vectors, positions = open_vectors(folder / VECTORS_FOLDER, store, hash_all=whole)
        return cls(
            folder=folder,
            settings=manifest.settings,
            store=store,
            rows=RowMap(positions, token_count=len(store.token_ids)),
            searcher=open_search(folder / SEARCH_FOLDER, vectors),
            lexicon=BlockLexicon.open(folder / LEXICON_FOLDER) if LEXICON_FOLDER in manifest.parts else None,
        )

    def check_encoder(self, encoder: Encoder) -> None:
        """Raise ArtefactError unless `encoder` is the one whose vectors the index holds."""
        made_by = self.settings["encoder"]
        for name, ours in (
            ("fingerprint", encoder.fingerprint),
            ("tokenizer_fingerprint", encoder.tokenizer_fingerprint),
        ):
            if made_by[name] != ours:
                raise ArtefactError(
                    "the index was made with another encoder",
                    expected=f"{made_by['name']}, {name.replace('_', ' ')} {made_by[name]}",
                    got=f"{encoder.name}, {name.replace('_', ' ')} {ours}",
                    where=str(self.folder),
                    fix=f"give the encoder that built it with encoder=…, or build an index with {encoder.name}",
                )

    def load_encoder(
        self, encoder: Encoder | str | None, *, device: str = "auto", dtype: ComputeDtype = ComputeDtype.auto
    ) -> Encoder:
        """The encoder given, or of the name given, or that belongs to the index: the shipped one, or the one inside.

        Raises ArtefactError if none of them made the index or the one inside is damaged, EncoderError if one cannot
        be loaded or there is no such device.
        """
        if isinstance(encoder, Encoder):
            return encoder
        if encoder is not None:
            return Encoder.load(str(encoder), device=device, dtype=dtype)
        choose_device(device)  # a mistake in it is told whether an encoder is found or not
        inside = self.folder / ENCODER_FOLDER
        made_by = self.settings["encoder"]
        was_shipped = (shipped_encoder_folder() / "config.json").is_file()
        shipped = Encoder.load(device=device, dtype=dtype) if was_shipped else None
        if shipped is not None and shipped.fingerprint == made_by["fingerprint"]:
            return shipped
        if inside.is_dir():
            verify_folder(inside, ENCODER_KIND)
            return Encoder.load(str(inside), device=device, dtype=dtype)
        raise ArtefactError(
            "the index was made with an encoder that is not at hand",
            expected=f"{made_by['name']}, fingerprint {made_by['fingerprint']}",
            got="no such encoder" if shipped is None else f"the shipped one, fingerprint {shipped.fingerprint}",
            where=str(self.folder),
            fix=f"give it with encoder=…, such as encoder={made_by['name']}; build copy_encoder=true keeps it inside",
        )


def verify_index(folder: Path, progress: Callable[[str, int], None] | None = None) -> None:
    """Read every byte of an index and check it; `progress(file, bytes)` after each file.

    Raises ArtefactError on the first fault.
    """
    verify_folder(folder, INDEX_KIND, progress)

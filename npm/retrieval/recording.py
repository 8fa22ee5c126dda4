"""What the manifests of an index say of how it was made: input, settings, encoder, versions; no path of a machine."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.files import sha256_of_file
from index.quantiser import QUANTISER_KIND
from index.store import Manifest, read_manifest, write_folder
from npm.corpus.sources import find_sources
from npm.errors import SettingError
from npm.models.encoder import Encoder
from npm.retrieval.manifests import keeps_finished
from npm.retrieval.segments import ENCODER_KIND
from npm.settings import enum_value

if TYPE_CHECKING:
    from npm.corpus.documents import CorpusSettings


PACKAGES_RECORDED = ("npmlm", "torch", "transformers", "tokenizers", "numpy")


def input_record(corpus: CorpusSettings) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of every corpus file, in order: what the blocks depend on, without where it lies."""
    records: list[dict[str, Any]] = []
    for source in find_sources(corpus.files):
        record: dict[str, Any] = {"name": source.name}
        if source.format != "hub":
            path = Path(source.path)
            record |= {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)}
        records.append(record)
    return records


def recorded_settings(settings: Any, encoder: Encoder, root: type) -> dict[str, Any]:
    """What the manifest says of how the index was made: the fields of the settings class `root`, without paths."""
    # a command adds settings of its own, such as where the index lies
    own = {item.name: asdict(settings)[item.name] for item in fields(root)}
    chosen: dict[str, Any] = json.loads(json.dumps(own, default=enum_value))
    del chosen["corpus"]["files"], chosen["encoder"]
    return {
        **chosen,
        "encoder": {
            "name": encoder.name,
            "fingerprint": encoder.fingerprint,
            "tokenizer_fingerprint": encoder.tokenizer_fingerprint,
            "similarity_scale": encoder.similarity_scale,
        },
        "versions": {name: found for name in PACKAGES_RECORDED if (found := _version(name))},
    }


def recorded_corpus(corpus: CorpusSettings) -> dict[str, Any]:
    """How the files were read, as the manifest of a segment says it."""
    recorded: dict[str, Any] = json.loads(json.dumps(asdict(corpus), default=enum_value))
    del recorded["files"]
    return recorded


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def search_settings_of(quantiser: Path) -> dict[str, Any]:
    """What the search folders of a quantiser record: how it was made, without what it was trained on."""
    made = read_manifest(quantiser, kind=QUANTISER_KIND).settings
    return {name: value for name, value in made.items() if name not in ("vectors", "held_out_every")}


def copy_encoder(folder: Path, name: str, encoder: Encoder) -> Manifest:
    """Save the encoder as a folder that `transformers` loads, under the same protection as the other parts."""
    import torch

    recorded = {"fingerprint": encoder.fingerprint}
    if (kept := keeps_finished(folder, kind=ENCODER_KIND, settings=recorded)) is not None:
        return kept
    whole = next(encoder.model.parameters()).dtype is torch.float32
    # What computes in bfloat16 has lost bits that the fingerprint counts.
    original = encoder if whole else Encoder.load(name, device="cpu", dtype="float32")
    if original.fingerprint != encoder.fingerprint:
        raise SettingError(
            "copy_encoder=true needs the encoder's own weights",
            expected=f"fingerprint {encoder.fingerprint}",
            got=f"{original.name}, fingerprint {original.fingerprint}",
            where="encoder.name",
            fix="give the encoder's folder as encoder.name, or load it with dtype=float32",
        )
    saved = folder.parent / f".{folder.name}.saved"
    shutil.rmtree(saved, ignore_errors=True)
    try:
        original.save(saved)
        with write_folder(folder, kind=ENCODER_KIND, settings=recorded) as writer:
            for file in sorted(path for path in saved.iterdir() if path.is_file()):
                writer.open_binary(file.name).write(file.read_bytes())
    finally:
        shutil.rmtree(saved, ignore_errors=True)
    return read_manifest(folder, kind=ENCODER_KIND)

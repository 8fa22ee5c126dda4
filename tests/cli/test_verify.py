"""`npmlm verify`, and damage that `fill` finds when it opens an index."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from npm.core import artifact
from npm.indexing import embed
from tests.helpers.command_line import QUESTION, CommandLine, all_bytes, write_corpus
from tests.helpers.live_indexes import part_of

KINDS = {
    "manifest": "manifest.json",
    "manifest of the corpus": "corpus-*/manifest.json",
    "manifest of the search": "search-*/manifest.json",
    "tokens": "corpus-*/00000/token_ids.npy",
    "flags": "corpus-*/00000/flags.npy",
    "characters": "corpus-*/00000/start_chars.npy",
    "documents": "corpus-*/00000/texts.npy",
    "keys": "corpus-*/00000/document_keys.npy",
    "counts": "corpus-*/00000/counts.json",
    "vectors": "vectors-*/00000/vectors.npy",
    "kept tokens": "vectors-*/00000/kept.npy",
    "postings": "lexicon-*/00000/posting_blocks.npy",
    "words": "lexicon-*/00000/words.npy",
    "quantizer": "quantizer-*/trained.faiss",
    "lists": "search-*/lists.bin",
    "list sizes": "search-*/list_sizes.npy",
}


@pytest.fixture(scope="module")
def faiss_index(tiny_encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with a file of FAISS, and its encoder inside."""
    from npm.cli.main import main

    folder = tmp_path_factory.mktemp("faiss")
    corpus = write_corpus(folder / "corpus.jsonl")
    arguments = [f"corpus.files={corpus}", f"index={folder / 'index'}", f"encoder={tiny_encoder_folder}"]
    arguments += ["copy_encoder=true", "blocks.max_block_tokens=64", "search.list_count=4"]
    assert main(["build", *arguments]) == 0
    return folder / "index"


def flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_a_whole_index_passes_and_every_byte_is_counted(npmlm: CommandLine, faiss_index: Path) -> None:
    outcome = npmlm("verify", f"index={faiss_index}")
    assert outcome.status == 0
    counted = sum(len(data) for name, data in all_bytes(faiss_index).items() if not name.endswith("manifest.json"))
    first, second = outcome.out.splitlines()
    assert first == f"{faiss_index} is intact: {counted:,} bytes checked"
    assert second.endswith("vectors encoded again, the least cosine 1.00000")


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_is_found_by_verify_and_by_fill(
    kind: str, npmlm: CommandLine, faiss_index: Path, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    shutil.copytree(faiss_index, index)
    (file,) = index.glob(KINDS[kind])
    for place in (file.stat().st_size // 2, -1):
        flip(file, place)
        before = all_bytes(tmp_path)
        for outcome in (npmlm("verify", f"index={index}"), npmlm("fill", f"index={index}", QUESTION)):
            if file.name == "manifest.json" and place == -1 and outcome.status == 0:
                continue  # the last byte is white space
            outcome.refused(file.name)
        assert all_bytes(tmp_path) == before
        flip(file, place)


def test_a_flipped_byte_in_the_encoder_inside_is_found(npmlm: CommandLine, faiss_index: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    shutil.copytree(faiss_index, index)
    flip(part_of(index, "encoder") / "model.safetensors", -3)
    npmlm("verify", f"index={index}").refused("model.safetensors")
    npmlm("fill", f"index={index}", QUESTION).refused("model.safetensors", "is damaged", "SHA-256")


def test_a_flipped_byte_in_large_vectors_is_found_by_verify(
    npmlm: CommandLine, built_index: Path, faiss_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact, "HASHED_AT_OPENING_BYTES", 1)
    monkeypatch.setattr(embed, "HASHED_AT_OPENING_BYTES", 1)
    for name, source in (("exact", built_index), ("faiss", faiss_index)):
        index = tmp_path / name
        shutil.copytree(source, index)
        flip(part_of(index, "vectors") / "00000" / "vectors.npy", -2)  # the low byte of a number
        npmlm("verify", f"index={index}").refused("vectors.npy", "is damaged", "SHA-256")


@pytest.mark.parametrize("change", ["shorter", "longer", "missing"])
def test_a_file_of_another_length_or_missing_is_found(
    change: str, npmlm: CommandLine, faiss_index: Path, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    shutil.copytree(faiss_index, index)
    file = part_of(index, "vectors") / "00000" / "vectors.npy"
    data = file.read_bytes()
    if change == "missing":
        file.unlink()
    else:
        file.write_bytes(data[:-1] if change == "shorter" else data + b"\0")
    npmlm("verify", f"index={index}").refused("vectors.npy")
    npmlm("fill", f"index={index}", QUESTION).refused("vectors.npy")

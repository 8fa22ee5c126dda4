"""`npmlm verify`, damage that `fill` finds, and encoders from somebody else, whose code never runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from npm.core import artifact
from npm.core.artifact import read_manifest, write_folder
from npm.indexing import embed
from npm.indexing.generation import ENCODER_KIND
from tests.cli.test_zero_shot import ROWS, TASK
from tests.helpers.command_line import QUESTION, CommandLine, all_bytes, write_corpus
from tests.helpers.live_indexes import part_of
from tests.helpers.sample_folders import flip_byte, rewrite_manifest

KINDS = {
    "manifest": "manifest.json",
    "manifest of the search": "search-*/manifest.json",
    "tokens": "corpus-*/00000/token_ids.npy",
    "documents": "corpus-*/00000/texts.npy",
    "counts": "corpus-*/00000/counts.json",
    "vectors": "vectors-*/00000/vectors.npy",
    "words": "lexicon-*/00000/words.npy",
    "quantizer": "quantizer-*/trained.faiss",
    "lists": "search-*/lists.bin",
    "encoder": "encoder-*/model.safetensors",
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


def test_a_whole_index_passes_and_every_byte_is_counted(npmlm: CommandLine, faiss_index: Path) -> None:
    outcome = npmlm("verify", f"index={faiss_index}").done()
    counted = sum(len(data) for name, data in all_bytes(faiss_index).items() if not name.endswith("manifest.json"))
    first, second = outcome.out.splitlines()
    assert first == f"{faiss_index} is intact: {counted:,} bytes checked"
    assert float(second.rpartition("vectors encoded again, the least cosine ")[2]) > 0.9999  # stored in 8 bits


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_found_by_verify_and_fill(kind: str, npmlm: CommandLine, faiss_index: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    shutil.copytree(faiss_index, index)
    (file,) = index.glob(KINDS[kind])
    data = file.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    lengths = (data[:-1], data + b"\0", None) if kind == "vectors" else ()
    for damaged in (flipped, data[:-1] + bytes([data[-1] ^ 1]), *lengths):
        file.unlink() if damaged is None else file.write_bytes(damaged)
        before = all_bytes(tmp_path)
        for outcome in (npmlm("verify", f"index={index}"), npmlm("fill", f"index={index}", QUESTION)):
            if file.name == "manifest.json" and damaged != flipped and outcome.status == 0:
                continue  # the last byte is white space
            outcome.refused(file.name)
        assert all_bytes(tmp_path) == before
        file.write_bytes(data)


def test_a_flipped_byte_in_large_vectors_is_found_by_verify(
    npmlm: CommandLine, built_index: Path, faiss_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact, "HASHED_AT_OPENING_BYTES", 1)
    monkeypatch.setattr(embed, "HASHED_AT_OPENING_BYTES", 1)
    for name, source in (("exact", built_index), ("faiss", faiss_index)):
        index = tmp_path / name
        shutil.copytree(source, index)
        flip_byte(part_of(index, "vectors") / "00000" / "vectors.npy", -2)  # the low byte of a number
        npmlm("verify", f"index={index}").refused("vectors.npy", "is damaged", "SHA-256")


YES = b"y\nyes\n" + QUESTION.encode() + b"\n"


@pytest.fixture
def evil(tiny_encoder_folder: Path, tmp_path: Path) -> Path:
    """An encoder of a kind of its own, whose code leaves a file `ran` where it lies."""
    folder = tmp_path / "evil"
    shutil.copytree(tiny_encoder_folder, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = {name: f"modeling_evil.{name}" for name in ("AutoConfig", "AutoModel", "AutoModelForMaskedLM")}
    config |= {"model_type": "evil", "auto_map": names}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    ran = tmp_path / "ran"
    (folder / "modeling_evil.py").write_text(f"open({str(ran)!r}, 'w').close()\n", encoding="utf-8")
    return folder


@pytest.fixture
def evil_index(built_index: Path, evil: Path, tmp_path: Path) -> Path:
    """An index with such an encoder inside, all of its manifests in order."""
    folder = tmp_path / "index"
    shutil.copytree(built_index, folder)
    inside = part_of(folder, "encoder")
    recorded = read_manifest(inside, kind=ENCODER_KIND).settings
    shutil.rmtree(inside)
    with write_folder(inside, kind=ENCODER_KIND, settings=recorded) as writer:
        for file in sorted(evil.iterdir()):
            writer.open_binary(file.name).write(file.read_bytes())
    parts = dict(read_manifest(folder, kind="phrase-index").parts)
    rewrite_manifest(folder, parts=parts | {inside.name: read_manifest(inside, kind=ENCODER_KIND).digest})
    return folder


def test_no_code_of_an_encoder_runs_whatever_standard_input_says(
    npmlm: CommandLine, evil: Path, evil_index: Path, built_index: Path, corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "places.csv").write_text(ROWS, encoding="utf-8")
    (tmp_path / "places.yaml").write_text(TASK, encoding="utf-8")
    pairs = [{"sentence1": "a man", "sentence2": f"{number} women", "score": number} for number in (1.0, 2.5, 4.5)]
    write_corpus(tmp_path / "stsb-test.jsonl", pairs)
    out = f"out={tmp_path / 'out'}"
    sts = ["evaluate", "task=sts", "sts.pooler=avg", f"data_dir={tmp_path}", out]
    commands = [
        ["build", f"corpus.files={corpus}", f"index={tmp_path / 'new'}", f"encoder={evil}"],
        ["fill", f"index={built_index}", f"encoder={evil}"],
        ["fill", f"index={evil_index}"],
        ["fill", f"index={evil_index}", QUESTION],
        ["train", f"encoder={evil}", f"run={tmp_path / 'run'}", f"corpus.files={corpus}", "schedule.max_steps=1"],
        ["evaluate", f"task={tmp_path / 'places.yaml'}", "method=mlm", f"zero_shot.mlm.encoder={evil}", out],
        [*sts, f"encoder={evil}"],
        [*sts, "encoder=encoder-mini", f"sts.before.encoder={evil}", "sts.before.pooler=avg"],
    ]
    before = all_bytes(evil)
    for command in commands:
        outcome = npmlm(*command, stdin=YES)
        outcome.refused("config.json", "model_type 'evil'")
        assert not (tmp_path / "ran").exists(), command
    assert all_bytes(evil) == before


def test_an_unknown_class_is_passed_over(npmlm: CommandLine, evil: Path, corpus: Path, tmp_path: Path) -> None:
    config = json.loads((evil / "config.json").read_text(encoding="utf-8"))
    (evil / "config.json").write_text(json.dumps({**config, "model_type": "bert"}), encoding="utf-8")
    tokenizer = json.loads((evil / "tokenizer_config.json").read_text(encoding="utf-8"))
    own = {"auto_map": {"AutoTokenizer": [None, "modeling_evil.AutoTokenizer"]}}
    (evil / "tokenizer_config.json").write_text(json.dumps(tokenizer | own), encoding="utf-8")
    settings = [f"corpus.files={corpus}", f"index={tmp_path / 'new'}", f"encoder={evil}", "blocks.max_block_tokens=64"]
    npmlm("build", *settings, stdin=YES).done()
    assert not (tmp_path / "ran").exists()

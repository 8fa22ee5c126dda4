"""`npmlm build` as a user meets it."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from npm.cli.progress import StageProgress
from npm.core.artifact import Manifest, verify_folder
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.settings import IndexBuildSettings
from npm.models.encoder import Encoder
from tests.helpers.command_line import DOCUMENTS, QUESTION, CommandLine, all_bytes, write_corpus
from tests.helpers.kills import fail_writes
from tests.helpers.live_indexes import part_of
from tests.helpers.tuned_indexes import write_documents

Build = Callable[..., list[str | Path]]


@pytest.fixture
def build(corpus: Path, tmp_path: Path, tiny_encoder_folder: Path) -> Build:
    """The arguments of a build into tmp_path/index, over another corpus or with further settings if given."""

    def arguments(*further: str, files: Path | str = corpus, index: str = "index") -> list[str | Path]:
        given = [f"corpus.files={files}", f"index={tmp_path / index}", f"encoder={tiny_encoder_folder}"]
        return ["build", *given, "blocks.max_block_tokens=64", *further]

    return arguments


def test_a_build_says_on_stderr_where_the_index_is(npmlm: CommandLine, build: Build, tmp_path: Path) -> None:
    outcome = npmlm(*build())
    assert (outcome.status, outcome.out) == (0, "")
    assert f"npmlm fill index={tmp_path / 'index'}" in outcome.err
    again = npmlm(*build()).done()
    assert "finished already" in again.err
    spaced = npmlm(*build(index="with a space")).err
    command = shlex.split(next(line for line in spaced.splitlines() if "npmlm fill" in line).partition(": ")[2])
    assert command[:3] == ["npmlm", "fill", f"index={tmp_path / 'with a space'}"]


def test_an_index_that_lost_a_part_is_not_finished_and_says_so(
    npmlm: CommandLine, build: Build, corpus: Path, tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    assert npmlm(*build(index="whole")).status == 0
    index = tmp_path / "index"
    for part in ("corpus-*", "lexicon-*/00000", "vectors-*/00000/vectors.npy", "search-*"):
        shutil.copytree(tmp_path / "whole", index)
        (place,) = index.glob(part)
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        npmlm(*build()).refused(str(place))
        npmlm("compact", f"index={index}").refused(str(place))
        npmlm("add", f"index={index}", f"corpus.files={corpus}", f"encoder={tiny_encoder_folder}").refused(str(place))
        shutil.rmtree(index)


def test_a_build_over_an_index_that_is_changed_meanwhile_sees_the_new_generation(
    npmlm: CommandLine, build: Build, tmp_path: Path, tiny_encoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, looks = tmp_path / "index", [0]
    assert npmlm(*build()).status == 0
    more = write_corpus(tmp_path / "more.jsonl", [{"id": "new", "text": "Tromsø lies in Norway."}])

    def verified(folder: Path, kind: str, **checks: bool) -> Manifest:
        looks[0] += 1
        if looks[0] == 1:
            assert npmlm("add", f"index={index}", f"corpus.files={more}", f"encoder={tiny_encoder_folder}").status == 0
            raise FileNotFoundError(folder / "vectors")
        return verify_folder(folder, kind, **checks)

    monkeypatch.setattr("npm.indexing.build.verify_folder", verified)
    outcome = npmlm(*build())
    assert looks[0] == 1 and "was changed since" in outcome.err


def test_builds_are_reproducible(npmlm: CommandLine, build: Build, tmp_path: Path, tiny_encoder_folder: Path) -> None:
    assert npmlm(*build("copy_encoder=true", index="one")).status == 0
    assert npmlm(*build("copy_encoder=true", index="deeper/two")).status == 0
    one = all_bytes(tmp_path / "one")
    assert one == all_bytes(tmp_path / "deeper" / "two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "deeper", "one"]
    for name, data in one.items():
        for place in (tmp_path, tiny_encoder_folder):
            assert str(place).encode() not in data, f"{place} stands in {name}"


def test_an_encoder_loaded_for_reading_is_copied(corpus: Path, tiny_encoder_folder: Path, tmp_path: Path) -> None:
    read = Encoder.load(str(tiny_encoder_folder), for_reading=True)
    settings = IndexBuildSettings(
        corpus=CorpusSettings(files=[str(corpus)]),
        blocks=BlockSettings(max_block_tokens=64),
        encoder=str(tiny_encoder_folder),
        copy_encoder=True,
    )
    build_index(tmp_path / "index", settings, read)
    assert Encoder.load(str(part_of(tmp_path / "index", "encoder"))).fingerprint == read.fingerprint


@pytest.mark.parametrize("share", [0.0, 0.55, 1.0])
def test_a_build_interrupted_anywhere_continues(share: float, npmlm: CommandLine, build: Build, tmp_path: Path) -> None:
    settings = ("vectors.tokens_per_shard=30", "copy_encoder=true")
    with pytest.MonkeyPatch.context() as patched:
        writes = fail_writes(patched, lambda *_: False)
        assert npmlm(*build(*settings, index="whole")).status == 0
        last = max(1, round(share * len(writes)))
        fail_writes(patched, lambda number, _: number == last, KeyboardInterrupt())
        outcome = npmlm(*build(*settings))
    assert (outcome.status, outcome.out) == (130, "")
    assert "resumes where it stopped" in outcome.err
    npmlm("fill", f"index={tmp_path / 'index'}", QUESTION).refused()
    assert npmlm(*build(*settings)).status == 0
    assert all_bytes(tmp_path / "index") == all_bytes(tmp_path / "whole")


@pytest.mark.parametrize(("code", "first"), [(errno.ENOSPC, 1), (errno.EACCES, 5), (errno.ENOSPC, 25)])
def test_a_disk_that_refuses_a_build(code: int, first: int, npmlm: CommandLine, build: Build, tmp_path: Path) -> None:
    before = all_bytes(tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        fail_writes(patched, lambda number, _: number >= first, code)
        npmlm(*build()).refused(os.strerror(code), str(tmp_path / "index"))
    if first < 20:  # no part was finished yet
        assert all_bytes(tmp_path) == before
    assert not [path for path in tmp_path.rglob(".*")]
    assert npmlm(*build()).status == 0
    assert npmlm("verify", f"index={tmp_path / 'index'}").status == 0


def test_a_folder_with_other_contents_is_left_alone(npmlm: CommandLine, build: Build, tmp_path: Path) -> None:
    for number, document in enumerate(DOCUMENTS[:3]):
        write_corpus(tmp_path / f"{number}.jsonl", [document])
    files = f"{tmp_path}/[0-9].jsonl"
    assert npmlm(*build(files=files)).status == 0
    before = all_bytes(tmp_path / "index")
    npmlm(*build("vectors.pruning=all", files=files)).refused("vectors.pruning", "remove this folder")
    npmlm(*build(index="corpus.jsonl")).refused("corpus.jsonl")
    write_corpus(tmp_path / "9.jsonl", [DOCUMENTS[5]])
    npmlm(*build(files=files)).refused("built from other files", "run npmlm add")
    assert all_bytes(tmp_path / "index") == before


def test_control_characters_and_very_long_lines_are_read(npmlm: CommandLine, build: Build, tmp_path: Path) -> None:
    documents = [
        {"id": "odd", "title": "Odd", "text": "Oslo\x00 is\x07 in \x1b[31mNorway\u2028and far away."},
        {"id": "long", "title": "Long", "text": "word " * 100_000 + "Madrid" + "x" * 500_000},
    ]
    files = write_corpus(tmp_path / "odd.jsonl", documents)
    assert npmlm(*build("blocks.max_document_tokens=500", files=files)).status == 0
    encoder = build()[3]
    outcome = npmlm("fill", f"index={tmp_path / 'index'}", str(encoder), "output=json", "Oslo is in <mask>").done()
    assert outcome.answers()[0]["phrases"]


def test_a_text_unknown_to_the_tokenizer(npmlm: CommandLine, tiny_encoder_folder: Path, tmp_path: Path) -> None:
    thai, english = "ปารีส เป็น เมืองหลวง ของ ฝรั่งเศส " * 40, "Paris is the capital of France. " * 40
    for name, texts in (("thai", [thai]), ("both", [english, thai, english])):
        write_corpus(tmp_path / f"{name}.jsonl", [{"id": str(n), "text": text} for n, text in enumerate(texts)])
    settings = [f"encoder={tiny_encoder_folder}", "blocks.max_block_tokens=64"]
    refused = npmlm("build", f"corpus.files={tmp_path / 'thai.jsonl'}", f"index={tmp_path / 'thai'}", *settings)
    refused.refused("knows too little of this text", "200 of the first 200")
    assert not (tmp_path / "thai" / "manifest.json").exists()
    noted = npmlm("build", f"corpus.files={tmp_path / 'both.jsonl'}", f"index={tmp_path / 'both'}", *settings).done()
    assert "does not know" in noted.err


def test_bad_lines_are_skipped(npmlm: CommandLine, build: Build, tmp_path: Path, tiny_encoder_folder: Path) -> None:
    write_corpus(tmp_path / "bad.jsonl", [*DOCUMENTS[:5], {}])
    npmlm(*build(files=tmp_path / "bad.jsonl")).refused("has no text", "corpus.skip_bad=true")
    assert not (tmp_path / "index").exists()
    built = npmlm(*build("corpus.skip_bad=true", files=tmp_path / "bad.jsonl")).done()
    assert "skipped 1 of the corpus: has no text (1)" in built.err
    report = tmp_path / "index.skipped.jsonl"
    assert json.loads(report.read_text("utf-8"))["where"] == f"{tmp_path}/bad.jsonl:6"
    assert json.loads((tmp_path / "index" / "manifest.json").read_bytes())["settings"]["corpus"]["skip_bad"] is True
    (tmp_path / "more.jsonl").write_text('{"id": "n", "text": "Bergen lies in Norway."}\nnone\n', encoding="utf-8")
    add = ["add", f"index={tmp_path / 'index'}", f"corpus.files={tmp_path / 'more.jsonl'}", "corpus.skip_bad=true"]
    added = npmlm(*add, f"encoder={tiny_encoder_folder}").done()
    assert "is not a JSON object (1)" in added.err and f"{report}" in added.err
    assert json.loads(report.read_text("utf-8"))["where"] == f"{tmp_path}/more.jsonl:2"
    again = npmlm(*add, f"encoder={tiny_encoder_folder}").done()
    assert "generation" not in again.err


def test_a_limit_of_memory_chooses_the_tier(npmlm: CommandLine, build: Build, tmp_path: Path) -> None:
    files = write_documents(tmp_path / "texts.jsonl")
    given = build("memory=400KB", files=files)
    assert npmlm(*given).status == 0
    for told in (
        npmlm("estimate", *given[1:2], *given[3:], "output=json"),
        npmlm("inspect", f"index={tmp_path / 'index'}", "output=json"),
    ):
        record = json.loads(told.out)
        assert record["tier"].startswith("ivf_sq8") and record["tier_reason"] == "exact exceeds memory=400.0KB"
    assert record["bytes"]["hot_bytes"]["codes"] + record["bytes"]["hot_bytes"]["row ids"] < 400_000
    assert npmlm("fill", f"index={tmp_path / 'index'}", given[3], "retrieval=dense", QUESTION).status == 0
    for more, named in (
        (["memory=1KB"], ["memory=1.0KB", "dimensions"]),
        (["memory=much"], ["memory", "4GB", "much"]),
        (["memory=1GB", "search.tier=exact"], ["memory", "search.tier"]),
    ):
        npmlm(*build(*more, files=files, index="other")).refused(*named)


def test_each_stage_is_said_once_when_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with StageProgress() as progress:
        for stage, done, total in (("vectors", 5, 9), ("vectors", 9, 9), ("vectors", 9, 9), ("verify", 7, None)):
            progress(stage, done, total)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "vectors: 9 tokens\n")

"""`npmlm fill` without index=: texts are answered from a demo corpus, whose index is built into the user's cache."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from npm.core.files import user_folder
from tests.helpers.command_line import QUESTION, REPOSITORY, CommandLine, Outcome, all_bytes
from tests.helpers.tiny_models import tiny_encoder

DOCUMENTS = sum(
    len(file.read_text(encoding="utf-8").splitlines()) for file in (REPOSITORY / "npm/assets/demo").glob("*.jsonl")
)


@pytest.fixture(scope="module")
def first(tiny_encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Outcome]]:
    """A cache, and what two processes wrote that were started at once when it was empty: the same."""
    cache = tmp_path_factory.mktemp("cache")
    command = [sys.executable, "-m", "npm", "fill", f"encoder={tiny_encoder_folder}", "output=json", "k=1", QUESTION]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        started = [
            subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)
        ]
        written = [process.communicate(timeout=300) for process in started]
        outcomes = [
            Outcome(process.returncode, out.decode(), err.decode())
            for process, (out, err) in zip(started, written, strict=True)
        ]
        notes = [[line for line in outcome.err.splitlines() if "waits for another" not in line] for outcome in outcomes]
        assert (outcomes[0].status, outcomes[0].out, notes[0]) == (outcomes[1].status, outcomes[1].out, notes[1])
        yield cache, Outcome(outcomes[0].status, outcomes[0].out, "\n".join(notes[0]))


def demo_folder(cache: Path) -> Path:
    (folder,) = (cache / "npmlm").glob("demo-*")
    return folder


def test_processes_side_by_side_build_it_once_and_say_where_it_is(first: tuple[Path, Outcome]) -> None:
    cache, outcome = first
    assert outcome.status == 0, outcome.err
    assert len(outcome.answers()[0]["phrases"]) == 1
    assert outcome.err.startswith(f"note: without index= answers come from the demo corpus of {DOCUMENTS} documents, ")
    assert f"kept in {demo_folder(cache)}; ask your own with files=" in outcome.err
    assert outcome.err.count("\n") == 0
    assert [path.name for path in (cache / "npmlm").iterdir()] == [demo_folder(cache).name]  # no lock is left


def test_it_is_used_from_then_on_and_another_encoder_gets_its_own(
    first: tuple[Path, Outcome], npmlm: CommandLine, tiny_encoder_folder: Path, tmp_path: Path
) -> None:
    cache, outcome = first
    before = all_bytes(cache)
    again = npmlm("fill", f"encoder={tiny_encoder_folder}", "output=json", "k=1", QUESTION)
    assert (again.status, again.err.strip()) == (0, outcome.err)
    assert again.answers()[0]["phrases"][0]["phrase"] == outcome.answers()[0]["phrases"][0]["phrase"]
    assert all_bytes(cache) == before
    tiny_encoder("bert", seed=7).save(tmp_path / "other")
    assert npmlm("fill", f"encoder={tmp_path / 'other'}", QUESTION).status == 0
    kept = {path.name for path in (cache / "npmlm").iterdir()} - {
        path.split("/")[1] for path in before if "demo-" in path
    }
    assert len(kept) == 1
    shutil.rmtree(cache / "npmlm" / kept.pop())


def test_a_damaged_one_and_a_cache_that_cannot_be_written_are_refused_with_what_to_do(
    first: tuple[Path, Outcome],
    npmlm: CommandLine,
    tiny_encoder_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask = ("fill", f"encoder={tiny_encoder_folder}", QUESTION)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    npmlm(*ask).refused(
        "a folder above it is a file; give index=DIR, or set XDG_CACHE_HOME to a folder that can be written"
    )
    assert all_bytes(tmp_path) == {"file": b""}
    npmlm("fill", "<mask>" * 9).refused("got 9")  # before anything is built
    shutil.copytree(first[0], tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = demo_folder(tmp_path / "cache")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"documents"', '"dokuments"'))
    npmlm(*ask).refused(f"remove {folder}, ")


def test_files_and_pipes_are_not_answered_from_a_corpus_that_was_not_named(npmlm: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text(QUESTION)
    npmlm("fill", f"texts={tmp_path / 'texts'}").refused("index is required")
    npmlm("fill", stdin=QUESTION.encode()).refused("index is required")


def test_the_environment_names_the_folders_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value, folder in (("/cache", Path("/cache")), ("", tmp_path / ".cache"), ("relative", tmp_path / ".cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert user_folder("XDG_CACHE_HOME", ".cache") == folder / "npmlm"

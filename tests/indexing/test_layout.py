"""What other people put into or beside an index stays, links lead nowhere, and a folder of theirs is not built in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from npm.core.errors import ArtifactError
from npm.corpus.settings import CorpusSettings
from npm.corpus.sources import find_sources
from npm.indexing.build import build_index
from npm.indexing.changes import delete_documents
from npm.indexing.compact import compact_index
from npm.indexing.generation import Generation
from npm.indexing.inspect import inspect_index, verify_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import CompactSettings, DeleteSettings, IndexBuildSettings
from npm.models.encoder import Encoder
from tests.helpers.kills import Killed
from tests.helpers.live_indexes import added, all_bytes, built, record, write_records


@pytest.fixture(scope="module")
def finished(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with inverted lists, two segments and a deleted document."""
    index = built(
        tmp_path_factory.mktemp("finished") / "index", [record(number) for number in range(12)], encoder, "ivf_sq8 4"
    )
    added(index, [record(number) for number in range(12, 16)], encoder)
    delete_documents(index, DeleteSettings(ids=["d3"]))
    return index


@pytest.fixture
def index(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "index")


def settings(folder: Path) -> IndexBuildSettings:
    return IndexBuildSettings(corpus=CorpusSettings(files=[write_records(folder / "corpus.jsonl", [record(0)])]))


def live_parts(index: Path) -> set[str]:
    return set(Generation.read(index).manifest.parts)


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "held",
    [
        ["sub/.yarn.lock", ".precious.lock"],
        ["notes.txt"],
        ["encoder/config.json"],
        ["corpus/mine/x", "notes.txt"],
        ["vectors-12monkeys/x"],
    ],
)
def test_a_build_refuses_a_folder_of_somebody_elses_and_leaves_it_as_it_was(
    held: list[str], encoder: Encoder, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    for name in held:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("precious")
    before, made = files_of(folder), settings(tmp_path)
    with pytest.raises(ArtifactError, match="is not the folder of an index") as caught:
        build_index(folder, made, encoder)
    assert held[0].split("/")[0] in str(caught.value)
    assert files_of(folder) == before


@pytest.mark.parametrize("name", ["/", ".", "..", "~"])
def test_a_build_refuses_places_with_much_in_them_without_looking_through_them(
    name: str, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "home" / "project"
    (place / "deep").mkdir(parents=True)
    (place / "loop").symlink_to("loop")
    monkeypatch.chdir(place)
    monkeypatch.setattr("os.walk", lambda *_, **__: pytest.fail("walks the tree"))
    made = settings(tmp_path)
    with pytest.raises(ArtifactError, match="is not the folder of an index"):
        build_index(tmp_path / "home" if name == "~" else name, made, encoder)


def test_changes_leave_what_somebody_else_put_into_an_index(index: Path, encoder: Encoder) -> None:
    (quantizer,) = index.glob("quantizer-*")
    shutil.copytree(quantizer, index / "quantizer.backup")
    (index / "linked").symlink_to(index / "quantizer.backup")
    for name in ("notes.txt", ".precious.lock", "search/x"):
        (index / name).parent.mkdir(exist_ok=True)
        (index / name).write_text(name)
    ours = {"manifest.json", *live_parts(index)}
    kept = {path: data for path, data in files_of(index).items() if path.relative_to(index).parts[0] not in ours}
    (index / "corpus-0123456789abcdef").symlink_to(index / "quantizer.backup")  # unlisted: the link goes
    added(index, [record(20)], encoder, name="again")
    delete_documents(index, DeleteSettings(ids=["d4"]))
    compact_index(index, CompactSettings(retrain=True))
    verify_index(index)
    assert files_of(index).items() >= kept.items()
    assert (index / "linked").is_symlink()
    theirs = {"manifest.json", "linked", "notes.txt", ".precious.lock", "search", "quantizer.backup"}
    assert {path.name for path in index.iterdir()} == theirs | live_parts(index)


@pytest.mark.parametrize("pattern", ["corpus-*", "vectors-*", "search-*", "vectors-*/00000"])
def test_an_index_of_which_a_part_lies_elsewhere_is_refused_and_the_part_left_alone(
    pattern: str, index: Path, encoder: Encoder, tmp_path: Path
) -> None:
    place = next(path for path in index.glob(pattern) if path.relative_to(index).parts[0] in live_parts(index))
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    before = all_bytes(tmp_path)
    changes = (
        lambda: added(index, [record(20)], encoder, name="again"),
        lambda: delete_documents(index, DeleteSettings(ids=["d4"])),
        lambda: compact_index(index, CompactSettings()),
        lambda: verify_index(index),
        lambda: PhraseIndex.open(index),
    )
    for change in changes:
        with pytest.raises(ArtifactError, match="is a link") as caught:
            change()
        assert str(place) in str(caught.value)
    assert all_bytes(tmp_path).items() >= before.items()


def test_an_index_in_a_folder_of_a_corpus_is_no_part_of_it(index: Path, tmp_path: Path) -> None:
    for place in (tmp_path, next(index.glob("corpus-*"))):
        (place / "text.txt").write_text("A text.")
    assert [source.name for source in find_sources([str(tmp_path)])] == ["text.txt"]


def test_an_index_may_be_named_by_a_link(index: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(index)
    delete_documents(tmp_path / "link", DeleteSettings(ids=["d4"]))
    compact_index(tmp_path / "link", CompactSettings())
    verify_index(tmp_path / "link")
    assert inspect_index(index).counts["documents"] == 14


def test_a_removal_that_is_killed_leaves_no_part_without_its_files(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {path.name: set(files_of(path)) for path in index.iterdir() if path.is_dir()}

    def killed(folder: Path, **_: object) -> None:
        if found := [path for path in Path(folder).rglob("*") if path.is_file()]:
            found[0].unlink()
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(Killed):
            compact_index(index, CompactSettings(retrain=True))
    for name, files in parts.items():
        assert not (index / name).exists() or set(files_of(index / name)) == files, name
    compact_index(index, CompactSettings())
    assert {path.name for path in index.iterdir()} == {"manifest.json", *live_parts(index)}

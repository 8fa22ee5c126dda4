"""`npm` as a library: what it names, and that its functions do what the verbs do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import npm
from npm.api import Documents
from npm.core.errors import ArtifactError, CorpusError, SettingError
from npm.core.types import Document
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from tests.helpers.command_line import DOCUMENTS, QUESTION, CommandLine, all_bytes, run_subprocess, write_corpus

SHORT = {"max_block_tokens": 64}
HANDED = [Document(item["id"], item["title"], item["text"]) for item in DOCUMENTS]


def answers_of(folder: Path, encoder: Encoder) -> list[object]:
    with PhraseFiller.open(folder, encoder) as filler:
        return [filler.fill(QUESTION, k=20, retrieval=retrieval).phrases for retrieval in ("dense", "hybrid")]


def test_all_that_is_named_is_there_and_listed() -> None:
    assert set(npm.__all__) == {name for name in dir(npm) if name == "__version__" or not name.startswith("_")}
    for name in npm.__all__:
        assert getattr(npm, name) is not None
    assert npm.PhraseFiller is PhraseFiller and npm.Document is Document and npm.SettingError is SettingError
    assert npm.__version__.count(".") >= 1
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = npm.nothing  # type: ignore[attr-defined]


def test_import_npm_is_light_and_its_names_are_listed_at_once() -> None:
    program = (
        "import sys, npm\n"
        "assert {'PhraseFiller', 'build', 'Document', '__version__'} <= set(dir(npm))\n"
        "npm.__version__, npm.UserError, npm.FillSettings\n"
        "heavy = {'torch', 'transformers', 'hydra', 'omegaconf', 'datasets', 'faiss', 'rich'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    run_subprocess(sys.executable, "-c", program).done()


def test_a_build_has_the_bytes_of_the_command(npmlm: CommandLine, tiny_encoder_folder: Path, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    settings = ("blocks.max_block_tokens=64", "vectors.tokens_per_batch=2048", "copy_encoder=true")
    npmlm(
        *("build", f"corpus.files={corpus}", f"index={tmp_path / 'a'}", f"encoder={tiny_encoder_folder}", *settings)
    ).done()
    given: dict[str, Any] = {"blocks": {"max_block_tokens": 64}, "vectors.tokens_per_batch": 2048, "copy_encoder": True}
    made = npm.build(corpus, tmp_path / "b", tiny_encoder_folder, **given)
    assert all_bytes(tmp_path / "a") == all_bytes(tmp_path / "b")
    assert (made.documents, made.added, made.generation, made.was_finished) == (6, 6, 0, False)
    again = npm.build([str(corpus)], str(tmp_path / "b"), tiny_encoder_folder, **given)
    assert (again.was_finished, again.added, again.documents) == (True, 0, 6)


def test_documents_are_built_added_deleted_compacted_and_verified(encoder: Encoder, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    states = [npm.build(HANDED[:4], folder, encoder, blocks=SHORT)]
    states += [npm.build(HANDED[:4], folder, encoder, blocks=SHORT), npm.add(HANDED[4], folder, encoder)]
    states += [npm.add(HANDED[5:], folder, encoder), npm.delete("bank", folder), npm.delete(["book", "poland"], folder)]
    states.append(npm.compact(folder))
    seen = [(state.documents, state.added, state.deleted, state.was_finished) for state in states]
    expected = [(4, 4, 0, False), (4, 0, 0, True), (5, 1, 0, False), (6, 1, 0, False), (5, 0, 1, False)]
    assert seen[:-1] == [*expected, (3, 0, 2, False)]
    assert states[-1].documents == 3
    assert [state.generation for state in states] == [0, 0, 1, 2, 3, 4, 5]
    fresh = npm.build([HANDED[0], HANDED[1], HANDED[4]], tmp_path / "fresh", encoder, blocks=SHORT)
    assert (fresh.tokens, fresh.vectors) == (states[-1].tokens, states[-1].vectors)
    assert [len(phrases) for phrases in answers_of(folder, encoder)] == [  # type: ignore[arg-type]
        len(phrases)  # type: ignore[arg-type]
        for phrases in answers_of(tmp_path / "fresh", encoder)
    ]
    checked = npm.verify(folder, encoder)
    assert checked.bytes > 0 and checked.vectors > 0 and checked.least_cosine > 0.99
    assert npm.add([HANDED[3]], folder, encoder, replace=True).documents == 4
    for wrong in ({"reencoded_batches": -1}, {"reencoded_batches": 1.5}, {"seed": "x"}, {"seed": -1}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            npm.verify(folder, encoder, **wrong)  # type: ignore[arg-type]
    unchecked = npm.verify(folder)
    assert unchecked.vectors == 0 and "no vector was encoded again" in unchecked.notes[0]


def test_fields_of_documents_are_kept_and_filter_answers(encoder: Encoder, tmp_path: Path) -> None:
    documents = [Document(each.id, each.title, each.text, {"place": each.id[0]}) for each in HANDED]
    npm.build(iter(documents), tmp_path / "index", encoder, blocks=SHORT)
    with PhraseFiller.open(tmp_path / "index", encoder) as filler:
        found = filler.fill(QUESTION, k=50, where="place=n").phrases
    assert {place.document for phrase in found for place in phrase.occurrences} == {"norway"}


@pytest.mark.parametrize(
    ("documents", "settings", "told"),
    [
        ([HANDED[0], "notes.txt"], {}, "1 documents among 2"),
        ([HANDED[0], HANDED[0]], {}, "came before"),
        ([Document("a", "", "  ")], {}, "has no text"),
        ([Document("a", "", "Oslo.", {"when": {1, 2}})], {}, "not JSON serializable"),
        ([Document("a", "", "Oslo \ud800.")], {}, "documents"),
        ([], {}, "files"),
        (3, {}, "files[0] must be a valid string"),
        (HANDED[0], {"corpus.files": ["a.jsonl"]}, "corpus.files exclude"),
        (HANDED[0], {"bogus": 1}, "unknown setting bogus"),
        (HANDED[0], {"search": {"tier": "fast"}}, "search.tier must be 'auto', 'exact'"),
        (HANDED[0], {"search": 3}, "search must be a mapping"),
    ],
)
def test_what_cannot_be_built_from_is_refused_and_leaves_nothing(
    documents: Documents, settings: dict[str, Any], told: str, encoder: Encoder, tmp_path: Path
) -> None:
    with pytest.raises((CorpusError, SettingError)) as caught:
        npm.build(documents, tmp_path / "index", encoder, **({"blocks": SHORT} | settings))
    assert told in str(caught.value)
    assert "npmlm-" not in str(caught.value)  # no path of a file that is gone
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("name", ["index", "encoder", "precision", "device", "ids"])
def test_arguments_of_another_kind_are_refused_by_name(name: str, built_index: Path, encoder: Encoder) -> None:
    before = all_bytes(built_index)
    with pytest.raises(SettingError, match=rf"{name}\S* must be"):
        if name == "ids":
            npm.delete([3], built_index)  # type: ignore[list-item]
        else:
            npm.verify(**{"index": built_index, name: 3.5})  # type: ignore[arg-type]
    with pytest.raises(ArtifactError):
        npm.compact(built_index / "nothing")
    assert all_bytes(built_index) == before

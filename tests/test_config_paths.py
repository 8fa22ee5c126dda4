"""Paths reach the code as they were written: hydra's grammar and interpolation never see them."""

from __future__ import annotations

import itertools

import pytest

from npm.config import COMMANDS, PATH_SETTINGS, compose_settings, declared_settings

ODD_PATHS = [
    "a,b",
    "it's",
    'say "x"',
    "k=5",
    "f(x",
    "~/home",
    "$HOME",
    "${x}",
    "${oc.env:HOME}",
    "#1",
    "list[0]",
    " two  spaces ",
    "back\\slash",
    "Łódź 🜨",
    "{a: b}",
    "a:b@c|d;e!",
    "null",
    "???",
]


@pytest.mark.parametrize("path", ODD_PATHS)
def test_config_takes_a_path_as_it_is_written(path: str) -> None:
    for mark in ("", "++"):
        assert compose_settings("fill", [f"{mark}index={path}", f"encoder={path}", f"texts={path}"]) == COMMANDS[
            "fill"
        ](index=path, encoder=path, texts=path)
    assert compose_settings("build", ["index=i", f"encoder={path}"]).encoder.name == path
    assert compose_settings("build", ["index=i", f"corpus.files={path}"]).corpus.files == [path]
    assert compose_settings("train", [f"run={path}", f"encoder={path}"]).run == path
    evaluation = compose_settings("evaluate", [f"out={path}", f"questions={path}", f"index={path}"])
    assert (evaluation.out, evaluation.questions, evaluation.index) == (path, path, path)


@pytest.mark.parametrize(("first", "second"), list(itertools.pairwise(ODD_PATHS)))
def test_config_takes_lists_of_paths_that_hold_anything(first: str, second: str) -> None:
    def quoted(path: str, mark: str) -> str:
        return mark + path.replace("\\", "\\\\").replace(mark, f"\\{mark}") + mark

    for mark in ("'", '"'):
        files = f"corpus.files=[{quoted(first, mark)}, {quoted(second, mark)}]"
        assert compose_settings("build", ["index=i", files]).corpus.files == [first, second]
    plain = [path for path in (first, second) if path == path.strip() and not set(path) & set(",'\"")]
    if plain:
        assert compose_settings("build", ["index=i", f"corpus.files=[{','.join(plain)}]"]).corpus.files == plain


def test_config_path_settings_are_all_settings_that_name_a_file_or_folder() -> None:
    strings = {
        name
        for root in COMMANDS.values()
        for name, item in declared_settings(root).items()
        if item.type in ("str", "list[str]")
    }
    no_paths = {"device", "corpus.id_field", "corpus.title_field", "corpus.text_field", "corpus.kept_fields"}
    no_paths |= {"encoder.device", "trainer.device"}
    assert strings - no_paths <= set(PATH_SETTINGS)

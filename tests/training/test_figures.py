"""What all pictures share: their files, their names, and what a mistake gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npm.core.errors import ArtifactError, SettingError
from npm.training import plotting
from npm.training.plotting import (
    check_figure,
    folder_names,
    legend_below,
    new_panels,
    plain_axes,
    save_figure,
    shown_name,
)

pytest.importorskip("matplotlib")
MAGIC = {".png": b"\x89PNG\r\n", ".svg": b"<?xml"}


def drawing(*names: str) -> Any:
    figure, panels = new_panels(2)
    for number, name in enumerate(names):
        panels[0].plot([0, 1], [number, 1], label=shown_name(name))
    plain_axes(panels[0], x="ms", y="share", title="title")
    legend_below(figure, panels, columns=2)
    return figure


@pytest.mark.parametrize("suffix", MAGIC)
def test_a_picture_is_of_the_kind_of_its_name_and_the_same_bytes_each_time(suffix: str, tmp_path: Path) -> None:
    first, second = tmp_path / f"a{suffix}", tmp_path / "new" / f"b{suffix}"
    save_figure(drawing("a", "b"), first)
    save_figure(drawing("a", "b"), second)
    assert first.read_bytes().startswith(MAGIC[suffix])
    assert first.read_bytes() == second.read_bytes()
    save_figure(drawing("a", "c"), second)
    assert first.read_bytes() != second.read_bytes()


@pytest.mark.parametrize("suffix", MAGIC)
def test_a_picture_takes_the_place_of_none_but_our_own(suffix: str, tmp_path: Path) -> None:
    picture = tmp_path / f"picture{suffix}"
    check_figure(picture)
    picture.write_bytes(MAGIC[suffix] + b" of somebody else")
    with pytest.raises(ArtifactError, match="was not drawn by npmlm"):
        check_figure(picture)
    save_figure(drawing("a"), picture)
    check_figure(picture)


def test_names_from_outside_are_shown_as_they_are(tmp_path: Path) -> None:
    names = ["_begins", "$x_1$", "two\nlines", "runs/😀"]
    figure = drawing(*names)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [" _begins", r"\$x_1\$", "two lines", "runs/😀"]
    save_figure(figure, tmp_path / "names.png")  # without a warning, which would be an error here


def test_folders_with_the_same_name_are_told_apart_by_the_folders_above(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "first"]
    assert folder_names(folders) == ["a/run", "b/run", f"{tmp_path.name}/first"]
    with pytest.raises(SettingError, match="named twice"):
        folder_names([folders[0], tmp_path / "a" / ".." / "a" / "run"])
    with pytest.raises(SettingError, match="no folder is named"):
        folder_names([])


def test_without_matplotlib_one_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plotting, "find_spec", lambda _: None)
    with pytest.raises(SettingError, match="pip install matplotlib"):
        check_figure(tmp_path / "x.png")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        save_figure(drawing("a"), tmp_path / "file" / "x.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(SettingError, match="PNG"):
        check_figure(tmp_path / "folder.png")
    with pytest.raises(SettingError, match="SVG"):
        check_figure(tmp_path / "x.pdf")

"""Keys of settings that have moved: the old ones work in this version, with a note."""

from __future__ import annotations

from pathlib import Path

import pytest

from npm.cli.help import declared_settings
from npm.cli.settings import OLD_SPELLINGS, compose_settings, moved_settings
from npm.cli.verbs import VERBS
from npm.core.errors import UserError


@pytest.mark.parametrize("verb", OLD_SPELLINGS)
def test_config_every_old_key_has_a_new_one_and_is_no_setting_itself(verb: str) -> None:
    declared = declared_settings(VERBS[verb].root)
    assert moved_settings(verb, declared) == OLD_SPELLINGS[verb]


@pytest.mark.parametrize("mark", ["", "+", "++"])
def test_config_takes_an_old_key_as_the_new_one_and_says_so(mark: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = "" if mark == "+" else mark  # a setting that is there cannot be added, under either key
    old = [f"{plain}encoder.name=A, b", f"{plain}encoder.device=cpu", f"{plain}encoder.dtype=bfloat16"]
    new = ["encoder=A, b", "device=cpu", "precision=bfloat16"]
    assert compose_settings("build", ["index=i", *old]) == compose_settings("build", ["index=i", *new])
    notes = capsys.readouterr().err.splitlines()
    assert notes[2] == "note: encoder.dtype= is now precision=; the old spelling works in this version"
    assert len(notes) == 3
    if mark == "+":
        with pytest.raises(UserError, match="can only be set"):
            compose_settings("fill", ["index=i", "+dtype=float32"])
        assert "dtype= is now precision=" in capsys.readouterr().err


def test_config_refuses_two_values_under_an_old_and_a_new_key() -> None:
    with pytest.raises(UserError, match="precision is given twice"):
        compose_settings("fill", ["index=i", "dtype=float32", "precision=bfloat16"])


def test_config_moves_old_keys_of_ones_own_experiment_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("trainer:\n  device: cpu\n  precision: bfloat16\n  workers: 0\n", encoding="utf-8")
    settings = compose_settings("train", ["run=r", f"experiment={file}"])
    assert settings == compose_settings("train", ["run=r", "device=cpu", "precision=bfloat16", "trainer.workers=0"])
    notes = [line for line in capsys.readouterr().err.splitlines() if "is now" in line]
    assert notes[0] == "note: trainer.device= is now device=; the old spelling works in this version"
    assert len(notes) == 2


def test_an_experiment_file_with_the_old_and_the_new_spelling_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("trainer: {device: cpu}\ndevice: cuda\n", encoding="utf-8")
    with pytest.raises(UserError, match="device is given twice: cpu and cuda"):
        compose_settings("train", [f"experiment={file}", "run=x"])

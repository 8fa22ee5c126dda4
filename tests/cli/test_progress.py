"""Progress where stderr is no terminal: one line a stage, at its end."""

from __future__ import annotations

import pytest

from npm.cli.progress import StageProgress


def test_each_stage_is_said_once_when_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with StageProgress() as progress:
        progress("vectors", 500, 1000)
        assert capsys.readouterr().err == ""
        progress("vectors", 1000, 1000)
        progress("vectors", 1000, 1000)
        progress("verify", 7, None)
        progress("lexicon", 3, 3)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "vectors: 1,000\nlexicon: 3\n")

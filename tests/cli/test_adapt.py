"""`npmlm adapt` as a user meets it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tests.helpers.command_line import CommandLine, all_bytes, write_corpus
from tests.helpers.tuned_indexes import WORDS


def corrections(file: Path) -> Path:
    rng = np.random.default_rng(1)
    questions = (" ".join(rng.choice(WORDS, 6).tolist()) + " <mask>." for _ in range(50))
    return write_corpus(file, [{"question": question, "answers": ["Oslo"]} for question in questions])


def test_what_adapt_learns_is_used_shown_and_removed(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    shutil.copytree(built_index, index)
    ask = ("fill", f"index={index}", "retrieval=dense", "output=json", "It lies in <mask>.")
    before = npmlm(*ask).answers()
    outcome = npmlm(
        *("adapt", f"index={index}", f"questions=[{corrections(tmp_path / 'rows.jsonl')}]"),
        *("retrieval=dense", "output=json"),
    ).done()
    (learned,) = outcome.answers()
    assert learned["generation"] == 1 and learned["after"]["first"] > learned["before"]["first"]
    after = npmlm(*ask).answers()
    assert [answer[0]["phrases"][0]["phrase"] == "Oslo" for answer in (before, after)] == [False, True]
    assert "10 held-out ones" in " ".join(npmlm("inspect", f"index={index}").out.split())
    assert npmlm("verify", f"index={index}").status == 0
    assert npmlm("adapt", f"index={index}", "remove=true").status == 0
    assert npmlm(*ask).answers() == before


def test_an_index_that_gains_nothing_stays(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    index, rows = tmp_path / "index", corrections(tmp_path / "rows.jsonl")
    shutil.copytree(built_index, index)
    outcome = npmlm("adapt", f"index={index}", f"questions=[{rows}]", "retrieval=dense").done()
    assert "generation 1" in outcome.out
    held_out = np.random.default_rng(0).permutation(50)[:10].tolist()
    lines = rows.read_text(encoding="utf-8").splitlines(keepends=True)
    changed = [line.replace("Oslo", "Madrid") if number in held_out else line for number, line in enumerate(lines)]
    rows.write_text("".join(changed), encoding="utf-8")
    before = all_bytes(index)
    outcome = npmlm("adapt", f"index={index}", f"questions=[{rows}]", "retrieval=dense").done()
    assert "nothing was written" in outcome.out
    assert all_bytes(index) == before


def test_mistakes_are_refused(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    index = f"index={built_index}"
    npmlm("adapt", index).refused("questions")
    npmlm("adapt", index, "remove=true", "questions=[rows.jsonl]").refused("remove", "questions")
    npmlm("adapt", index, f"questions=[{tmp_path / 'none.jsonl'}]").refused("none.jsonl")
    npmlm("adapt", index, "questions=[rows.jsonl]", "seed=-1").refused("seed", "-1")
    npmlm("adapt", f"index={tmp_path / 'none'}", "remove=true").refused("none")

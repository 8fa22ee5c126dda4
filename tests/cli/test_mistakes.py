"""What the command line refuses or cannot write, with the command as it is to be written, and `-m` and `--cfg job`."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from npm.cli.main import main
from npm.cli.registry import DECLARED, MODULES, find_verb
from npm.cli.settings import combinations
from tests.helpers.command_line import DOCUMENTS, CommandLine, Outcome, run_subprocess, write_corpus

STDOUT = 1
SETTING = re.compile(r"  [\w.]+ = ")
"""A line of help that names a setting."""


@pytest.mark.parametrize("verb", MODULES)
def test_help_is_given_however_it_is_asked_for(verb: str, npmlm: CommandLine) -> None:
    expected = npmlm(verb, "--help").done()
    assert find_verb(verb).example in " ".join(expected.out.split())
    assert find_verb(verb).example.startswith(f"npmlm {verb} ")
    for words in (["help", verb], ["-h", verb], ["--help", verb], [verb, "help"], [verb, "-h"]):
        assert npmlm(*words) == expected
    whole = npmlm(verb, "--help", "all")
    assert npmlm("help", verb, "all") == npmlm(verb, "help", "all") == whole
    for outcome in (expected, whole):
        required = [line.endswith("= (required)") for line in outcome.out.splitlines() if SETTING.match(line)]
        assert required == sorted(required, reverse=True)
        assert any(required) == (find_verb(verb).required is not None)


@pytest.mark.parametrize("setting", ["k=${oc.env:HOME}", "scoring=${oc.env:HOME}"])
def test_settings_look_nothing_up_in_the_environment(setting: str, npmlm: CommandLine) -> None:
    message = npmlm("fill", "index=i", setting).refused("${oc.env:HOME}")
    assert os.environ["HOME"] not in message


def test_settings_of_an_experiment_file_are_taken_as_they_are_written(npmlm: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    for line, part in (
        ("encoder: {a: 1}", "encoder must be a valid string"),
        ("trainer: {tensorboard: 2}", "trainer.tensorboard"),
    ):
        file.write_text(line + "\n", encoding="utf-8")
        npmlm("train", f"run={tmp_path / 'run'}", f"experiment={file}").refused(part)


def command_with(stdout: int | None, *arguments: str, **variables: str) -> Outcome:
    """`npmlm` in a process whose standard output is a file descriptor, or closed for None."""

    def prepare() -> None:
        if stdout is None:
            os.close(STDOUT)

    done = subprocess.run(
        [sys.executable, "-m", "npm", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
        preexec_fn=prepare,
        timeout=300,
    )
    return Outcome(done.returncode, "", done.stderr.decode())


def test_a_stdout_that_takes_no_answers_is_one_message(built_index: Path) -> None:
    inspect = ("inspect", f"index={built_index}")
    with Path("/dev/full").open("wb") as full:
        command_with(full.fileno(), *inspect).refused("standard output", "No space left")
    command_with(None, "--help").refused("standard output is closed")
    outcome = command_with(subprocess.DEVNULL, *inspect, PYTHONIOENCODING="ascii:strict")
    outcome.refused("PYTHONIOENCODING=utf-8")


@pytest.mark.parametrize("error", [MemoryError("8.0 TiB"), OSError(errno.EMFILE, os.strerror(errno.EMFILE), "x.so")])
def test_refusals_of_the_system(error: Exception, npmlm: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: object) -> int:
        raise error

    monkeypatch.setitem(DECLARED, "inspect", dataclasses.replace(find_verb("inspect"), run=run))
    npmlm("inspect", "index=i").refused("8.0 TiB" if isinstance(error, MemoryError) else "Too many open files")


def test_a_file_that_may_not_grow_is_one_message(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    more = write_corpus(tmp_path / "more.jsonl", [{**DOCUMENTS[0], "id": "more"}])
    folder = shutil.copytree(built_index, tmp_path / "index")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        outcome = npmlm("add", f"index={folder}", f"corpus.files={more}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    outcome.refused(os.strerror(errno.EFBIG))


def test_a_removed_working_directory_is_one_sentence(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    outcome = run_subprocess("sh", "-c", f"rmdir {here}; exec {sys.executable} -m npm fill x", cwd=here)
    assert outcome.status == 2
    assert "working directory" in outcome.err


def test_a_full_stderr_changes_no_exit_status() -> None:
    refused = f"{sys.executable} -m npm fill index=/nonexistent '<mask>' 2>/dev/full"
    assert run_subprocess("sh", "-c", refused).status == 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a=1,2", "b=x,y"], [["a=1", "b=x"], ["a=1", "b=y"], ["a=2", "b=x"], ["a=2", "b=y"]]),
        (["a=[1,2]", "b=3"], [["a=[1,2]", "b=3"]]),
        (["a=[1,2],[3]"], [["a=[1,2]"], ["a=[3]"]]),
        (["a=range(1,3)"], [["a=1"], ["a=2"]]),
        (["files=[/data/a (1).jsonl]"], [["files=[/data/a (1).jsonl]"]]),
        ([], [[]]),
    ],
)
def test_combinations(given: list[str], expected: list[list[str]]) -> None:
    assert list(combinations(given)) == expected


def test_settings_are_shown_composed_and_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["experiment=reader", f"run={tmp_path / 'run'}", "questions=[a.jsonl]", "schedule.max_steps=7"]
    assert main(["train", "--cfg", "job", *given, "encoder=a${b"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["schedule"]["max_steps"] == 7
    assert shown["encoder"] == "a${b"
    assert shown["objective"]["reader_weight"] == 1.0
    assert not (tmp_path / "run").exists()


def test_runs_go_to_numbered_folders(
    tmp_path: Path, built_index: Path, capsys: pytest.CaptureFixture[str], tiny_encoder_folder: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "Oslo is in <mask>.", "answers": ["Norway"]}\n')
    task, out = tmp_path / "task.yaml", tmp_path / "out"
    task.write_text('suite: open\nname: own\ndata: {file: rows.jsonl}\ntemplate: "{{ text }}"\n')
    given = [f"task={task}", f"index={built_index}", f"encoder={tiny_encoder_folder}", "method=[npm-bm25]"]
    assert main(["evaluate", "-m", *given, f"out={out}", "fill.k=1,3"]) == 0, capsys.readouterr().err
    assert sorted(folder.name for folder in out.iterdir()) == ["0", "1"]
    assert all((out / name / "metrics.json").is_file() for name in ("0", "1"))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["evaluate", "-m", "task=demo", "fill.k=1,0", "out=new"], "fill.k"),  # before the first run
        (["train", "-m", "schedule.max_steps=1,2"], "run"),
        (["inspect", "-m", "index=a,b"], "inspect"),
    ],
)
def test_mistakes_are_found_before_the_first_run(
    arguments: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert part in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

"""Mistakes on the command line: what is refused, with the command as it is to be written, and where answers can go."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npm.cli.registry import DECLARED, MODULES, find_verb
from tests.helpers.command_line import DOCUMENTS, QUESTION, CommandLine, Outcome, run_subprocess, write_corpus

STDOUT = 1
SETTING = re.compile(r"  [\w.]+ = ")
"""A line of help that names a setting."""


@pytest.mark.parametrize(
    "command",
    [["fill", "-k", "3", QUESTION], ["fill", "--index=i", QUESTION], ["inspect", "i"], ["tune", "index=i", "--write"]],
)
def test_options_and_a_folder_alone_are_answered_with_how_settings_are_written(
    command: list[str], npmlm: CommandLine
) -> None:
    npmlm(*command).refused("key=value", f"npmlm {command[0]} --help")


def test_what_looks_like_an_option_is_text_where_it_holds_a_mask_or_stands_behind_dashes(
    npmlm: CommandLine, built_index: Path
) -> None:
    for text in (["-k <mask>"], ["--", "--index <mask>"]):
        assert npmlm("fill", f"index={built_index}", "output=json", *text).status == 0
    npmlm("fill", f"index={built_index}", "no mask here").refused("<mask>", "no mask here")


@pytest.mark.parametrize("verb", MODULES)
def test_help_is_given_however_it_is_asked_for(verb: str, npmlm: CommandLine) -> None:
    expected = npmlm(verb, "--help")
    assert expected.status == 0
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


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["fil", "index=i"], "did you mean 'fill'?"),
        (["help", "trian"], "did you mean 'train'?"),
        (["fill", "index=i", "retreival=bm25"], "did you mean retrieval=?"),
        (["build", "index=i", "files=a.jsonl"], "did you mean corpus.files=?"),
        (["fill", "index=i", "retrieval=DENSE"], "retrieval must be 'dense', 'bm25'"),
        (["fill", "index=i", "scoring=referense"], "did you mean 'reference'?"),
    ],
)
def test_a_misspelt_verb_setting_or_choice_is_answered_with_the_right_one(
    command: list[str], hint: str, npmlm: CommandLine
) -> None:
    npmlm(*command).refused(hint)


@pytest.mark.parametrize(
    ("command", "expected", "got"),
    [
        (["fill", "index=i", "retrieval=lexical"], "'dense', 'bm25', 'blocks' or 'hybrid'", "lexical"),
        (["evaluate", "out=o", "suite=x"], "'closed', 'open' or 'all'", "x"),
        (["fill", "index=i", "k=many"], "a valid integer", "many"),
        (["fill", "index=i", "k=(1"], "a valid integer", "(1"),
        (["train", "run=r", "schedule.learning_rate=fast"], "a valid number", "fast"),
        (["compact", "index=i", "retrain=2"], "a valid boolean", "2"),
        (["compact", "index=i", "retrain=null"], "a valid boolean", "null"),
        (["tune", "index=i", "queries=1,2"], "a valid integer", "1,2"),
    ],
)
def test_a_wrong_value_is_refused_with_what_it_may_be(
    command: list[str], expected: str, got: str, npmlm: CommandLine
) -> None:
    npmlm(*command).refused(f"{command[-1].partition('=')[0]} must be {expected}", f"got {got}")


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


@pytest.mark.parametrize("mark", ["~", "+"])
def test_settings_are_set_not_deleted_or_appended(mark: str, npmlm: CommandLine) -> None:
    npmlm("fill", "index=i", f"{mark}k=5").refused("did you mean k=?")


@pytest.mark.parametrize("files", ["", "[]", "[a.jsonl,,b.jsonl]", "['']"])
def test_an_empty_list_of_files_or_an_empty_entry_is_refused(files: str, npmlm: CommandLine) -> None:
    npmlm("build", "index=i", f"corpus.files={files}").refused("corpus.files is empty")


@pytest.mark.parametrize("setting", ["ids=[\udcff]", "index=\udcff", "ids_file=\udcff"])
def test_bytes_that_are_no_utf8_are_refused(setting: str, npmlm: CommandLine, built_index: Path) -> None:
    index = [] if setting.startswith("index") else [f"index={built_index}"]
    npmlm("delete", *index, setting).refused("UTF-8", r"\udcff")


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
    for command in (inspect, ("--help",)):
        with Path("/dev/full").open("wb") as full:
            command_with(full.fileno(), *command).refused("standard output", "No space left")
        command_with(None, *command).refused("standard output is closed")
    outcome = command_with(subprocess.DEVNULL, *inspect, PYTHONIOENCODING="ascii:strict")
    outcome.refused("PYTHONIOENCODING=utf-8")


@pytest.mark.parametrize("error", [MemoryError("8.0 TiB"), OSError(errno.EMFILE, os.strerror(errno.EMFILE), "x.so")])
def test_what_the_system_refuses_is_one_message(
    error: Exception, npmlm: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object) -> int:
        raise error

    monkeypatch.setitem(DECLARED, "inspect", dataclasses.replace(find_verb("inspect"), run=run))
    npmlm("inspect", "index=i").refused("8.0 TiB" if isinstance(error, MemoryError) else "Too many open files")


def test_the_package_runs_as_a_module() -> None:
    assert run_subprocess(sys.executable, "-m", "npm", "--version").out.startswith("npmlm ")


LIMITED = """
import resource, sys
from npm.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sys.exit(main(sys.argv[1:]))
"""


def test_a_file_that_may_not_grow_is_one_message(built_index: Path, tmp_path: Path) -> None:
    more = write_corpus(tmp_path / "more.jsonl", [{**DOCUMENTS[0], "id": "more"}])
    folder = shutil.copytree(built_index, tmp_path / "index")
    done = run_subprocess(sys.executable, "-c", LIMITED, "add", f"index={folder}", f"corpus.files={more}")
    assert done.refused()


def test_a_null_character_in_a_path_is_one_message(npmlm: CommandLine) -> None:
    npmlm("inspect", "index=a\0b").refused("index")


@pytest.mark.parametrize(
    "command",
    [
        ["delete", "index=i", "ids_file=PIPE"],
        ["fill", "index=i", "texts=/dev/zero"],
        ["build", "index=i", "corpus.files=[PIPE]"],
        ["train", "run=r", "experiment=PIPE"],
        ["evaluate", "out=o", "index=i", "task=PIPE"],
    ],
)
def test_special_files_are_refused(command: list[str], npmlm: CommandLine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    *first, last = command
    npmlm(*first, last.replace("PIPE", str(tmp_path / "pipe.yaml"))).refused(last.partition("=")[0])


def test_a_file_of_settings_that_does_not_exist(npmlm: CommandLine) -> None:
    assert "Errno" not in npmlm("edit", "encoder=a", "out=o", "edit=absent.yaml").refused("cannot read absent.yaml")


@pytest.mark.parametrize("setting", ["corpus.max_documents=9223372036854775808", f"corpus.max_documents=-{'9' * 5000}"])
def test_numbers_beyond_64_bits_are_refused(setting: str, npmlm: CommandLine) -> None:
    npmlm("build", "index=i", "corpus.files=[a.jsonl]", setting).refused(setting.partition("=")[0])

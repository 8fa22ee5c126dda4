"""The prompt of `npmlm fill`: its commands, its history, completion, and a real process on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input

from npm import PhraseFiller
from npm.cli.answer import FillCommand
from npm.cli.prompt import COMMANDS, Prompt, Words, all_phrases
from npm.cli.settings import compose_settings
from npm.core.errors import QueryError, SettingError, UserError
from npm.core.types import Filling, JointAnswer, MaskPhrases, Phrase
from tests.helpers.command_line import DOCUMENTS, QUESTION, QUIET, REPOSITORY, CommandLine, Outcome

COMPOSE = partial(compose_settings, "fill")
PARIS = "<mask> is the capital of France."
PROMPT_BEGINS = "\x1b[?2004h"
"""Sent once the terminal passes each key on: until then Ctrl-C is a signal."""


@pytest.fixture(scope="module")
def filler(built_index: Path) -> Iterator[PhraseFiller]:
    with PhraseFiller.open(built_index) as opened:
        yield opened


@pytest.fixture
def prompt(filler: PhraseFiller) -> Prompt:
    filler.settings = FillCommand()
    return Prompt(filler, "json", COMPOSE)


def taken(prompt: Prompt, capsys: pytest.CaptureFixture[str], *lines: str) -> tuple[str, str]:
    """What the last of `lines` wrote on stdout and on stderr."""
    for line in lines:
        capsys.readouterr()
        prompt.take(line)
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_commands_change_how_the_next_text_is_answered(prompt: Prompt, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = taken(prompt, capsys, "k = 2", "retrieval=dense", "documents=norway", QUESTION)
    phrases = json.loads(out)["phrases"]
    assert len(phrases) == 2
    assert {place["document"] for phrase in phrases for place in phrase["occurrences"]} == {"norway"}
    out, err = taken(prompt, capsys, "documents=null", ":settings")
    assert out == "" and "documents=null\n" in err and "retrieval=dense\n" in err and "k=2\n" in err
    assert "generation 0" in err
    assert "bm25_blocks" not in err  # as by default
    out, err = taken(prompt, capsys, "documents=[norway,'iceland']", "bm25_blocks=7", "scoring=reference", ":settings")
    assert 'documents=["norway", "iceland"]\n' in err and "bm25_blocks=7\n" in err and "scoring" not in err


@pytest.mark.parametrize(
    ("line", "kind", "parts"),
    [
        ("k=many", SettingError, ["k must be", "many"]),
        ("where=lang=en", SettingError, ["kept field"]),
        ("documents=nowhere", QueryError, ["nowhere"]),
        (":more", QueryError, ["requires an answer"]),
        (":jsn", SettingError, ["did you mean ':json'?"]),
        ("bogus=3", SettingError, ["unknown setting bogus"]),
        ("<mask>" * 9, QueryError, ["got 9"]),
        *((line, SettingError, []) for line in (":more x", ":more 1 2", ":more -1", ":open 1 99", ":json 3")),
    ],
)
def test_a_mistake_is_one_message_and_changes_nothing(
    line: str, kind: type[UserError], parts: list[str], prompt: Prompt, capsys: pytest.CaptureFixture[str]
) -> None:
    if not parts:
        prompt.take(QUESTION)
    before = taken(prompt, capsys, ":settings")
    with pytest.raises(kind) as caught:
        prompt.take(line)
    for part in parts:
        assert part in str(caught.value)
    assert prompt.is_open
    assert taken(prompt, capsys, ":settings") == before


def test_more_shows_all_places_of_a_phrase(prompt: Prompt, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = taken(prompt, capsys, "occurrences=1", "retrieval=dense", "k=30", PARIS)
    phrases = json.loads(out)["phrases"]
    number = next(at for at, phrase in enumerate(phrases, start=1) if phrase["phrase"] == "Paris")
    assert (phrases[number - 1]["occurrence_count"], len(phrases[number - 1]["occurrences"])) == (2, 1)
    out, _ = taken(prompt, capsys, "k=1", f":more {number}")  # of the answer, not of the settings of now
    assert out.splitlines()[0].split() == ["Paris", "2", "places", "found"]
    assert "  1  France (france)" in out and "  2  France (france)" in out
    assert out.count("«Paris»") == 2
    assert prompt.filler.settings.k == 1


def test_open_shows_the_document_around_the_phrase(prompt: Prompt, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = taken(prompt, capsys, "k=30", "documents=[iceland]", QUESTION)
    phrases = [phrase["phrase"] for phrase in json.loads(out)["phrases"]]
    out, _ = taken(prompt, capsys, f":open {phrases.index('Faxaflói') + 1}")
    text = DOCUMENTS[0]["text"]
    start = text.index("Faxaflói")
    assert f"Iceland (iceland), characters {start} to {start + 8}" in out
    assert " ".join(out.split("\n\n")[1].split()) == text.replace("Faxaflói", "«Faxaflói»")


def test_lines_with_a_mask_are_texts(prompt: Prompt, capsys: pytest.CaptureFixture[str]) -> None:
    for text in (":k <mask>", "k=3 <mask>", f"  {QUESTION}"):
        assert json.loads(taken(prompt, capsys, text)[0])["text"] == text
    assert json.loads(taken(prompt, capsys, ":json")[0])["text"] == f"  {QUESTION}"
    assert all(usage in taken(prompt, capsys, "help")[1] for usage in COMMANDS)
    assert taken(prompt, capsys, "   ") == ("", "")
    prompt.take(" quit ")
    assert not prompt.is_open


def test_phrases_of_several_masks_are_counted_through() -> None:
    masks = (MaskPhrases((Phrase("a", 0.5, 1, ()),)), MaskPhrases((Phrase("b", 0.25, 1, ()),)))
    joint = JointAnswer("<mask> <mask>", (), masks=masks, fillings=(Filling(("a", "b"), 0.125),))
    assert [phrase.phrase for phrase in all_phrases(joint)] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (":", [usage.split()[0] for usage in COMMANDS]),
        ("retrieval=d", ["retrieval=dense"]),
        ("where=l", ["where=lang"]),
        ("bm25_", ["bm25_blocks="]),
        ("The <", ["<mask>"]),
        ("The k", []),
        ("", []),
    ],
)
def test_tab_completes_commands_settings_fields_and_the_mask(line: str, words: list[str]) -> None:
    found = Words(["lang", "year"]).get_completions(Document(line), CompleteEvent())
    assert [each.text for each in found] == words


def _take_terminal() -> None:
    """In a new process: the terminal is its own, and an interrupt ends it, also where tests run in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A process of `npmlm` on a pseudo-terminal of 80 columns."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        quiet = QUIET | {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "npm", "fill", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=REPOSITORY,
            env={**os.environ, **quiet, **variables},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self.shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        os.close(self._ours)

    def type(self, keys: str, until: str) -> str:
        """Press keys; what is shown from then on, until `until` is, or the process ends."""
        os.write(self._ours, keys.encode())
        return self.read(until)

    def read(self, until: str, *, most_seconds: float = 240) -> str:
        shown, end = b"", time.monotonic() + most_seconds
        while time.monotonic() < end and until not in shown.decode(errors="replace"):
            if not select.select([self._ours], [], [], 1)[0]:
                continue
            try:
                shown += os.read(self._ours, 1 << 16)
            except OSError:  # the process is gone
                break
        return shown.decode(errors="replace")


def test_a_real_process_on_a_terminal_has_history_completion_and_commands(built_index: Path, tmp_path: Path) -> None:
    history = tmp_path / "npmlm" / "history"
    with Terminal(f"index={built_index}", "k=2", XDG_STATE_HOME=str(tmp_path)) as terminal:
        assert "loading the encoder…" in terminal.read(PROMPT_BEGINS)
        assert "ask>" in terminal.type("The capital of Iceland is <m\t", "ask>")
        assert "(iceland)" in terminal.type(".\r", PROMPT_BEGINS)
        assert "did you mean ':more'?" in terminal.type(":moer\r", PROMPT_BEGINS)
        assert "en" in terminal.type(":op\t", "en")
        assert "characters " in terminal.type(" 1\r", PROMPT_BEGINS)  # before it an interrupt would end the process
        terminal.type("half a li\x03", PROMPT_BEGINS)
        assert "(iceland)" in terminal.type("\x10\x10\x10\r", PROMPT_BEGINS)  # Ctrl-P: three lines ago
        os.write(terminal._ours, b":quit\r")
        assert terminal.process.wait(30) == 0
    lines = [line[1:] for line in history.read_text(encoding="utf-8").splitlines() if line.startswith("+")]
    assert lines == [QUESTION, ":moer", ":open 1", QUESTION, ":quit"]
    assert stat.S_IMODE(history.stat().st_mode) == 0o600 and stat.S_IMODE(history.parent.stat().st_mode) == 0o700


@pytest.fixture
def typed(npmlm: CommandLine, built_index: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Runs the prompt with lines from the keyboard, and then the end of input."""

    class Terminal:
        """Standard input that says it is one."""

        def isatty(self) -> bool:
            return True

    def run(*lines: str, settings: tuple[str, ...] = ()) -> Outcome:
        monkeypatch.setattr(sys, "stdin", Terminal())
        with create_pipe_input() as keyboard, create_app_session(input=keyboard):
            keyboard.send_text("".join(line if line.startswith("\x03") else f"{line}\r" for line in lines) + "\x04")
            return npmlm("fill", f"index={built_index}", "output=json", *settings)

    return run


def test_a_prompt_stays_open_after_a_mistake(typed: Callable[..., Outcome]) -> None:
    outcome = typed("<mask>" * 9, "", QUESTION, "\x03", QUESTION)
    assert outcome.status == 0
    assert [answer["text"] for answer in outcome.answers()] == [QUESTION, QUESTION]
    assert "got 9" in outcome.err


@pytest.mark.parametrize("kind", ["folder", "pipe", "file in the way"])
def test_history_that_cannot_be_kept_is_noted_once_and_none_is_kept_where_none_is_wanted(
    kind: str, typed: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert "not kept" not in typed("quit", settings=("history=false",)).err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "npmlm").mkdir()
    if kind == "folder":
        (tmp_path / "npmlm" / "history").mkdir()
    elif kind == "pipe":
        os.mkfifo(tmp_path / "npmlm" / "history")
    else:
        (tmp_path / "npmlm").rmdir()
        (tmp_path / "npmlm").write_text("")
    err = typed("k=3", "k=4").err
    assert err.count("what is typed is not kept") == err.count("history=false") == 1

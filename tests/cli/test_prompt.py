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
from pathlib import Path

import pytest

from npm import PhraseFiller
from npm.cli.commands import FillCommand, Output
from npm.cli.main import main
from npm.cli.prompt import COMMANDS, Prompt, all_phrases, completions
from npm.cli.user_files import MOST_HISTORY_BYTES, MOST_HISTORY_LINES, History
from npm.core.display import ranked_phrases
from npm.core.errors import QueryError, SettingError, UserError
from npm.core.types import Answer, Filling, JointAnswer, MaskPhrases, Phrase
from tests.helpers.command_line import DOCUMENTS, QUESTION, REPOSITORY, CommandLine, Outcome, write_corpus

PARIS = "<mask> is the capital of France."


@pytest.fixture(scope="module")
def filler(built_index: Path) -> Iterator[PhraseFiller]:
    with PhraseFiller.open(built_index) as opened:
        yield opened


@pytest.fixture
def prompt(filler: PhraseFiller, built_index: Path) -> Prompt:
    settings = FillCommand(index=str(built_index), output=Output.json)
    filler.settings = FillCommand()
    return Prompt(filler, settings)


def taken(prompt: Prompt, capsys: pytest.CaptureFixture[str], *lines: str) -> tuple[str, str]:
    """What the last of `lines` wrote on stdout and on stderr."""
    for line in lines:
        capsys.readouterr()
        prompt.take(line)
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_commands_change_how_the_next_text_is_answered(prompt: Prompt, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = taken(prompt, capsys, ":k 2", ":mode dense", ":documents norway", QUESTION)
    phrases = json.loads(out)["phrases"]
    assert len(phrases) == 2
    assert {place["document"] for phrase in phrases for place in phrase["occurrences"]} == {"norway"}
    out, err = taken(prompt, capsys, ":documents", ":settings")
    assert out == "" and "documents=null\n" in err and "retrieval=dense\n" in err and "k=2\n" in err
    assert "generation 0" in err
    assert "bm25_blocks" not in err  # as by default
    out, err = taken(prompt, capsys, "documents=[norway,'iceland']", "bm25_blocks=7", "scoring=reference", ":settings")
    assert "documents=[norway,iceland]\n" in err and "bm25_blocks=7\n" in err and "scoring" not in err


@pytest.mark.parametrize(
    ("line", "kind", "parts"),
    [
        (":k", SettingError, ["k must be"]),
        (":k many", SettingError, ["k must be", "many"]),
        (":k 0", SettingError, ["k must be", "at least 1"]),
        (":mode DENSE", SettingError, ["did you mean dense?"]),
        (":where lang=en", SettingError, ["kept field"]),
        (":where nonsense", SettingError, ["nonsense"]),
        (":documents nowhere", QueryError, ["nowhere"]),
        (":more", QueryError, ["requires an answer"]),
        (":open", QueryError, ["requires an answer"]),
        (":compare", QueryError, ["requires an answer"]),
        (":json", QueryError, ["requires an answer"]),
        (":jsn", SettingError, ["did you mean ':json'?"]),
        (":", SettingError, ["unknown command"]),
        ("bogus=3", SettingError, ["unknown setting bogus"]),
        ("no gap", QueryError, ["<mask>", "no gap"]),
    ],
)
def test_a_mistake_is_one_message_and_changes_nothing(
    line: str, kind: type[UserError], parts: list[str], prompt: Prompt, capsys: pytest.CaptureFixture[str]
) -> None:
    before = taken(prompt, capsys, ":settings")
    with pytest.raises(kind) as caught:
        prompt.take(line)
    for part in parts:
        assert part in str(caught.value)
    assert prompt.is_open
    assert taken(prompt, capsys, ":settings") == before


def test_where_answers_from_documents_with_a_kept_field_until_it_is_typed_alone(
    tiny_encoder_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", [{**item, "lang": item["id"][:1]} for item in DOCUMENTS])
    build = [f"corpus.files={corpus}", f"index={tmp_path / 'index'}", f"encoder={tiny_encoder_folder}"]
    assert main(["build", *build, "copy_encoder=true", "corpus.kept_fields=[lang]", "blocks.max_block_tokens=64"]) == 0
    with PhraseFiller.open(tmp_path / "index") as opened:
        prompt = Prompt(opened, FillCommand(output=Output.json))
        out, _ = taken(prompt, capsys, ":mode dense", ":k 50", ":where lang=n", QUESTION)
        assert {place["document"] for phrase in json.loads(out)["phrases"] for place in phrase["occurrences"]} == {
            "norway"
        }
        out, _ = taken(prompt, capsys, ":where", QUESTION)
        assert len({place["document"] for each in json.loads(out)["phrases"] for place in each["occurrences"]}) > 2
        with pytest.raises(QueryError, match="no document is left"):
            prompt.take(":where [lang=n,lang=i]")


@pytest.mark.parametrize("line", [":more x", ":more 1 2", ":more -1", ":open 0", ":open 99", ":open 1 99", ":json 3"])
def test_a_number_that_nothing_has_is_refused(line: str, prompt: Prompt) -> None:
    prompt.take(QUESTION)
    with pytest.raises(SettingError):
        prompt.take(line)


def test_more_shows_all_places_of_a_phrase_whatever_the_answer_showed(
    prompt: Prompt, capsys: pytest.CaptureFixture[str]
) -> None:
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


@pytest.mark.parametrize("columns", ["100", "30"])
def test_compare_answers_the_last_text_by_three_kinds_of_retrieval_and_fits_the_terminal(
    columns: str, prompt: Prompt, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out, _ = taken(prompt, capsys, "k=3", QUESTION, ":compare")
    assert max(map(len, out.splitlines())) <= int(columns)
    assert out.split()[0] == "hybrid" and "bm25" in out and "dense" in out
    for retrieval in ("hybrid", "bm25", "dense"):
        best = prompt.filler.fill(QUESTION, k=3, retrieval=retrieval).phrases[0]
        assert f"{best.score:.3f}  {best.phrase.split()[0]}" in out


def test_json_is_the_last_answer_whatever_the_output(
    filler: PhraseFiller, capsys: pytest.CaptureFixture[str], built_index: Path
) -> None:
    prompt = Prompt(filler, FillCommand(index=str(built_index)))
    out, _ = taken(prompt, capsys, QUESTION, ":json")
    assert json.loads(out)["text"] == QUESTION


def test_a_line_with_a_mask_is_a_text_and_words_without_a_colon_work_as_before(
    prompt: Prompt, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in (":k <mask>", "k=3 <mask>", f"  {QUESTION}"):
        assert json.loads(taken(prompt, capsys, text)[0])["text"] == text
    assert all(command.usage in taken(prompt, capsys, "help")[1] for command in COMMANDS.values())
    assert taken(prompt, capsys, "   ") == ("", "")
    prompt.take(" EXIT ")
    assert not prompt.is_open


def test_phrases_of_several_masks_are_counted_through_and_compared_by_filling() -> None:
    masks = (MaskPhrases((Phrase("a", 0.5, 1, ()),)), MaskPhrases((Phrase("b", 0.25, 1, ()),)))
    joint = JointAnswer("<mask> <mask>", (), masks=masks, fillings=(Filling(("a", "b"), 0.125),))
    assert [phrase.phrase for phrase in all_phrases(joint)] == ["a", "b"]
    assert ranked_phrases(joint) == ["0.125  a / b"]
    assert ranked_phrases(Answer("<mask>", ())) == ["no phrase found"]


def test_completion_knows_commands_what_follows_them_and_the_mask() -> None:
    assert completions(":", ":", []) == sorted(f":{name} " for name in COMMANDS)
    assert completions(":mode ", "", []) == ["blocks", "bm25", "dense", "hybrid"]
    assert completions(":where l", "l", ["lang", "year"]) == ["lang="]
    assert completions("The <", "<", []) == ["<mask>"]
    assert completions("The capital", "capital", ["capital"]) == []


def test_history_is_the_users_alone_and_goes_on_with_the_next_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "state" / "npmlm" / "history"
    first, other = History(), History()
    assert first.lines() == [] and other.lines() == []
    for line in (QUESTION, QUESTION, "  ", "x" * 5000, "Łódź 😀"):
        first.add(line)
    other.add("of another prompt")
    assert file.read_text(encoding="utf-8") == f"{QUESTION}\nŁódź 😀\nof another prompt\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    file.chmod(0o644)
    file.write_bytes(file.read_bytes() + b"\x1b[31m\nnot \xff whole\ncut off")
    assert History().lines() == [QUESTION, "Łódź 😀", "of another prompt", "not \ufffd whole"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_history_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "npmlm" / "history"
    file.parent.mkdir()
    file.write_text("".join(f"line {number}\n" for number in range(2 * MOST_HISTORY_LINES)))
    expected = [f"line {number}" for number in range(MOST_HISTORY_LINES, 2 * MOST_HISTORY_LINES)]
    assert History().lines() == expected
    assert file.read_text().count("\n") == 2 * MOST_HISTORY_LINES  # cut once it is twice as long
    History().add("one more")
    assert History().lines() == [*expected[1:], "one more"]
    assert file.read_text().splitlines() == [*expected[1:], "one more"]
    file.write_text("x" * MOST_HISTORY_BYTES + "\nlast\n")
    assert History().lines() == ["last"]
    assert file.read_text() == "last\n"


@pytest.mark.parametrize("kind", ["folder", "pipe", "file in the way", "no home"])
def test_history_that_cannot_be_kept_is_noted_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "npmlm").mkdir()
    if kind == "folder":
        (tmp_path / "npmlm" / "history").mkdir()
    elif kind == "pipe":
        os.mkfifo(tmp_path / "npmlm" / "history")
    elif kind == "file in the way":
        (tmp_path / "npmlm").rmdir()
        (tmp_path / "npmlm").write_text("")
    else:
        monkeypatch.setenv("XDG_STATE_HOME", "relative/does-not-count")
        monkeypatch.setenv("HOME", "")
    history = History()
    assert history.lines() == []
    history.add("a")
    history.add("b")
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "what is typed is not kept" in err and "history=false" in err


def _take_terminal() -> None:
    """In a new process: the terminal is its own, and an interrupt ends it, also where tests run in the background."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A process of `npmlm` on a pseudo-terminal of 80 columns."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TERM": "dumb"}
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

    def type(self, keys: str, until: str | None = "\n> ", *, most_seconds: float = 240) -> str:
        """Press keys; what is shown from then on, until `until` ends it, or the process ends."""
        os.write(self._ours, keys.encode())
        return self.read(until, most_seconds=most_seconds)

    def interrupt(self) -> str:
        """Press Ctrl-C until a new line is asked for: readline does not see one that comes between two letters."""
        shown = ""
        for _ in range(16):
            shown += self.type("\x03", most_seconds=15)
            if shown.endswith("\n> "):
                break
        return shown

    def read(self, until: str | None = "\n> ", *, most_seconds: float = 240) -> str:
        shown, end = b"", time.monotonic() + most_seconds
        while time.monotonic() < end:
            if not select.select([self._ours], [], [], 1)[0]:
                continue
            try:
                shown += os.read(self._ours, 1 << 16)
            except OSError:  # the process is gone
                break
            if until is not None and _lines(shown).endswith(until):
                break
        self.shown += _lines(shown)
        return _lines(shown)


def _lines(shown: bytes) -> str:
    return shown.decode(errors="replace").replace("\r\n", "\n")


def test_a_real_process_on_a_terminal_has_history_completion_and_commands(built_index: Path, tmp_path: Path) -> None:
    history = tmp_path / "npmlm" / "history"
    with Terminal(f"index={built_index}", "k=2", XDG_STATE_HOME=str(tmp_path)) as terminal:
        assert terminal.read().startswith("loading…\nWrite a text with <mask>; :help")
        shown = terminal.type("The capital of Iceland is <m\t.\n")
        assert QUESTION in shown and "where it stands" in shown
        assert "did you mean ':more'?" in terminal.type(":moer\n")
        assert "characters " in terminal.type(":op\t 1\n")
        assert "hybrid" in terminal.type(":compare\n")
        terminal.type("half a li", until="half a li")
        assert "where it stands" not in terminal.interrupt()
        assert "where it stands" in terminal.type("\x10\x10\x10\x10\n")  # Ctrl-P: four lines ago
        terminal.type(":quit\n", until=None)
        assert terminal.process.wait(30) == 0, terminal.shown
    lines = history.read_text(encoding="utf-8").splitlines()
    assert lines[:4] == [QUESTION, ":moer", ":open  1", ":compare"] and lines[-1] == ":quit"
    with Terminal(f"index={built_index}", "k=2", "history=false", XDG_STATE_HOME=str(tmp_path)) as terminal:
        terminal.read()
        terminal.type("quit\n", until=None)
        assert terminal.process.wait(30) == 0, terminal.shown
    assert history.read_text(encoding="utf-8").splitlines() == lines


@pytest.fixture
def typed(npmlm: CommandLine, built_index: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Runs the prompt with lines, or exceptions, from the keyboard, and then the end of input."""

    class Terminal:
        """Standard input that says it is one."""

        def isatty(self) -> bool:
            return True

    def run(*lines: str | BaseException, output: str = "json") -> Outcome:
        left = iter([*lines, EOFError()])

        def next_line(_: str) -> str:
            line = next(left)
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr(sys, "stdin", Terminal())
        monkeypatch.setattr("builtins.input", next_line)
        return npmlm("fill", f"index={built_index}", f"output={output}")

    return run


def test_a_prompt_stays_open_after_a_mistake_and_ends_with_the_input(typed: Callable[..., Outcome]) -> None:
    outcome = typed("no gap", "", QUESTION)
    assert outcome.status == 0
    assert [answer["text"] for answer in outcome.answers()] == [QUESTION]
    assert "got 0" in outcome.err
    assert "Ctrl-D" in outcome.err


def test_a_prompt_says_at_once_that_it_loads_and_does_not_repeat_the_question(typed: Callable[..., Outcome]) -> None:
    outcome = typed(QUESTION, output="table")
    assert outcome.err.startswith("loading…\nWrite a text")
    assert "phrase" in outcome.out and QUESTION not in outcome.out


@pytest.mark.parametrize("word", ["quit", " EXIT "])
def test_a_word_ends_the_prompt(word: str, typed: Callable[..., Outcome]) -> None:
    outcome = typed(word, QUESTION)
    assert (outcome.status, outcome.out) == (0, "")
    assert "got 0" not in outcome.err


def test_help_at_the_prompt_says_what_can_be_typed(typed: Callable[..., Outcome]) -> None:
    err = typed("help").err
    assert "got 0" not in err
    assert all(part in err for part in ("k=3", "documents=null", "quit", "Ctrl-C drops"))


def test_settings_are_changed_at_the_prompt(typed: Callable[..., Outcome]) -> None:
    outcome = typed(
        *("k=2", QUESTION, "k = 1", QUESTION, "documents=[norway]", "k=5", QUESTION, "documents=null", QUESTION),
        *("k=0", "k=many", "device=cpu", "bogus=3", "documents=[]", QUESTION),
    )
    assert outcome.status == 0
    found = [answer["phrases"] for answer in outcome.answers()]
    assert [len(phrases) for phrases in found[:2]] == [2, 1]
    assert {place["document"] for phrase in found[2] for place in phrase["occurrences"]} == {"norway"}
    assert {place["document"] for phrase in found[3] for place in phrase["occurrences"]} > {"norway"}
    assert found[4] == found[3]  # what was refused changed nothing
    for part in ("k=2 from now on", "k must be", "device= is read once", "unknown setting bogus"):
        assert part in outcome.err


def test_an_interruption_drops_the_line_and_a_second_one_ends(typed: Callable[..., Outcome]) -> None:
    outcome = typed(KeyboardInterrupt(), QUESTION, KeyboardInterrupt(), "", KeyboardInterrupt(), QUESTION)
    assert (outcome.status, len(outcome.answers())) == (0, 2)
    outcome = typed(QUESTION, KeyboardInterrupt(), KeyboardInterrupt(), QUESTION)
    assert (outcome.status, len(outcome.answers())) == (130, 1)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """The two ends of a pseudo terminal."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    for end in (ours, theirs):
        os.close(end)


def test_a_real_terminal_gets_a_prompt(
    terminal: tuple[int, int], npmlm: CommandLine, built_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = terminal
    os.write(ours, f"{QUESTION}\n\x04".encode())
    with os.fdopen(os.dup(theirs), encoding="utf-8") as keyboard:
        monkeypatch.setattr(sys, "stdin", keyboard)
        outcome = npmlm("fill", f"index={built_index}")
    assert outcome.status == 0
    assert "where it stands" in outcome.out
    assert "Ctrl-D" in outcome.err


def test_the_prompt_stays_out_of_redirected_answers_and_a_broken_line_does_not_close_it(
    terminal: tuple[int, int], npmlm: CommandLine, built_index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = terminal
    os.write(ours, b"<mask> \xff\n" + f"{QUESTION}\n\x04".encode())
    with os.fdopen(os.dup(theirs), encoding="utf-8") as keyboard:
        monkeypatch.setattr(sys, "stdin", keyboard)
        outcome = npmlm("fill", f"index={built_index}", "output=json")
    assert outcome.status == 0, outcome.err
    assert [answer["text"] for answer in outcome.answers()] == [QUESTION]  # every line of stdout is an answer
    assert outcome.err.count("> ") == 3
    assert "byte 0xff at place 7" in outcome.err


def test_sentences_are_shown_at_the_prompt_as_by_the_command(
    filler: PhraseFiller, built_index: Path, npmlm: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    filler.settings = FillCommand()
    prompt = Prompt(filler, FillCommand(index=str(built_index), output=Output.sentences))
    out, _ = taken(prompt, capsys, QUESTION)
    assert "Reykjavík" in out
    assert out == npmlm("fill", f"index={built_index}", "output=sentences", QUESTION).out
    with pytest.raises(QueryError, match="<mask>"):
        prompt.take(PARIS.replace("France", "<mask>"))

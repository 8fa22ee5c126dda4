"""The prompt of `npmlm fill`: texts are answered, and lines that begin with a colon say what else to do."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from npm.cli.commands import FillCommand, Output
from npm.cli.fill import Asked, not_utf8, open_filler, show_answer
from npm.cli.progress import say
from npm.cli.settings import compose_settings
from npm.cli.user_files import History
from npm.core.display import answer_json, print_comparison, print_passage, print_places, print_sentences
from npm.core.errors import QueryError, SettingError, StorageError, UserError, unknown
from npm.core.settings import as_json, changed_settings
from npm.core.types import MASK_TEXT, Answer, JointAnswer, Phrase
from npm.corpus.markup import shown
from npm.indexing.phrase_index import select
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval

try:  # it changes how `input` reads
    import readline
except ImportError:
    readline = None  # type: ignore[assignment]

SETTING_LINE = re.compile(r"\s*([A-Za-z_][\w.]*)\s*=\s*(.*?)\s*", re.DOTALL)
INTERRUPTED = 130
COMPARED = (Retrieval.hybrid, Retrieval.bm25, Retrieval.dense)
MOST_PLACES = 50
"""Occurrences that :more and :open look through, the best ones."""
CHANGEABLE = [item.name for item in fields(FillSettings) if item.name != "scoring"]
ALWAYS_SHOWN = ("k", "retrieval", "occurrences", "documents", "where")
WORDS = {"quit": ":quit", "exit": ":quit", "help": ":help"}
"""What is understood without a colon too."""
BREAKING = ",'\" "
"""Characters for which an entry of a list is quoted."""


@dataclass(frozen=True, slots=True)
class Done:
    """A text that was answered, and with which settings."""

    answer: Answer
    settings: FillSettings


class Prompt:
    """What a line typed at the prompt does: `take` it."""

    def __init__(self, filler: PhraseFiller, settings: FillCommand) -> None:
        self.filler = filler
        self.is_open = True
        self._output = settings.output
        self._done: Done | None = None

    def take(self, line: str) -> None:
        """Answer a text, or do what a command says. Raises UserError for a mistake, which changes nothing."""
        text = line.strip()
        text = WORDS.get(text.casefold(), text)
        if MASK_TEXT in text:
            self._answer(line)
        elif text.startswith(":"):
            name, _, rest = text[1:].partition(" ")
            if name not in COMMANDS:
                raise unknown("command", f":{name}", [f":{known}" for known in COMMANDS])
            COMMANDS[name].run(self, rest.strip())
        elif setting := SETTING_LINE.fullmatch(text):
            self.change(*setting.groups())
        elif text:
            self._answer(line)

    def change(self, key: str, value: str) -> None:
        """Change a setting of how texts are filled from now on. Raises as the command line and `fill` do."""
        composed = compose_settings("fill", [f"{key}={value}"])
        if key not in CHANGEABLE:
            say(f"{key}= is read once: end, and start npmlm fill with it")
            return
        changed = replace(self.filler.settings, **{key: getattr(composed, key)})
        if key in ("documents", "where"):
            select(self.filler.index, changed.documents, changed.where)  # a mistake is told now, not with each text
        self.filler.settings = changed
        say(f"{key}={value} from now on")

    def more(self, rest: str) -> None:
        """Show the places of a phrase of the last answer."""
        (number,) = _numbers(rest, ":more 2", most=1, usual=(1,))
        print_places(self._phrase(":more", number, places=MOST_PLACES))

    def open(self, rest: str) -> None:
        """Show a place of a phrase of the last answer, by default the best one of the first, in its document."""
        number, place = _numbers(rest, ":open 1 2", most=2, usual=(1, 1))
        phrase = self._phrase(":open", number, places=place)
        if not phrase.occurrences[place - 1 :]:
            raise _no_such("place", place, len(phrase.occurrences))
        occurrence, index = phrase.occurrences[place - 1], self.filler.index
        (found,) = index.store.find_documents([occurrence.document], among=index.live_documents).tolist()
        print_passage(occurrence, shown(index.store.document(found).text))

    def compare(self, rest: str) -> None:
        """Answer the last text by each kind of retrieval."""
        done = self._last(":compare", rest)
        answers = {kind.value: self._ask(done, retrieval=kind) for kind in COMPARED}
        print_comparison(answers)

    def show_json(self, rest: str) -> None:
        """Write the last answer as JSON."""
        sys.stdout.write(answer_json(self._last(":json", rest).answer) + "\n")
        sys.stdout.flush()

    def show_settings(self, _: str) -> None:
        """Say how texts are filled: what is usually chosen, and what else is not as by default."""
        settings = self.filler.settings
        others = changed_settings(settings, FillSettings(), [item.name for item in fields(FillSettings)])
        say(f"index={self.filler.index.folder}, generation {self.filler.index.manifest.generation}")
        for key in dict.fromkeys([*ALWAYS_SHOWN, *others]):
            value: Any = settings
            for name in key.split("."):
                value = getattr(value, name)
            say(f"{key}={_shown(value)}")

    def _answer(self, text: str) -> None:
        _refresh(self.filler)
        settings = replace(self.filler.settings)  # a copy: what is changed later does not belong to this answer
        answer = self.filler.fill(text)
        self._done = Done(answer, settings)
        if self._output is Output.sentences:
            print_sentences(text, *self.filler.sentences([text]))
        else:
            show_answer(self._output, answer, Asked(text), with_text=False)

    def _ask(self, done: Done, **changes: Any) -> Answer:
        """The same text again, with `changes` to the settings of then."""
        present, self.filler.settings = self.filler.settings, replace(done.settings, **changes)
        try:
            return self.filler.fill(done.answer.text)
        finally:
            self.filler.settings = present

    def _last(self, command: str, rest: str = "") -> Done:
        if rest:
            raise SettingError(f"{command} takes nothing after it, got {rest!r}")
        if self._done is None:
            raise QueryError(f"{command} requires an answer: write a text with {MASK_TEXT} first")
        return self._done

    def _phrase(self, command: str, number: int, *, places: int) -> Phrase:
        """A phrase of the last answer, from 1, with as many of its places as there are, up to `places`."""
        done = self._last(command)
        phrases = all_phrases(done.answer)
        if not 1 <= number <= len(phrases):
            raise _no_such("phrase", number, len(phrases))
        phrase = phrases[number - 1]
        if len(phrase.occurrences) >= min(places, phrase.occurrence_count):
            return phrase
        return all_phrases(self._ask(done, occurrences=MOST_PLACES))[number - 1]


def all_phrases(answer: Answer) -> list[Phrase]:
    """The phrases of an answer, best first; of one to several masks those of the first mask, then of the second, …"""
    if isinstance(answer, JointAnswer):
        return [phrase for mask in answer.masks for phrase in mask.phrases]
    return list(answer.phrases)


@dataclass(frozen=True, slots=True)
class PromptCommand:
    """A command of the prompt: what is typed, what it does, in words and in code, given what follows its name."""

    usage: str
    summary: str
    run: Callable[[Prompt, str], None]


def _help(_: Prompt, __: str) -> None:
    say(f"A text with {MASK_TEXT} is answered, such as: The capital of Iceland is {MASK_TEXT}.")
    for command in COMMANDS.values():
        say(f"  {command.usage:<22}{command.summary}")
    say(
        "Any setting of fill can be written as on the command line: k=3, bm25_blocks=10, documents=null (all), …\n"
        f"Tab completes commands, fields and {MASK_TEXT}; Ctrl-C drops a line; quit, exit or Ctrl-D ends."
    )


def _quit(prompt: Prompt, _: str) -> None:
    prompt.is_open = False


COMMANDS = {
    "k": PromptCommand(":k 10", "phrases an answer has", lambda prompt, rest: prompt.change("k", rest)),
    "mode": PromptCommand(
        ":mode dense",
        f"where to look: {', '.join(kind.value for kind in Retrieval)}",
        lambda prompt, rest: prompt.change("retrieval", rest),
    ),
    "where": PromptCommand(
        ":where lang=en",
        "answer from documents with such a field; several: [lang=en,year>=1990]; alone: from all",
        lambda prompt, rest: prompt.change("where", rest or "[]"),
    ),
    "documents": PromptCommand(
        ":documents [ID,ID]",
        "answer from these documents; alone: from all",
        lambda prompt, rest: prompt.change("documents", rest or "null"),
    ),
    "more": PromptCommand(":more 2", "the places of the second phrase of the last answer", Prompt.more),
    "open": PromptCommand(":open 1 2", "the passage of its first phrase, at the second of its places", Prompt.open),
    "compare": PromptCommand(":compare", "the last text by hybrid, bm25 and dense, side by side", Prompt.compare),
    "json": PromptCommand(":json", "the last answer as JSON", Prompt.show_json),
    "settings": PromptCommand(":settings", "how texts are filled now", Prompt.show_settings),
    "help": PromptCommand(":help", "this list", _help),
    "quit": PromptCommand(":quit", "end", _quit),
}


def completions(line: str, word: str, kept_fields: Sequence[str]) -> list[str]:
    """What the last `word` of a `line` typed so far can become.

    >>> completions(":mo", ":mo", []), completions(":mode d", "d", []), completions("It is <m", "<m", [])
    ([':mode ', ':more '], ['dense'], ['<mask>'])
    """
    before = line.removesuffix(word).strip()
    if word.startswith("<"):
        choices = [MASK_TEXT]
    elif before == "" and word.startswith(":"):
        choices = [f":{name} " for name in COMMANDS]
    else:
        choices = {":mode": [kind.value for kind in Retrieval], ":where": [f"{name}=" for name in kept_fields]}.get(
            before, []
        )
    return sorted(choice for choice in choices if choice.startswith(word))


def run_prompt(settings: FillCommand) -> int:
    """Answer one text after the other until the end of input; a mistake does not close the prompt.

    Ctrl-C drops what is typed or answered; a second one after it ends. Returns the exit status.
    """
    filler = open_filler(settings)
    prompt = Prompt(filler, settings)
    history = History() if settings.history else None
    _set_up_readline(history.lines() if history else [], filler.index.manifest.kept_fields)
    say(f"Write a text with {MASK_TEXT}; :help says what else, Ctrl-D ends.")
    interrupted = False
    while prompt.is_open:
        try:
            line = _typed_line()
            interrupted = False
            if readline is not None and line.strip():
                readline.add_history(line)
            if history is not None:
                history.add(line)
            prompt.take(line)
        except EOFError:
            say("")
            return 0
        except KeyboardInterrupt:
            say("")
            if interrupted:
                return INTERRUPTED
            interrupted = True
        except StorageError:  # of standard output: nobody would see the next answer either
            raise
        except UserError as error:
            say(str(error))
    return 0


def _set_up_readline(lines: Sequence[str], kept_fields: Sequence[str]) -> None:
    """Earlier `lines` come back with the arrow keys, and Tab completes; without the library, neither."""
    if readline is None:
        return
    readline.set_auto_history(False)  # it would keep blank lines, and what is read where answers are redirected not
    readline.clear_history()
    for line in lines:
        readline.add_history(line)
    found: list[str] = []

    def complete(word: str, number: int) -> str | None:
        if number == 0:
            found[:] = completions(readline.get_line_buffer()[: readline.get_endidx()], word, kept_fields)
        return found[number] if number < len(found) else None

    readline.set_completer_delims(" \t")
    readline.set_completer(complete)
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")


def _typed_line() -> str:
    """A line from the keyboard. Raises EOFError at the end, QueryError for a line that is not UTF-8."""
    prompt = "> "
    if not sys.stdout.isatty():  # `input` would write the prompt among the answers
        sys.stderr.write(prompt)
        sys.stderr.flush()
        prompt = ""
    try:
        return input(prompt)
    except UnicodeDecodeError as error:
        raise not_utf8(error, "the prompt") from error


def _refresh(filler: PhraseFiller) -> None:
    """Take up the index's present generation; where there is none any more, go on with the one that is open."""
    try:
        if filler.refresh():
            say("note: the index was changed; this is its new generation")
    except UserError as error:
        say(f"note: {error}; the answer is from what was opened before")


def _numbers(rest: str, usage: str, *, most: int, usual: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers after a command, at most `most`, and the `usual` ones for those left out. Raises SettingError."""
    given = rest.split()
    if len(given) > most or not all(re.fullmatch("[0-9]{1,9}", word) and int(word) >= 1 for word in given):
        raise SettingError(f"expected {'a number' if most == 1 else 'numbers'} from 1, as in {usage}, got {rest!r}")
    return (*map(int, given), *usual[len(given) :])


def _no_such(what: str, number: int, count: int) -> SettingError:
    return SettingError(f"no {what} {number}: the answer has {count or 'none'}")


def _shown(value: Any) -> str:
    """A setting as it can be typed."""
    plain = as_json({"value": value})["value"]
    if isinstance(plain, list):
        return f"[{','.join(repr(each) if set(each) & set(BREAKING) else each for each in plain)}]"
    return plain if isinstance(plain, str) else json.dumps(plain)

"""The prompt of `npmlm fill`: texts are answered, settings changed, and lines with a colon are commands."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.output import create_output

from npm.cli.base import Output, say
from npm.cli.cards import answer_json, print_answer, print_passage, print_places, show_answer
from npm.core.errors import QueryError, SettingError, UserError, unknown
from npm.core.files import user_folder
from npm.core.settings import as_json, changed_settings
from npm.core.types import MASK_TEXT, Answer, JointAnswer, Phrase
from npm.corpus.text import without_mask
from npm.indexing.phrase_index import select
from npm.retrieval.answers import occurrence_in
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.queries import MAX_MASKS, Query
from npm.retrieval.settings import FillSettings, Retrieval

SETTING_LINE = re.compile(r"\s*([A-Za-z_][\w.]*)\s*=\s*(.*?)\s*", re.DOTALL)
MOST_PLACES = 50
"""Occurrences that :more and :open look through, the best ones."""
CHANGEABLE = [item.name for item in fields(FillSettings) if item.name != "scoring"]
ALWAYS_SHOWN = ("k", "retrieval", "occurrences", "documents", "where")
COMMANDS = {
    ":more 2": "the places of the second phrase of the last answer",
    ":open 1 2": "the passage of its first phrase, at the second of its places",
    ":candidates": "phrases of the last answer, however small their share",
    ":json": "the last answer as JSON",
    ":settings": "how texts are filled now",
    ":help": "this list",
    ":quit": "end",
}
NAMES = [usage.split()[0] for usage in COMMANDS]

Compose = Callable[[list[str]], FillSettings]


class Prompt:
    """Interpreter of the lines typed at the prompt: `take` runs one."""

    def __init__(self, filler: PhraseFiller, output: Output, compose: Compose) -> None:
        self.filler = filler
        self.is_open = True
        self._output = output
        self._compose = compose
        self._last: tuple[Answer, FillSettings] | None = None  # with which it was made

    def take(self, line: str) -> None:
        """Answer a text, or run a command. Raises UserError for a mistake, which changes nothing."""
        text = line.strip()
        name, _, rest = text.partition(" ")
        if text and MASK_TEXT not in text and (setting := SETTING_LINE.fullmatch(text)):
            self._change(*setting.groups())
        elif MASK_TEXT in text or (text and not text.startswith(":") and text not in ("help", "quit", "exit")):
            self._answer(line)
        elif name in (":quit", "quit", "exit"):
            self.is_open = False
        elif name in (":help", "help"):
            _help()
        elif name == ":settings":
            self._show_settings()
        elif name in (":more", ":open", ":candidates", ":json"):
            self._show_last(name, rest)
        elif text:
            raise unknown("command", name, NAMES)

    def _change(self, key: str, value: str) -> None:
        beside = {"output": self._output, key: value}
        composed = self._compose([f"{name}={each}" for name, each in beside.items()])
        if key not in CHANGEABLE:
            say(f"{key}= is read once: end, and start npmlm fill with it")
            return
        changed = replace(self.filler.settings, **{key: getattr(composed, key)})
        select(self.filler.index, changed.documents, changed.where)  # a mistake is reported now, not with each text
        self.filler.settings = changed
        say(f"{key}={value} from now on")

    def _answer(self, text: str) -> None:
        try:
            if self.filler.refresh():
                say("note: the index was changed; this is its new generation")
        except UserError as error:
            say(f"note: {error}; the answer is from what was opened before")
        query = Query.read(text, max_masks=MAX_MASKS)
        settings, (answer,) = replace(self.filler.settings), self.filler.answers([query])
        self._last = answer, settings
        show_answer(self._output, answer, query, with_text=without_mask(query.text) != without_mask(text))

    def _show_settings(self) -> None:
        settings, index = self.filler.settings, self.filler.index
        say(f"index={index.folder}, generation {index.manifest.generation}")
        others = changed_settings(settings, FillSettings(), CHANGEABLE)
        for key in dict.fromkeys([*ALWAYS_SHOWN, *others]):
            value: Any = as_json({"": getattr(settings, key)})[""]
            say(f"{key}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")

    def _show_last(self, name: str, rest: str) -> None:
        """The places of a phrase of the last answer, the passage around one of them, or all of it as JSON."""
        if self._last is None:
            raise QueryError(f"{name} requires an answer: write a text with {MASK_TEXT} first")
        most = {":more": 1, ":open": 2}.get(name, 0)
        given = [int(word) for word in rest.split() if re.fullmatch("[1-9][0-9]{0,8}", word)]
        if len(given) != len(rest.split()) or len(given) > most:
            raise SettingError(f"{name} takes at most {most} numbers from 1, got {rest!r}")
        if name == ":candidates":
            print_answer(replace(self._last[0], status="ok"), with_text=False)
            return
        if name == ":json":
            sys.stdout.write(answer_json(self._last[0]) + "\n")
            sys.stdout.flush()
            return
        number, place = (*given, *(1, 1)[len(given) :])
        phrase = self._phrase(*self._last, number)
        if name == ":more":
            print_places(phrase)
            return
        if place > len(phrase.occurrences):
            raise SettingError(f"no place {place}: the phrase has {len(phrase.occurrences)}")
        occurrence = phrase.occurrences[place - 1]
        if (found := self.filler.index.document(occurrence.document)) is not None:
            whole = 0, len(found.text)
            print_passage(occurrence_in(found, occurrence.start_char, occurrence.end_char, whole))

    def _phrase(self, answer: Answer, settings: FillSettings, number: int) -> Phrase:
        """A phrase of the last answer, with up to MOST_PLACES of its places."""
        if number > (count := len(all_phrases(answer))):
            raise SettingError(f"no phrase {number}: the answer has {count}")
        present, self.filler.settings = self.filler.settings, replace(settings, occurrences=MOST_PLACES)
        try:
            return all_phrases(self.filler.fill(answer.text))[number - 1]
        finally:
            self.filler.settings = present


def all_phrases(answer: Answer) -> list[Phrase]:
    """The phrases of an answer, best first; of several masks those of the first, then of the second, …"""
    if isinstance(answer, JointAnswer):
        return [phrase for mask in answer.masks for phrase in mask.phrases]
    return list(answer.phrases)


def _help() -> None:
    say(f"A text with {MASK_TEXT} is answered, such as: The capital of Iceland is {MASK_TEXT}.")
    for usage, summary in COMMANDS.items():
        say(f"  {usage:<12}{summary}")
    say(
        "Settings of fill are written as on the command line: k=3, retrieval=dense, where=[lang=en], documents=null\n"
        f"(all), … Tab completes commands, settings and {MASK_TEXT}; Ctrl-C drops a line; quit, exit or Ctrl-D ends."
    )


class Words(Completer):
    """Completes commands, settings, kinds of retrieval, kept fields and the mask."""

    def __init__(self, kept_fields: Sequence[str]) -> None:
        self._first = [*NAMES, *(f"{name}=" for name in CHANGEABLE)]
        self._first += [f"retrieval={kind.value}" for kind in Retrieval]
        self._first += [f"where={name}" for name in kept_fields]

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterable[Completion]:
        """The words that the one before the cursor may become."""
        word = document.get_word_before_cursor(WORD=True)
        is_first = document.text_before_cursor.strip() == word
        for choice in [MASK_TEXT] if word.startswith("<") else self._first if is_first else []:
            if word and choice.startswith(word):
                yield Completion(choice, -len(word))


def run_prompt(filler: PhraseFiller, output: Output, compose: Compose, *, keeps_history: bool) -> int:
    """Answer one text after the other until the end of input; a mistake does not close the prompt.

    Ctrl-C drops what is typed or answered. Returns the exit status.
    """
    prompt = Prompt(filler, output, compose)
    session: PromptSession[str] = PromptSession(
        "> ",
        history=_history() if keeps_history else InMemoryHistory(),
        completer=Words(filler.index.manifest.fields),
        complete_while_typing=False,
        output=create_output(stdout=sys.stderr),  # answers alone go to stdout
    )
    say(f"Write a text with {MASK_TEXT} or a question; :help shows what else, Ctrl-D ends.")
    while prompt.is_open:
        try:
            prompt.take(session.prompt())
        except EOFError:
            break
        except KeyboardInterrupt:
            say("")
        except UserError as error:
            say(str(error))
    return 0


def _history() -> History:
    """History of typed lines, in a file that only its user may read; noted if it cannot be kept."""
    path = user_folder("XDG_STATE_HOME", ".local/state") / "history"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)
        if not path.is_file():  # a pipe would be waited for
            raise FileExistsError(f"{path} is not a file")
    except OSError as error:
        say(f"note: what is typed is not kept: {error}; history=false leaves this note out")
        return InMemoryHistory()
    return FileHistory(str(path))

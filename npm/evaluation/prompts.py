"""Prompts and conditions, filled from an example's row.

A prompt is a jinja2 template with the example's fields in it, one `<mask>`, and no longer than an encoder takes. A
condition, such as `date<={date}`, selects the documents that may answer the example.

A template is text with `{{ field }}` or `{{ field | filter }}`. Filters are those of jinja2 and FILTERS;
`{{ stop }}` is a full stop, unless an answer brings its own end of a sentence (the KAMEL protocol).
"""

from __future__ import annotations

import json
import math
import random
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from npm.core.errors import CorpusError, SettingError
from npm.core.types import MASK_TEXT, MASKS_PER_SPAN
from npm.corpus.conditions import NUMBER, OPERATOR, ORDERS, parse_conditions

if TYPE_CHECKING:
    from npm.models.encoder import Encoder
    from npm.models.stored import StoredModel


STOP = "stop"
_ENDS = (".", "!", "+")


def cloze(template: str, subject: str = "") -> str:
    """A template of LAMA, KAMEL or TempLAMA: [X] or [S] becomes the subject, [Y] or _X_ the mask; Treebank spaces go.

    >>> cloze("[X] is a [Y] by profession .", "Ada Lovelace"), cloze("Where is [S]?", "Dallas")
    ('Ada Lovelace is a <mask> by profession.', 'Where is Dallas?')
    """
    if not subject and re.search(r"\[[XS]\]", template):
        raise ValueError("a subject is required for [X] or [S]: name its column in data.columns.subject")
    places = {"[X]": subject, "[S]": subject, "[Y]": MASK_TEXT, "_X_": MASK_TEXT}
    spaced = template.strip().replace(" .", ".").replace(" ,", ",").replace(" ?", "?")
    return re.sub(r"\[[XSY]\]|_X_", lambda place: places[place.group()], spaced)


def question(text: str) -> str:
    """A question without quotation marks around it, with a question mark.

    >>> question('"who was it"')
    'who was it?'
    """
    quoted = len(text) > 1 and text[0] == text[-1] == '"'
    plain = text[1:-1].strip() if quoted else text
    return plain if plain.endswith("?") else f"{plain}?"


_LETTER_PAIRS, _PAIR_EDITS = re.compile(r"<mask>|(\w)(\w)"), (r"\2\1", r"\2", r"\1\1\2")


def letter_noise(text: str, share: float) -> str:
    """`text` with about `share` of its letters swapped with the next, dropped or doubled; masks and digits stay.

    Drawn by the text itself, so that an example has the same noise whichever others are included.

    >>> letter_noise("The longest river is <mask>.", 0.25)
    'The olgest irver s <mask>.'
    """
    rng = random.Random(text)

    def edited(pair: re.Match[str]) -> str:
        is_kept = not pair[1] or not pair[0].isalpha() or rng.random() >= 2 * share
        return pair[0] if is_kept else pair.expand(rng.choice(_PAIR_EDITS))

    return _LETTER_PAIRS.sub(edited, text)


_BRACKETS = {"-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]", "-lcb-": "{", "-rcb-": "}"}
_CLITIC_ENDS = ("s", "re", "ve", "ll", "d", "m", "t")
_TO_THE_LEFT = re.compile(r"[,;:!?%)\]}…]|\.+|n't|'(?:s|re|ve|ll|d|m|t)", re.IGNORECASE)
"""Tokens without a space before them."""
_TO_THE_RIGHT = re.compile(r"[(\[{$£€]")  # tokens without a space after them
_SPLIT_VERB = re.compile(r"\b(gon|wan|got) (na|ta)\b", re.IGNORECASE)


def detokenize(text: str) -> str:
    """`text` with its Treebank tokens joined: punctuation, brackets, clitics, quotation marks lose a space.

    >>> detokenize("it 's a film ( or is n't it ? ) , they said . . .")
    "it's a film (or isn't it?), they said..."
    >>> detokenize('he called it `` a gem \\'\\' and a " film " -lrb- the critics \\' choice -rrb-')
    'he called it "a gem" and a "film" (the critics\\' choice)'
    """
    written: list[str] = []
    joins = True  # whether the next token follows without a space
    tokens = [_BRACKETS.get(token.lower(), token.replace("\\/", "/").replace("\\*", "*")) for token in text.split()]
    for token, joins_left, joins_right in _with_joins(tokens):
        if not (joins or joins_left):
            written.append(" ")
        written.append(token)
        joins = joins_right
    return _SPLIT_VERB.sub(r"\1\2", "".join(written))


def _with_joins(tokens: Sequence[str]) -> Iterator[tuple[str, bool, bool]]:
    """Each token, whether it joins the one before it, and whether it joins the one after it."""
    in_quotes = in_single_quotes = False
    for number, token in enumerate(tokens):
        following = [later.lower() for later in tokens[number + 1 : number + 3]]
        if token in ("``", "''") or token == '"':
            closes = token == "''" or (token == '"' and in_quotes)
            in_quotes = not closes
            yield '"', closes, not closes
        elif token == "`":
            in_single_quotes = True
            yield "'", False, True
        elif token == "'" and following and following[0] in _CLITIC_ENDS:  # it ' s
            yield token, True, True
        elif token == "'":
            closes = in_single_quotes or "'" not in tokens[number + 1 :]  # a last one alone: the critics ' choice
            in_single_quotes = not closes
            yield token, closes, not closes
        elif token.lower() == "com" and number and tokens[number - 1] == ".":  # example . com
            yield token, True, False
        elif token.lower() == "n" and (following[:1] == ["'t"] or following == ["'", "t"]):  # does n 't
            yield token, True, True
        else:
            yield token, _TO_THE_LEFT.fullmatch(token) is not None, _TO_THE_RIGHT.fullmatch(token) is not None


FILTERS: dict[str, Callable[..., str]] = {
    "cloze": cloze,
    "detokenize": detokenize,
    "final_stop": lambda text: text if not text or text[-1] in string.punctuation else f"{text}.",
    "letter_noise": letter_noise,
    "lower_first": lambda text: text[:1].lower() + text[1:],
    "no_final_punctuation": lambda text: text.rstrip(string.punctuation + string.whitespace),
    "question": question,
}
ENVIRONMENT = ImmutableSandboxedEnvironment(autoescape=False)
ENVIRONMENT.filters |= FILTERS


def names_in(expression: str) -> tuple[str, ...]:
    """The variables of a template, in order of appearance, each once. Raises SettingError for a template that is none.

    >>> names_in("{{ a | lower }}{{ b.c }} {{ a }}")
    ('a', 'b')
    """
    try:
        tree = ENVIRONMENT.parse(expression)
        ENVIRONMENT.from_string(expression)  # unknown filters are known here only
    except jinja2.TemplateError as error:
        raise SettingError(f"invalid template {expression!r}: {error}") from None
    return tuple(dict.fromkeys(node.name for node in tree.find_all(nodes.Name)))


class Template:
    """A compiled template."""

    def __init__(self, text: str) -> None:
        self.fields = tuple(name for name in names_in(text) if name != STOP)
        """The variables that it takes from an example, in order of appearance."""
        self._written: list[str] = []
        self._template = ENVIRONMENT.overlay(finalize=self._note).from_string(text)

    def _note(self, value: Any) -> Any:
        self._written.append(str(value))
        return value

    def render(self, values: Mapping[str, str], answers: Sequence[str] = ()) -> str:
        """The prompt of an example with these fields; runs of spaces become one.

        >>> Template("{{ a | no_final_punctuation }}, {{ b | lower_first }} <mask>").render({"a": "So.", "b": "Yes."})
        'So, yes. <mask>'
        >>> Template("{{ q }} <mask>{{ stop }}").render({"q": "Who?"}, ["J."])
        'Who? <mask>'
        """
        stop = "" if any(answer.endswith(_ENDS) for answer in answers) else "."
        self._written.clear()
        return _spaced(self._template.render({name: values[name].strip() for name in self.fields}, stop=stop)).strip()

    def longest(self, values: Mapping[str, str]) -> str:
        """The longest of an example's fields as it appears in the prompt; "" where all are blank.

        >>> Template("{{ a }}: {{ b | lower_first }} <mask>").longest({"a": "Note", "b": " It  rains. "})
        'it rains.'
        """
        self.render(values)
        return max(map(_spaced, self._written), key=len, default="")

    def empty(self) -> str:
        """The prompt without an example, by whose score PMI divides: `It was <mask>.`"""
        return self.render(dict.fromkeys(self.fields, ""))


def _spaced(text: str) -> str:
    return re.sub(" {2,}", " ", text)


FIELD = re.compile(r"\{(\w+)\}")  # part of a condition that is filled from an example's row
ISO_DATE = re.compile(r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?")
"""A year, a month or a day as ISO 8601 writes it with hyphens."""


def is_templated(condition: str) -> bool:
    """Return True if a condition takes something from each example.

    >>> is_templated("date<={date}"), is_templated("lang=en")
    (True, False)
    """
    return FIELD.search(condition) is not None


def check_conditions(conditions: Sequence[str], *, where: str) -> None:
    """Raise SettingError, naming the setting `where`, for an invalid condition, fields filled."""
    for condition in conditions:
        filled = FIELD.sub("0", condition)
        if re.search(r"[{}]", filled):
            raise SettingError(f"{where}: invalid braces in {condition!r}, expected such as {{column}}")
        try:
            parse_conditions([filled])
        except SettingError as error:
            raise SettingError(f"{where}: invalid condition {condition!r}, expected such as date<={{date}}") from error


def filled_conditions(conditions: Sequence[str], cell: Callable[[str], Any], *, where: str) -> tuple[str, ...]:
    """`conditions` with the values of a row in their fields, which `cell` looks up; `where` names the row in messages.

    A number or ISO date is compared as such, other text only by = and !=. Raises CorpusError for anything else.
    """

    def operand(name: str, condition: str) -> str:
        value = cell(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if is_number or (isinstance(value, str) and (NUMBER.fullmatch(value) or ISO_DATE.fullmatch(value))):
            return str(value)
        found = OPERATOR.search(condition)
        if isinstance(value, str) and not (found and found[0] in ORDERS):
            return json.dumps(value, ensure_ascii=False)
        raise CorpusError(f"{where}: {name!r} must be a number or an ISO date for {condition}, got {value!r:.80}")

    return tuple(
        FIELD.sub(lambda name, own=condition: operand(name[1], own), condition)  # type: ignore[misc]
        for condition in conditions
    )


def prompt_tokens(encoder: Encoder, prompts: Sequence[str]) -> list[int]:
    """Tokens of each prompt with its mask pair and special tokens, at most one more than `encode_masks` makes."""
    halves = [half for prompt in prompts for half in prompt.split(MASK_TEXT)]
    counts = [len(ids) for ids in plain_token_ids(encoder, halves)]
    fixed = MASKS_PER_SPAN + len(encoder.prefix_ids) + len(encoder.suffix_ids)
    return [counts[first] + counts[first + 1] + fixed for first in range(0, len(counts), 2)]


def plain_token_ids(model: StoredModel, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of each text unchanged, without special tokens, also where it spells one."""
    if not texts:
        return []
    ids: list[list[int]] = model.tokenizer(
        list(texts), add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )["input_ids"]
    return ids


def answer_tokens(encoder: Encoder, answers: Sequence[str]) -> list[int]:
    """Tokens of each answer after a space."""
    return [len(ids) for ids in plain_token_ids(encoder, [f" {answer.strip()}" for answer in answers])]


def cut_values(
    encoder: Encoder,
    values: Mapping[str, str],
    render: Callable[[Mapping[str, str]], str],
    *,
    max_tokens: int,
    keep_start: bool,
) -> dict[str, str] | None:
    """`values` with the longest of them truncated at one end to fit; None if the prompt is too long without it.

    `render` makes the prompt of the fields.
    """
    longest = max(values, key=lambda name: len(values[name]))
    words = [match.span() for match in re.finditer(r"\S+", values[longest])]

    def with_words(count: int) -> dict[str, str]:
        kept = words[:count] if keep_start else words[len(words) - count :]
        return {**values, longest: values[longest][kept[0][0] : kept[-1][1]] if kept else ""}

    fitting, too_many = -1, len(words)
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        (count,) = prompt_tokens(encoder, [render(with_words(middle))])
        fitting, too_many = (middle, too_many) if count <= max_tokens else (fitting, middle)
    return with_words(fitting) if fitting >= 0 else None

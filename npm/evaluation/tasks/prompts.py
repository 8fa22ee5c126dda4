"""Prompts: a task's template with an example's fields in it, one `<mask>`, and no longer than an encoder takes.

A template is text with `{field}` or `{field|edit|edit}`; `{{` and `}}` are braces. Edits are the keys of `EDITS`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npm.core.errors import UserError, near
from npm.core.types import MASK_TEXT
from npm.evaluation.tasks.task import Task, TooLong
from npm.masking.rendering import MASKS_PER_SPAN

if TYPE_CHECKING:
    from npm.models.encoder import Encoder
    from npm.models.stored import StoredModel


ANSWERS = "answers"
GOLD_FIELDS = ("label", ANSWERS)
"""What a prompt may not hold, since it is what is asked for."""
STOP_EDIT = "stop"
"""The one edit of `answers`: a full stop, unless an answer brings its own end of a sentence (the KAMEL protocol)."""
_ENDS = (".", "!", "+")


class TemplateError(UserError):
    """A template is not in its form, or the prompt that it makes of an example is not one question."""


def _as_question(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] == '"'
    plain = text[1:-1].strip() if quoted else text
    return plain if plain.endswith("?") else f"{plain}?"


EDITS: dict[str, Callable[[str], str]] = {
    "no_final_punctuation": lambda text: text.rstrip(string.punctuation + string.whitespace),
    # a full stop, unless it ends in punctuation
    "final_stop": lambda text: text if not text or text[-1] in string.punctuation else f"{text}.",
    "question": _as_question,  # without quotation marks around it, with a question mark
    "lower_first": lambda text: text[:1].lower() + text[1:],
}


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a template: text, and the field behind it with its edits; no field at the template's end."""

    text: str
    field: str = ""
    edits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """A template taken apart."""

    parts: tuple[Part, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that it takes from an example, in order of appearance, each once; not the answers."""
        return tuple(dict.fromkeys(part.field for part in self.parts if part.field not in ("", ANSWERS)))

    @property
    def mask_count(self) -> int:
        """How many `<mask>` stand in the template itself."""
        return sum(part.text.count(MASK_TEXT) for part in self.parts)

    def fill(self, values: Mapping[str, str], answers: Sequence[str] = ()) -> str:
        """The prompt of an example with these fields; runs of spaces become one.

        >>> parse_template("{a|no_final_punctuation}, right? <mask>, {b|lower_first}").fill({"a": "So.", "b": "Yes."})
        'So, right? <mask>, yes.'
        >>> parse_template("{q} <mask>{answers|stop}").fill({"q": "Who?"}, ["J."])
        'Who? <mask>'
        """
        pieces: list[str] = []
        for part in self.parts:
            pieces.append(part.text)
            if part.field == ANSWERS:
                pieces.append("" if any(answer.endswith(_ENDS) for answer in answers) else ".")
            elif part.field:
                pieces.append(_edited(part, values))
        return _single_spaced("".join(pieces)).strip()

    def longest(self, values: Mapping[str, str]) -> str:
        """The longest of an example's fields as it stands in the prompt; "" where all are blank.

        >>> parse_template("{a}: {b|lower_first} <mask>").longest({"a": "Note", "b": " It  rains. "})
        'it rains.'
        """
        fields = (_single_spaced(_edited(part, values)) for part in self.parts if part.field not in ("", ANSWERS))
        return max(fields, key=len, default="")

    def is_blank(self, values: Mapping[str, str]) -> bool:
        """Whether the prompt of these fields is that of empty ones.

        >>> template = parse_template("{a|no_final_punctuation} {b} <mask>")
        >>> template.is_blank({"a": " ...", "b": ""}), template.is_blank({"a": "", "b": "x"})
        (True, False)
        """
        return self.fill(values) == self.fill(dict.fromkeys(self.fields, ""))


def _edited(part: Part, values: Mapping[str, str]) -> str:
    value = values[part.field].strip()
    for edit in part.edits:
        value = EDITS[edit](value)
    return value


def _single_spaced(text: str) -> str:
    return re.sub(" {2,}", " ", text)


def parse_template(text: str, *, where: str = "template") -> Template:
    """Take a template apart. Raises TemplateError for braces that do not fit, unknown edits and fields with gold."""
    try:
        pieces = list(string.Formatter().parse(text))
    except ValueError as error:
        raise TemplateError(f"{where}: invalid template {text!r}: {error}; a brace of the text is doubled") from None
    parts: list[Part] = []
    for literal, name, options, conversion in pieces:
        if name is None:
            parts.append(Part(literal))
            continue
        field, *edits = name.split("|")
        if options or conversion or not re.fullmatch(r"\w+", field):
            shown = "{" + name + (f"!{conversion}" if conversion else "") + (f":{options}" if options else "") + "}"
            raise TemplateError(f"{where}: invalid field {shown}, expected such as {{text}} or {{text|edit}}")
        _check_edits(field, edits, where)
        parts.append(Part(literal, field, tuple(edits)))
    return Template(tuple(parts))


def _check_edits(field: str, edits: Sequence[str], where: str) -> None:
    if field in GOLD_FIELDS and not (field == ANSWERS and list(edits) == [STOP_EDIT]):
        raise TemplateError(
            f"{where} shows what is right: take {{{field}}} out, or rename the column in data.columns; only "
            f"{{{ANSWERS}|{STOP_EDIT}}} is allowed"
        )
    for edit in edits if field != ANSWERS else []:
        if edit not in EDITS:
            raise TemplateError(f"{where}: unknown edit {edit!r}: {near(edit, EDITS)}")


def filled_cloze(template: str, subject: str) -> str:
    """A template of LAMA, KAMEL or TempLAMA: [X] or [S] becomes the subject, [Y] or _X_ the mask; Treebank spaces go.

    >>> filled_cloze("[X] is a [Y] by profession .", "Ada Lovelace"), filled_cloze("Where is [S]?", "Dallas")
    ('Ada Lovelace is a <mask> by profession.', 'Where is Dallas?')
    """
    places = {"[X]": subject, "[S]": subject, "[Y]": MASK_TEXT, "_X_": MASK_TEXT}
    spaced = template.strip().replace(" .", ".").replace(" ,", ",").replace(" ?", "?")
    return re.sub(r"\[[XSY]\]|_X_", lambda place: places[place.group()], spaced)


def empty_prompt(task: Task) -> str:
    """The task's template without an example, by whose score PMI divides: `It was <mask>.`"""
    template = parse_template(task.template, where=task.name)
    return template.fill(dict.fromkeys(template.fields, ""))


def prompt_tokens(encoder: Encoder, prompts: Sequence[str]) -> list[int]:
    """Tokens of each prompt with its mask pair and special tokens, at most one more than `encode_masks` makes."""
    halves = [half for prompt in prompts for half in prompt.split(MASK_TEXT)]
    counts = [len(ids) for ids in plain_token_ids(encoder, halves)]
    fixed = MASKS_PER_SPAN + len(encoder.prefix_ids) + len(encoder.suffix_ids)
    return [counts[first] + counts[first + 1] + fixed for first in range(0, len(counts), 2)]


def plain_token_ids(model: StoredModel, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of each text as it stands, without special tokens, also where it spells one."""
    if not texts:
        return []
    ids: list[list[int]] = model.tokenizer(
        list(texts), add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False
    )["input_ids"]
    return ids


def answer_tokens(encoder: Encoder, answers: Sequence[str]) -> list[int]:
    """Tokens of each answer, as it stands behind a space."""
    return [len(ids) for ids in plain_token_ids(encoder, [f" {answer.strip()}" for answer in answers])]


def cut_values(
    encoder: Encoder,
    values: Mapping[str, str],
    render: Callable[[Mapping[str, str]], str],
    *,
    most_tokens: int,
    keep: TooLong,
) -> dict[str, str] | None:
    """`values` with the longest of them cut at one end to as many words as fit; None where even none of them does.

    `render` makes the prompt of the fields; `keep` says which end of the longest field stays.
    """
    longest = max(values, key=lambda name: len(values[name]))
    words = [match.span() for match in re.finditer(r"\S+", values[longest])]
    text = values[longest]

    def with_words(count: int) -> dict[str, str]:
        kept = words[:count] if keep is TooLong.keep_start else words[len(words) - count :]
        return {**values, longest: text[kept[0][0] : kept[-1][1]] if kept else ""}

    fitting, too_many = -1, len(words)
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        (count,) = prompt_tokens(encoder, [render(with_words(middle))])
        fitting, too_many = (middle, too_many) if count <= most_tokens else (fitting, middle)
    return with_words(fitting) if fitting >= 0 else None


_BRACKETS = {"-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]", "-lcb-": "{", "-rcb-": "}"}
_CLITIC_ENDS = ("s", "re", "ve", "ll", "d", "m", "t")
_TO_THE_LEFT = re.compile(r"[,;:!?%)\]}…]|\.+|n't|'(?:s|re|ve|ll|d|m|t)", re.IGNORECASE)
"""Tokens without a space before them."""
_TO_THE_RIGHT = re.compile(r"[(\[{$£€]")
"""Tokens without a space after them."""
_SPLIT_VERB = re.compile(r"\b(gon|wan|got) (na|ta)\b", re.IGNORECASE)


def detokenise(text: str) -> str:
    """`text` with its tokens joined: punctuation, brackets, clitics and quotation marks lose the space before or after.

    >>> detokenise("it 's a film ( or is n't it ? ) , they said . . .")
    "it's a film (or isn't it?), they said..."
    >>> detokenise('he called it `` a gem \\'\\' and a " film " -lrb- the critics \\' choice -rrb-')
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

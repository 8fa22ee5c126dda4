"""Sentences in Treebank tokens, as many published data sets have them, joined again as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

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

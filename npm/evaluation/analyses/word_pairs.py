"""Pairs of sentences that share a word, in one sense or in two: files of WiC, of SuperGLUE, our own form, shipped ones.

WiC: Pilehvar and Camacho-Collados 2019 (arXiv 1808.09121); SuperGLUE: Wang et al. 2019 (arXiv 1905.00537).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from npm.core.errors import CorpusError
from npm.corpus.readers import read_rows

FORMS = ("val.jsonl", "dev.jsonl", "dev/dev.data.txt", "dev.data.txt", "WiC/val.jsonl", "WiC/dev/dev.data.txt")
"""Files of a published folder, the one that is read first; their test parts have no public labels."""
WIC_DATA, WIC_GOLD = ".data.txt", ".gold.txt"
TRUTHS = {"T": True, "F": False, "true": True, "false": False, "1": True, "0": False}
EXAMPLE = (
    '{"word": "bank", "sentence1": "The bank closed.", "start1": 4, "end1": 8, "sentence2": "A river bank.", '
    '"start2": 8, "end2": 12, "same": false}'
)


@dataclass(frozen=True, slots=True)
class WordPlace:
    """A word in a sentence."""

    sentence: str
    start: int
    """In characters; the word is `sentence[start:end]`."""
    end: int


@dataclass(frozen=True, slots=True)
class WordPair:
    """Two places of a word."""

    word: str
    first: WordPlace
    second: WordPlace
    same: bool
    """Whether the word has one sense in both."""


def shipped_pairs() -> list[WordPair]:
    """All pairs of the six sentences of each of twenty English words with two senses: three sentences of each sense."""
    file = Path(__file__).parents[2] / "assets" / "senses" / "english.json"
    pairs: list[WordPair] = []
    for word, senses in json.loads(file.read_text(encoding="utf-8")).items():
        places = [(number, _place_of(word, text)) for number, own in enumerate(senses) for text in own]
        pairs += [WordPair(word, a, b, one == other) for (one, a), (other, b) in combinations(places, 2)]
    return pairs


def _place_of(word: str, sentence: str) -> WordPlace:
    found = re.search(rf"\b{re.escape(word)}\b", sentence)
    assert found is not None, f"{word} is not in {sentence}"
    return WordPlace(sentence, *found.span())


def read_pairs(path: Path) -> list[WordPair]:
    """The pairs of a file, or of a published folder.

    Raises CorpusError for a folder of another form, a file that is not of one of the three forms, and pairs that all
    have the same label.
    """
    if path.is_dir():
        file = next((path / name for name in FORMS if (path / name).is_file()), None)
        if file is None:
            raise CorpusError(f"word_sense.pairs={path} has no {' or '.join(FORMS)}")
        path = file
    elif not path.is_file():
        raise CorpusError(f"word_sense.pairs={path} does not exist")
    pairs = list(_wic_pairs(path) if path.name.endswith(WIC_DATA) else _json_pairs(path))
    if len({pair.same for pair in pairs}) < 2:
        raise _no_pair("pairs of one sense and pairs of two", f"{len(pairs)} of one kind", str(path))
    return pairs


def _json_pairs(path: Path) -> Iterator[WordPair]:
    for line, row in read_rows(path):
        where = f"{path}:{line}"
        same = row.get("same", row.get("label"))
        if not isinstance(same, bool) and str(same) not in TRUTHS:
            raise _no_pair("same: true or false (SuperGLUE: label)", f"{same!r}", where)
        truth = same if isinstance(same, bool) else TRUTHS[str(same)]
        word = row.get("word")
        if not isinstance(word, str) or not word:
            raise _no_pair("the word", f"{word!r}", where)
        yield WordPair(word, _json_place(row, "1", where), _json_place(row, "2", where), truth)


def _json_place(row: Mapping[str, Any], side: str, where: str) -> WordPlace:
    sentence, start, end = (row.get(f"{name}{side}") for name in ("sentence", "start", "end"))
    if isinstance(start, str) and isinstance(end, str) and start.isdecimal() and end.isdecimal():
        start, end = int(start), int(end)  # as in a table, whose cells are text
    if not (isinstance(sentence, str) and isinstance(start, int) and isinstance(end, int)):
        got = f"sentence{side}={sentence!r}, start{side}={start!r}, end{side}={end!r}"
        raise _no_pair("a sentence, and where the word begins and ends in it, in characters", got, where)
    if not (0 <= start < end <= len(sentence) and sentence[start:end].strip()):
        raise _no_pair(f"a place within the {len(sentence)} characters", f"[{start}, {end})", where)
    return WordPlace(sentence, start, end)


def _wic_pairs(path: Path) -> Iterator[WordPair]:
    """Lines of word, part of speech, `i-j` (numbers of the words), and two sentences; labels in a file beside it."""
    gold = path.with_name(path.name.removesuffix(WIC_DATA) + WIC_GOLD)
    if not gold.is_file():
        raise _no_pair(f"the labels in {gold.name} beside it", "no such file", str(path))
    lines, labels = (each.read_text(encoding="utf-8").splitlines() for each in (path, gold))
    if len(lines) != len(labels):
        raise _no_pair(f"a label for each of {len(lines)} lines", f"{len(labels)}", str(gold))
    for number, (line, label) in enumerate(zip(lines, labels, strict=True), start=1):
        where, cells = f"{path}:{number}", line.split("\t")
        places = re.fullmatch(r"(\d+)-(\d+)", cells[2]) if len(cells) == 5 else None
        if places is None or label.strip() not in TRUTHS:
            expected = "word, part of speech, i-j and two sentences between tabs, and T or F in the gold file"
            raise _no_pair(expected, f"{line[:80]!r} and {label!r}", where)
        first, second = (_counted_place(cells[3 + side], int(places[side + 1]), where) for side in (0, 1))
        yield WordPair(cells[0], first, second, TRUTHS[label.strip()])


def _counted_place(sentence: str, number: int, where: str) -> WordPlace:
    """Word `number`, from 0, of a sentence whose words have spaces between them."""
    words = list(re.finditer(r"\S+", sentence))
    if number >= len(words):
        raise _no_pair(f"a number below the {len(words)} words", f"{number}", where)
    return WordPlace(sentence, *words[number].span())


def _no_pair(expected: str, got: str, where: str) -> CorpusError:
    return CorpusError(f"{where}: expected {expected}, got {got[:160]}; a line is such as {EXAMPLE}")

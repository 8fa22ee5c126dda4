"""Dependency trees from CoNLL-U files, the form of Universal Dependencies (Nivre et al. 2020, arXiv 2004.10643, §4).

A word is a line of ten columns; ranges such as 3-4 (a written word that is two words) and empty nodes such as 3.1 are
no nodes of the tree and are passed over. An empty line ends a sentence, lines that begin with # say something about it.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from npm.core.errors import CorpusError
from npm.corpus.readers import read_lines

COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
NO_NODE = re.compile(r"\d+(-\d+|\.\d+)")
ROOT = -1
"""Head of the word that has none."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The words of one sentence in their order: W entries each."""

    lemmas: Sequence[str]
    heads: Sequence[int]  # number of the head from 0; ROOT of exactly one word
    relations: Sequence[str]  # to the head, such as nsubj or obl:mod


def treebank_files(names: Sequence[str]) -> list[Path]:
    """The files that paths and globs name, those of a glob in sorted order. Raises CorpusError if one is not there."""
    files: list[Path] = []
    for name in names:
        found = [Path(name)] if Path(name).is_file() else [Path(each) for each in sorted(glob.glob(name))]  # noqa: PTH207
        if not found:
            raise CorpusError(f"treebank: {name} does not exist")
        files += found
    return files


def read_treebank(files: Sequence[Path]) -> Iterator[Tree]:
    """The trees of CoNLL-U files, also compressed, file by file.

    Raises CorpusError, with file and line, for what is no CoNLL-U and for a sentence whose heads make no tree.
    """
    for path in files:
        rows: list[tuple[str, int, str]] = []  # lemma, head from 1 or 0, relation
        first = number = 0
        found = False
        for number, line in chain(read_lines(path), [(0, "")]):
            if line and not line.isspace():
                if not line.startswith("#") and (row := _row(f"{path}:{number}", line, len(rows) + 1)) is not None:
                    first = first if rows else number
                    rows.append(row)
            elif rows:
                yield _tree(f"{path}:{first}", rows)
                rows, found = [], True
        if not found:
            raise _fault(f"{path}:1", "a sentence", "no word at all")


def _row(where: str, line: str, expected_id: int) -> tuple[str, int, str] | None:
    """Lemma, head and relation of one line; None if it is no node of the tree."""
    cells = line.split("\t")
    if len(cells) != len(COLUMNS):
        raise _fault(where, f"the {len(COLUMNS)} columns {' '.join(COLUMNS)}, with tabs between", f"{len(cells)}")
    identifier, _, lemma, _, _, _, head, relation, _, _ = cells
    if NO_NODE.fullmatch(identifier):
        return None
    if identifier != str(expected_id):
        raise _fault(where, f"ID {expected_id}, the next word of its sentence", f"ID {identifier!r}")
    if not head.isdecimal():
        raise _fault(where, "a HEAD, the number of a word or 0", f"{head!r}")
    if not re.fullmatch(r"[^\s_]\S*", relation):
        raise _fault(where, "a DEPREL, such as nsubj", f"{relation!r}")
    return lemma, int(head), relation


def _tree(where: str, rows: Sequence[tuple[str, int, str]]) -> Tree:
    lemmas, heads, relations = zip(*rows, strict=True)
    sentence = f"the sentence that begins there, of {len(rows)} words"
    if max(heads) > len(rows):
        raise _fault(where, f"heads within {sentence}", f"HEAD {max(heads)}")
    if heads.count(0) != 1:
        raise _fault(where, f"one word with HEAD 0 in {sentence}", f"{heads.count(0)}")
    for word in range(1, len(heads) + 1):
        above = word
        for _ in heads:  # no way to the root is longer
            above = heads[above - 1] if above else 0
        if above:
            raise _fault(where, f"heads that lead to the root in {sentence}", f"word {word} is its own ancestor")
    return Tree(lemmas, tuple(head - 1 for head in heads), relations)


def _fault(where: str, expected: str, got: str) -> CorpusError:
    return CorpusError(f"{where}: not CoNLL-U: expected {expected}, got {got}")

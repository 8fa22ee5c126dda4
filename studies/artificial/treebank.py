"""Dependency trees from CoNLL-U files, the form of Universal Dependencies (Nivre et al. 2020, arXiv 2004.10643, §4).

A word is a line of ten columns; ranges such as 3-4 (a written word that is two words) and empty nodes such as 3.1 are
no nodes of the tree and are skipped. An empty line ends a sentence, lines that begin with # are comments on it.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from npm.core.errors import CorpusError
from npm.corpus.readers import read_lines

COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
NO_NODE = re.compile(r"\d+(-\d+|\.\d+)")
RELATION = re.compile(r"[^\s_]\S*")
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

    Raises CorpusError, with file and line, for text that is not CoNLL-U and for a sentence whose heads make no tree.
    """
    for path in files:
        lines = (each for each in read_lines(path) if not each[1].startswith("#"))
        found = False
        for is_empty, sentence in groupby(lines, lambda each: not each[1].strip()):
            if not is_empty:
                found = True
                yield _tree(path, [*sentence])
        if not found:
            raise CorpusError(f"{path}:1: not CoNLL-U: no word at all; check the file")


def _tree(path: Path, lines: Sequence[tuple[int, str]]) -> Tree:
    rows: list[tuple[str, int, str]] = []  # lemma, head, relation
    for number, line in lines:
        cells = line.split("\t")
        if NO_NODE.fullmatch(cells[0]):
            continue
        is_row = len(cells) == len(COLUMNS) and cells[0] == str(len(rows) + 1) and cells[6].isdecimal()
        if not is_row or not RELATION.fullmatch(cells[7]):
            expected = f"{' '.join(COLUMNS)}, with tabs between, ID {len(rows) + 1}, a number as HEAD, a name as DEPREL"
            raise CorpusError(f"{path}:{number}: not CoNLL-U: expected {expected}, got {line!r:.120}")
        rows.append((cells[2], int(cells[6]) - 1, cells[7]))
    lemmas, heads, relations = zip(*rows, strict=True) if rows else ((), (), ())
    tops, above = [*range(len(heads))], [*heads, ROOT]
    if max(heads, default=0) < len(heads):
        for _ in heads:  # no way to the root is longer
            tops = [above[top] for top in tops]
    if set(tops) != {ROOT} or heads.count(ROOT) != 1:
        fault = "its heads make no tree with one root"
        raise CorpusError(f"{path}:{lines[0][0]}: not CoNLL-U: the sentence that begins there: {fault}")
    return Tree(lemmas, heads, relations)

"""A small treebank, written as CoNLL-U, whose grammar can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

Word = tuple[str, int, str]
"""Lemma, head from 1 or 0, relation."""
BARKS: list[Word] = [("the", 2, "det"), ("Dog", 3, "nsubj"), ("bark", 0, "root"), (".", 3, "punct")]
SEES: list[Word] = [
    ("a", 3, "det"),
    ("small", 3, "amod"),
    ("dog", 4, "nsubj"),
    ("see", 0, "root"),
    ("the", 6, "det"),
    ("cat", 4, "obj"),
]
LIST: list[Word] = [("one", 0, "root"), ("two", 1, "conj"), ("three", 2, "conj")]
"""Half of all words with relation conj have one of their own: sentences end, but may be long."""


def conllu(sentences: Sequence[Sequence[Word]]) -> str:
    """As a file holds it, with a comment, a range and an empty node that are no words."""
    lines: list[str] = []
    for number, sentence in enumerate(sentences):
        lines += [f"# sent_id = {number}", "1-2\tab\t_\t_\t_\t_\t_\t_\t_\t_"]
        for place, (lemma, head, relation) in enumerate(sentence, start=1):
            lines.append(f"{place}\t{lemma}\t{lemma}\tX\t_\t_\t{head}\t{relation}\t_\t_")
        lines += ["3.1\tx\tx\tX\t_\t_\t_\t_\t_\t_", ""]
    return "\n".join(lines) + "\n"


def write_treebank(path: Path, sentences: Sequence[Sequence[Word]] = (BARKS, SEES, LIST)) -> Path:
    """A file of these sentences."""
    path.write_text(conllu(sentences), encoding="utf-8")
    return path

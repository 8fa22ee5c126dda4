"""Reading CoNLL-U: what is a word, and what every fault of a file is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from npm.core.errors import CorpusError
from npm.corpus.artificial.treebank import ROOT, read_treebank, treebank_files
from tests.helpers.treebanks import BARKS, LIST, SEES, conllu, write_treebank


def test_words_are_read_and_ranges_empty_nodes_and_comments_passed_over(tmp_path: Path) -> None:
    trees = list(read_treebank([write_treebank(tmp_path / "a.conllu")]))
    assert [list(zip(tree.lemmas, tree.heads, tree.relations, strict=True)) for tree in trees] == [
        [(lemma, head - 1, relation) for lemma, head, relation in sentence] for sentence in (BARKS, SEES, LIST)
    ]
    assert trees[2].heads[0] == ROOT


def test_a_last_sentence_needs_no_empty_line_and_globs_are_sorted(tmp_path: Path) -> None:
    (tmp_path / "b.conllu").write_text(conllu([LIST]).rstrip("\n"), encoding="utf-8")
    write_treebank(tmp_path / "a.conllu", [SEES])
    files = treebank_files([str(tmp_path / "*.conllu")])
    assert [len(tree.heads) for tree in read_treebank(files)] == [6, 3]
    with pytest.raises(CorpusError, match="does not exist"):
        treebank_files([str(tmp_path / "*.txt")])


ROW = "1\tdog\tdog\tNOUN\t_\t_\t0\troot\t_\t_"


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("The dog barks.\n", 1, "ID FORM LEMMA"),
        (f"{ROW}\n\n# no tabs\n{ROW.replace(chr(9), ' ')}\n", 4, "with tabs between"),
        (f"{ROW}\n{ROW}\n", 2, "ID 2"),
        (ROW.replace("\t0\t", "\t_\t") + "\n", 1, "a number as HEAD"),
        (ROW.replace("root", "_") + "\n", 1, "a name as DEPREL"),
        (ROW.replace("\t0\t", "\t5\t") + "\n", 1, "no tree"),
        (f"\n{ROW}\n2{ROW[1:]}\n", 2, "one root"),
        (conllu([[("a", 0, "root"), ("b", 3, "x"), ("c", 2, "x")]]), 2, "no tree"),
        ("# nothing\n", 1, "no word at all"),
    ],
)
def test_what_is_no_treebank_is_refused_with_its_line(text: str, line: int, part: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.conllu"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(CorpusError, match=f"{file}:{line}: .*{part}"):
        list(read_treebank([file]))

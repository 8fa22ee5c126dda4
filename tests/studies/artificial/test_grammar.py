"""Treebanks as they are read, the grammar of one by hand, what is drawn from it, and the numbers of UD French-GSD."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npm.core.errors import ArtifactError, CorpusError, SettingError
from studies.artificial.grammar import (
    ROOT,
    Grammar,
    GrammarSettings,
    Relation,
    RelationSampler,
    Rule,
    Tree,
    count_grammar,
    read_treebank,
    treebank_files,
)
from tests.studies.treebanks import BARKS, LIST, SEES, Word, conllu, write_treebank

FRENCH = Path(__file__).parents[4] / "shared" / "data" / "treebanks" / "fr_gsd-dev.conllu"


def tree(words: list[Word]) -> Tree:
    lemmas, heads, relations = zip(*words, strict=True)
    return Tree(lemmas, [head - 1 for head in heads], relations)


TREES = [tree(words) for words in (BARKS, SEES, LIST)]


def grammar_of(*trees: Tree, **settings: Any) -> Grammar:
    return count_grammar(trees, GrammarSettings(**settings))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_rules_counts_and_lemmas_are_those_of_the_trees() -> None:
    grammar = grammar_of(*TREES)
    found = {each.name: {(rule.left, rule.right): rule.count for rule in each.rules} for each in grammar.relations}
    assert found == {
        "root": {(("nsubj",), ()): 1, (("nsubj",), ("obj",)): 1, ((), ("conj",)): 1},
        "nsubj": {(("det",), ()): 1, (("det", "amod"), ()): 1},
        "obj": {(("det",), ()): 1},
        "conj": {((), ("conj",)): 1, ((), ()): 1},
        "det": {((), ()): 3},
        "amod": {((), ()): 1},
    }
    assert {each.name: each.lemmas for each in grammar.relations}["nsubj"] == 1  # Dog and dog
    assert (grammar.sentences, grammar.treebank_tokens, grammar.treebank_relations) == (3, 13, 7)
    assert [each.name for each in grammar.relations][:2] == ["det", "root"]


def test_the_expected_length_is_the_mean_length_and_the_radius_is_that_of_the_lists() -> None:
    grammar = grammar_of(*TREES)
    assert grammar.expected_length == pytest.approx((3 + 6 + 3) / 3)
    assert grammar.spectral_radius == pytest.approx(0.5)
    assert grammar_of(*TREES, punctuation=True).expected_length == pytest.approx(13 / 3)


def test_a_node_that_is_not_kept_goes_with_its_subtree_or_alone() -> None:
    words: list[Word] = [("a", 0, "root"), ("b", 1, "rare"), ("c", 2, "child:x"), ("d", 1, "child:y")]
    trees = (tree(words), tree([("e", 0, "root")]))
    subtree = grammar_of(*trees, relations=2, subtypes=False)
    splice = grammar_of(*trees, relations=2, subtypes=False, removed="splice")
    assert (subtree.counts.sum(), splice.counts.sum()) == (3, 4)
    assert Rule((), ("child", "child"), 1) in splice.relations[splice.numbers["root"]].rules
    assert {each.name for each in grammar_of(*trees).relations} == {"root", "rare", "child:x", "child:y"}


def test_sentences_without_their_root_are_dropped() -> None:
    lost = tree([("a", 2, "nsubj"), ("b", 0, "parataxis")])
    crossing = tree([("a", 0, "root"), ("b", 1, "x"), ("c", 1, "y"), ("d", 2, "y")])
    grammar = grammar_of(crossing, crossing, crossing, lost, relations=3)
    assert (grammar.sentences, grammar.dropped_sentences) == (3, 1)
    with pytest.raises(CorpusError, match="keeps its root"):
        grammar_of(lost)


def test_a_tree_comes_out_in_the_order_of_its_words() -> None:
    grammar = grammar_of(tree(SEES))
    drawn, rejected = RelationSampler(grammar, GrammarSettings()).draw(rng())
    assert [grammar.relations[number].name for number in drawn] == ["det", "amod", "nsubj", "root", "det", "obj"]
    assert rejected == []


def test_sentences_have_the_frequencies_of_the_rules() -> None:
    grammar = grammar_of(*TREES)
    sampler, drawn = RelationSampler(grammar, GrammarSettings()), rng()
    names = [each.name for each in grammar.relations]
    sentences = Counter(tuple(names[number] for number in sampler.draw(drawn)[0]) for _ in range(6000))
    expected = {
        ("det", "nsubj", "root"): 1 / 6,
        ("det", "amod", "nsubj", "root"): 1 / 6,
        ("det", "amod", "nsubj", "root", "det", "obj"): 1 / 6,
        ("root", "conj"): 1 / 6,
        ("root", "conj", "conj", "conj"): 1 / 24,
    }
    for sentence, probability in expected.items():
        assert sentences[sentence] / 6000 == pytest.approx(probability, abs=0.02)


def test_longer_sentences_are_rejected_and_none_short_enough_is_an_error() -> None:
    grammar = grammar_of(tree(LIST), tree(SEES))
    sampler, drawn = RelationSampler(grammar, GrammarSettings(max_tokens=3)), rng()
    found = [sampler.draw(drawn) for _ in range(400)]
    assert {len(words) for words, _ in found} == {2, 3}
    assert {length for _, rejected in found for length in rejected} > {4, 5, 6}
    # root by its list 1/2, of which 1/2 + 1/4 are short enough
    assert sum(len(rejected) for _, rejected in found) / 400 == pytest.approx(1 / (1 / 2 * 3 / 4) - 1, abs=0.25)
    with pytest.raises(SettingError, match="max_tokens"):
        RelationSampler(grammar, GrammarSettings(max_tokens=1)).draw(drawn)


def test_a_grammar_goes_through_its_file_and_one_that_lacks_rules_or_an_end_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "grammar.json"
    grammar = grammar_of(*TREES)
    file.write_text(json.dumps(asdict(grammar)), encoding="utf-8")
    assert Grammar.read(file) == grammar
    endless = Grammar((Relation("root", 1, (Rule((), ("root",), 1),)),))
    with pytest.raises(CorpusError, match="need not end"):
        endless.refuse_endless("file")
    file.write_text(json.dumps({"relations": [{"name": "x", "lemmas": 1, "rules": []}]}), encoding="utf-8")
    with pytest.raises(ArtifactError, match="x, root"):
        Grammar.read(file)
    file.write_text(json.dumps({"relations": [{"name": "root", "lemmas": 0, "rules": []}]}), encoding="utf-8")
    with pytest.raises(ArtifactError, match="lemmas"):
        Grammar.read(file)


@pytest.mark.skipif(not FRENCH.is_file(), reason="the treebank is not at hand")
@pytest.mark.parametrize(
    ("settings", "tokens", "length", "rules", "once", "radius"),
    [
        ({}, 21_578, 14.62, 1741, 1056, 0.577),
        ({"punctuation": True}, 24_349, 16.50, 2010, 1271, 0.577),
        ({"subtypes": False}, 26_229, 17.77, 1911, 1154, 0.642),
        ({"subtypes": False, "punctuation": True}, 29_275, 19.83, 2299, 1474, 0.642),
        ({"subtypes": False, "punctuation": True, "removed": "splice"}, 34_509, 23.38, 2748, 1888, 0.649),
    ],
)
def test_french_gsd_gives_the_published_counts(
    settings: dict[str, Any], tokens: int, length: float, rules: int, once: int, radius: float
) -> None:
    grammar = count_grammar(read_treebank([FRENCH]), GrammarSettings(**settings))
    counts = [rule.count for relation in grammar.relations for rule in relation.rules]
    assert (grammar.counts.sum(), len(counts), counts.count(1)) == (tokens, rules, once)
    assert grammar.expected_length == pytest.approx(length, abs=0.005)
    assert grammar.expected_length == pytest.approx(tokens / grammar.sentences, rel=1e-9)
    assert grammar.spectral_radius == pytest.approx(radius, abs=0.0005)
    assert (grammar.sentences, grammar.dropped_sentences, grammar.treebank_tokens) == (1476, 0, 35_721)
    assert grammar.treebank_relations == (54 if settings.get("subtypes", True) else 33)


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
        (ROW.replace("\t0\t", "\t_\t") + "\n", 1, "a number as HEAD"),
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

"""A probabilistic grammar of dependency relations, counted in a treebank, and relations of sentences drawn from it.

A rule of a node with relation r is its dependents' relations in their order, with the position of the node itself:
P(rule | r) = count / count of r. Relative frequencies make a consistent grammar (Chi and Geman 1998, Estimation of
Probabilistic Context-Free Grammars, Computational Linguistics 24, §2): drawn sentences end, and their expected length
is exactly the mean length of the pruned treebank.

Treebanks are CoNLL-U files, the form of Universal Dependencies (Nivre et al. 2020, arXiv 2004.10643, §4). A word is a
line of ten columns; ranges such as 3-4 (a written word that is two words) and empty nodes such as 3.1 are no nodes of
the tree and are skipped. An empty line ends a sentence, lines that begin with # are comments on it.

Shapes: R relations, W words of a sentence.
"""

from __future__ import annotations

import glob
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt

from npm.core.artifact import read_as
from npm.core.errors import ArtifactError, CorpusError, SettingError
from npm.core.files import read_object
from npm.core.settings import PathText, Settings
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


ROOT_RELATION, PUNCTUATION = "root", "punct"
MOST_REJECTED = 1000
"""Sentences rejected one after the other, at which sampling ends with an error."""
Sides = tuple[tuple[str, ...], tuple[str, ...]]
Count = Annotated[int, Field(ge=1, lt=1 << 53)]


class GrammarSettings(Settings):
    """Settings of counting a grammar in a treebank, and of drawing sentences from it."""

    subtypes: bool = True
    """Relations with their subtypes, such as obl:mod; otherwise obl alone."""
    punctuation: bool = False
    """Treat punctuation as a relation like the others; otherwise it is removed."""
    relations: PositiveInt = 20
    """Relations kept, the most frequent ones."""
    removed: Literal["subtree", "splice"] = "subtree"
    """Nodes removed with one of another relation: `subtree`, all that depends on it, or `splice`, itself alone."""
    max_tokens: PositiveInt = 126
    """Longest sentence; longer ones are rejected and drawn again."""
    file: PathText = ""
    """A grammar.json, as npmlm generate writes it, instead of a treebank."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An expansion: relations of the dependents in their order, before and after the node."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    count: Count


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation, the rules of its nodes, and how many distinct lemmas, lower-cased, they have."""

    name: str
    lemmas: Count
    rules: tuple[Rule, ...]

    @property
    def count(self) -> int:
        """Nodes of this relation."""
        return sum(rule.count for rule in self.rules)


@dataclass(frozen=True)
class Grammar:
    """Relations by falling frequency, `root` among them, and the counts made on the way."""

    relations: tuple[Relation, ...]
    treebank_tokens: int = 0  # before anything was removed
    treebank_relations: int = 0  # different ones, of all tokens
    sentences: int = 0  # that kept their root
    dropped_sentences: int = 0

    @classmethod
    def read(cls, path: Path) -> Grammar:
        """The grammar that a grammar.json holds. Raises ArtifactError if there is none."""
        content = read_object(path, fix="give a grammar.json that npmlm generate wrote")
        grammar: Grammar = read_as(cls, content, file=path)
        known = {relation.name for relation in grammar.relations}
        used = {name for each in grammar.relations for rule in each.rules for name in rule.left + rule.right}
        bare = [each.name for each in grammar.relations if not each.rules]
        if faults := [*sorted(used - known), *bare, *({ROOT_RELATION} - known)]:
            raise ArtifactError(
                f"{path} is invalid: no rules for {', '.join(faults)}; give a grammar.json that npmlm generate wrote"
            )
        return grammar

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each relation, by its name."""
        return {relation.name: number for number, relation in enumerate(self.relations)}

    @cached_property
    def counts(self) -> np.ndarray:
        """Nodes of each relation, i64 [R]."""
        return np.array([relation.count for relation in self.relations], dtype=np.int64)  # [R]

    @cached_property
    def children(self) -> np.ndarray:
        """Mean number of dependents with relation b of a node with relation a: f64 [R, R]."""
        sums = np.zeros((len(self.relations), len(self.relations)))  # f64 [R, R]
        for number, relation in enumerate(self.relations):
            for rule in relation.rules:
                for name in rule.left + rule.right:
                    sums[number, self.numbers[name]] += rule.count
        means: np.ndarray = sums / self.counts[:, None]  # f64 [R, R]
        return means

    @property
    def spectral_radius(self) -> float:
        """Largest absolute eigenvalue of `children`; sentences end with certainty where it is below 1."""
        return float(np.abs(np.linalg.eigvals(self.children)).max())

    @property
    def expected_relations(self) -> np.ndarray:
        """Expected words of each relation in a sentence, f64 [R]: the row of root in (I - children)^-1."""
        identity = np.eye(len(self.relations))  # f64 [R, R]
        start = identity[self.numbers[ROOT_RELATION]]  # f64 [R]
        solved: np.ndarray = np.linalg.solve(identity - self.children.T, start)  # f64 [R]
        return solved

    @property
    def expected_length(self) -> float:
        """Expected words of a sentence, none rejected."""
        return float(self.expected_relations.sum())

    def refuse_endless(self, where: str) -> None:
        """Raise CorpusError unless its sentences end."""
        if (radius := self.spectral_radius) >= 1 - 1e-9:
            raise CorpusError(
                f"{where}: sentences need not end: a node must have less than 1 dependent of its own kind in the mean, "
                f"got {radius:.4f}"
            )


def count_grammar(trees: Iterable[Tree], settings: GrammarSettings) -> Grammar:
    """The grammar of a treebank, pruned as the settings say. Raises CorpusError if no sentence keeps its root."""
    named = [
        (tree, [name if settings.subtypes else name.partition(":")[0] for name in tree.relations]) for tree in trees
    ]
    frequencies = Counter(name for _, names in named for name in names)
    ranked = sorted(frequencies, key=lambda name: (-frequencies[name], name))
    ranked = [name for name in ranked if settings.punctuation or name.partition(":")[0] != PUNCTUATION]
    kept = set(ranked[: settings.relations])
    rules: dict[str, Counter[Sides]] = defaultdict(Counter)
    lemmas: dict[str, set[str]] = defaultdict(set)
    dropped = 0
    for tree, names in named:
        heads = _kept_heads(tree, names, kept, settings)
        words = [word for word, head in enumerate(heads) if head is not None]
        dropped += not words
        for word in words:
            dependents = [each for each in words if heads[each] == word]
            left, right = (
                tuple(names[each] for each in dependents if (each > word) is after) for after in (False, True)
            )
            rules[names[word]][left, right] += 1
            lemmas[names[word]].add(tree.lemmas[word].lower())
    if ROOT_RELATION not in rules:
        raise CorpusError(
            f"no sentence of the treebank keeps its root: increase grammar.relations, got {settings.relations}"
        )
    totals = {name: own.total() for name, own in rules.items()}
    relations = []
    for name in sorted(rules, key=lambda name: (-totals[name], name)):
        own = sorted(rules[name].items(), key=lambda item: (-item[1], item))
        relations.append(Relation(name, len(lemmas[name]), tuple(Rule(*sides, count) for sides, count in own)))
    return Grammar(
        tuple(relations),
        treebank_tokens=frequencies.total(),
        treebank_relations=len(frequencies),
        sentences=totals[ROOT_RELATION],
        dropped_sentences=dropped,
    )


def _kept_heads(tree: Tree, names: Sequence[str], kept: set[str], settings: GrammarSettings) -> list[int | None]:
    """The head of each word in the pruned tree, None for a removed word: [W]."""
    heads: list[int | None] = []
    for word, head in enumerate(tree.heads):
        above = [head]
        while above[-1] != ROOT:
            above.append(tree.heads[above[-1]])
        stays = [each for each in above if each == ROOT or names[each] in kept]
        is_kept = names[word] in kept and (settings.removed == "splice" or stays == above)
        heads.append(stays[0] if is_kept else None)
    # with splice a word whose every ancestor went would be a second root
    roots = [word for word, head in enumerate(heads) if head == ROOT]
    return heads if roots == [tree.heads.index(ROOT)] else [None] * len(names)


class RelationSampler:
    """Draws the relations of sentences, in the order of their words."""

    def __init__(self, grammar: Grammar, settings: GrammarSettings) -> None:
        self._root, self._most = grammar.numbers[ROOT_RELATION], settings.max_tokens
        # By relation: the expansions of a node, from its right end (a word is ~relation), and summed counts.
        self._rules: list[tuple[list[list[int]], list[int]]] = []
        for number, relation in enumerate(grammar.relations):
            sides = [
                [[grammar.numbers[name] for name in side] for side in (each.right, each.left)]
                for each in relation.rules
            ]
            expansions = [[*reversed(right), ~number, *reversed(left)] for right, left in sides]
            self._rules.append((expansions, list(accumulate(rule.count for rule in relation.rules))))

    def draw(self, rng: np.random.Generator) -> tuple[list[int], list[int]]:
        """The numbers of the relations of one sentence, and the lengths of longer ones that were rejected before it.

        Raises SettingError where no sentence is short enough.
        """
        rejected: list[int] = []
        while len(rejected) < MOST_REJECTED:
            words, stack = list[int](), [self._root]
            while stack:
                item = stack.pop()
                if item < 0:
                    words.append(~item)
                else:
                    expansions, sums = self._rules[item]
                    is_sure = len(expansions) == 1
                    stack += expansions[0 if is_sure else bisect_right(sums, rng.random() * sums[-1])]
            if len(words) <= self._most:
                return words, rejected
            rejected.append(len(words))
        raise SettingError(
            f"grammar.max_tokens={self._most} is too small: each of {MOST_REJECTED} sentences of the grammar is longer"
        )

"""Words for the relations of an artificial sentence: disjoint sets of types with probabilities.

zipf       rank k of its relation with probability proportional to k^-s; words of a sentence are independent
uniform    the same with s = 0
loglinear  a topic t ~ N(0, I_d) for each sentence, p(w | t, r) proportional to exp(v_w · t / T), v_w ~ N(0, I_d)
           (Arora et al. 2016, arXiv 1502.03520, §2)
nesting    each type an opening and a closing word, opened by its relation as in zipf; brackets close in order
flat       the same, brackets close at any distance (Ri and Tsuruoka 2022, arXiv 2203.10326, §3.2)

Shapes: R relations, V types, d dimensions of a topic, W words of a sentence, S topics of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from npm.core.settings import INNER, Settings
from studies.artificial.grammar import Grammar

OPENED_SHARE = 0.4
"""Probability that the next word opens a bracket, where it may also close one."""
SYLLABLES = ["".join(letters) for letters in product("bdfgklmnprstvz", "aeiou")]
SYLLABLE_COUNT = 3
TYPE_PREFIX, CLOSING_PREFIX = "xq", "zq"
"""Prefixes with which no word of a natural language begins."""
SENTENCES, TOPICS, VECTORS, SAMPLE = range(4)
"""Streams of random draws, each with its own generators."""
SAMPLED_TOPICS = 256
TEMPERATURE_DIGITS = 3
"""Digits of a fitted temperature, rounded so that words do not depend on the last bits of a processor."""


BRACKETS = ("nesting", "flat")


class LexiconSettings(Settings):
    """Settings of the words and their distribution."""

    kind: Literal["zipf", "uniform", "loglinear", "nesting", "flat"] = "zipf"
    """`zipf`, `uniform`, `loglinear` (co-occurrence by topics), `nesting` or `flat` (brackets)."""
    types: Annotated[int, Field(ge=1, le=len(SYLLABLES) ** SYLLABLE_COUNT // 2)] = 5000
    """Types of all relations together, divided by their distinct lemmas; of brackets two words each."""
    exponent: Annotated[NonNegativeFloat, INNER] = 1.0
    """Of zipf and the brackets: rank k of a relation is drawn in proportion to 1 / k to this power."""
    dimensions: Annotated[PositiveInt, INNER] = 10
    """Of loglinear: length of topics and of the vectors of types."""
    temperature: PositiveFloat | None = 1.0
    """Of loglinear: the higher, the less informative a topic; null: words are as unpredictable as those of zipf."""


def stream(seed: int, kind: int, number: int = 0) -> np.random.Generator:
    """The generator of one draw: it depends on these numbers and on nothing that ran before."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(kind, number))))


class Lexicon:
    """Types in disjoint sets, one for each relation of a grammar, and their probabilities."""

    def __init__(self, grammar: Grammar, settings: LexiconSettings, *, seed: int) -> None:
        lemmas = [relation.lemmas for relation in grammar.relations]
        self.settings, self.seed = settings, seed
        self.relations = [relation.name for relation in grammar.relations]
        self.sizes = np.array([max(1, round(settings.types * each / sum(lemmas))) for each in lemmas])  # i64 [R]
        self.first_types = np.append(0, np.cumsum(self.sizes))  # i64 [R + 1]
        self.shares = grammar.expected_relations / grammar.expected_length  # f64 [R], of the words of a corpus
        spelled = ["".join(parts) for parts in islice(product(SYLLABLES, repeat=SYLLABLE_COUNT), self.type_count)]
        self.words = [TYPE_PREFIX + each for each in spelled]
        if settings.kind in BRACKETS:
            self.words += [CLOSING_PREFIX + each for each in spelled]
        self._ranks = np.arange(self.type_count) - np.repeat(self.first_types[:-1], self.sizes) + 1  # i64 [V], from 1
        exponent = 0.0 if settings.kind == "uniform" else settings.exponent
        self._fixed = self._normalized(self._ranks.astype(np.float64) ** -exponent)  # f64 [V]
        self._vectors: np.ndarray | None = None
        self.temperature: float | None = None
        if settings.kind == "loglinear":
            self._vectors = np.array(
                [self._drawn(VECTORS, number) for number in range(self.type_count)]
            ).T  # f64 [d, V]
            self.temperature = settings.temperature or self._temperature_of_zipf()

    @property
    def type_count(self) -> int:
        """Types of all relations, V; of brackets half the number of words."""
        return int(self.first_types[-1])

    def topic(self, number: int) -> np.ndarray | None:
        """The topic of sentence `number`, f64 [d]; None of a lexicon without topics."""
        return None if self._vectors is None else self._drawn(TOPICS, number)

    def _drawn(self, kind: int, number: int) -> np.ndarray:
        return stream(self.seed, kind, number).standard_normal(self.settings.dimensions)  # f64 [d]

    def probabilities(self, topic: np.ndarray | None = None, temperature: float | None = None) -> np.ndarray:
        """p(type | its relation, topic), f64 [V]: they sum to 1 within each relation."""
        if self._vectors is None or topic is None:
            return self._fixed
        # not by a matrix product, whose last bits depend on the number of threads
        logits = np.einsum("d,dv->v", topic, self._vectors) / (temperature or self.temperature)  # f64 [V]
        most = np.maximum.reduceat(logits, self.first_types[:-1])  # f64 [R]
        return self._normalized(np.exp(logits - np.repeat(most, self.sizes)))

    def _normalized(self, weights: np.ndarray) -> np.ndarray:
        sums = np.add.reduceat(weights, self.first_types[:-1])  # f64 [R]
        return weights / np.repeat(sums, self.sizes)

    def draw(self, relations: Sequence[int], rng: np.random.Generator, topic: np.ndarray | None) -> np.ndarray:
        """The numbers of the words, i64 [W], for the numbers of the relations of a sentence."""
        asked = np.asarray(relations)  # i64 [W]
        reached = np.cumsum(self.probabilities(topic))  # f64 [V]: relation r goes from r to r + 1
        drawn = np.searchsorted(reached, asked + rng.random(len(asked)), side="right")  # i64 [W]
        types = np.clip(drawn, self.first_types[asked], self.first_types[asked + 1] - 1)  # i64 [W]
        return self._bracketed(types, rng) if self.settings.kind in BRACKETS else types

    def _bracketed(self, types: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Brackets in the positions of words: an opening one has the type drawn for its position.

        All are closed at the end, except one if the number of words is odd.
        """
        words = types.copy()  # i64 [W]
        is_open: list[int] = []
        for place, opened in enumerate(types.tolist()):
            if not is_open or (len(is_open) < len(types) - place and rng.random() < OPENED_SHARE):
                is_open.append(opened)
                continue
            last = self.settings.kind == "nesting"
            closed = is_open.pop(-1 if last else int(rng.integers(len(is_open))))
            words[place] = self.type_count + closed
        return words

    def predictability(self, temperature: float | None = None) -> tuple[float, float] | None:
        """Entropy of a word in nats, and the accuracy of the best guess, if relation and topic are known.

        Means over the words of a corpus and over SAMPLED_TOPICS topics. None of brackets, whose closing words depend on
        others.
        """
        if self.settings.kind in BRACKETS:
            return None
        if self._vectors is None:
            return self._known(self._fixed)
        sample = (self._drawn(SAMPLE, number) for number in range(SAMPLED_TOPICS))
        known = np.array([self._known(self.probabilities(topic, temperature)) for topic in sample])  # f64 [S, 2]
        entropy, best = known.mean(axis=0).tolist()
        return entropy, best

    def _known(self, probabilities: np.ndarray) -> tuple[float, float]:
        """`predictability` of one row of probabilities, f64 [V]."""
        logs = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))  # f64 [V]
        entropies = -np.add.reduceat(probabilities * logs, self.first_types[:-1])  # f64 [R]
        best = np.maximum.reduceat(probabilities, self.first_types[:-1])  # f64 [R]
        return float((self.shares * entropies).sum()), float((self.shares * best).sum())

    def _temperature_of_zipf(self) -> float:
        """The temperature at which the entropy of `predictability` is that of zipf, by bisection."""
        goal, _ = self._known(self._fixed)
        low, high = 1e-2, 1e4
        while high / low > 1 + 10**-TEMPERATURE_DIGITS / 4:
            middle = (low * high) ** 0.5
            known = self.predictability(middle)
            low, high = (middle, high) if known is not None and known[0] < goal else (low, middle)
        return round((low * high) ** 0.5, TEMPERATURE_DIGITS)

    def record(self) -> dict[str, Any]:
        """Content of lexicon.json: of every word its relation, its rank, and its probability without topics."""
        relations = np.repeat(self.relations, self.sizes).tolist()  # [V]
        words: dict[str, dict[str, Any]] = {}
        for number, word in enumerate(self.words):
            which = number % self.type_count
            words[word] = {"relation": relations[which], "rank": int(self._ranks[which])}
            if self._vectors is None:
                words[word]["probability"] = float(self._fixed[which])
            if number >= self.type_count:
                words[word]["closes"] = self.words[which]
        return {"kind": self.settings.kind, "temperature": self.temperature, "words": words}

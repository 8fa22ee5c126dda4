"""Words of artificial sentences: probabilities by hand and against plain loops, and the ceilings of UD French-GSD."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from npm.corpus.text import STOP_WORDS
from studies.artificial.grammar import GrammarSettings, count_grammar, read_treebank
from studies.artificial.lexicons import Lexicon, LexiconSettings
from tests.studies.artificial.test_grammar import FRENCH, TREES, grammar_of

GRAMMAR = grammar_of(*TREES)
RELATIONS = [each.name for each in GRAMMAR.relations]


def lexicon(seed: int = 0, **settings: Any) -> Lexicon:
    return Lexicon(GRAMMAR, LexiconSettings(**{"types": 100, **settings}), seed=seed)


def test_types_are_shared_out_by_lemmas_in_disjoint_sets_of_strange_words() -> None:
    made = lexicon()
    # det the a · root bark see one · conj two three · nsubj dog · amod small · obj cat: 10 lemmas
    assert dict(zip(RELATIONS, made.sizes.tolist(), strict=True)) == {
        "det": 20, "root": 30, "conj": 20, "nsubj": 10, "amod": 10, "obj": 10,
    }  # fmt: skip
    assert len(set(made.words)) == 100 and all(re.fullmatch("[a-z]{8}", word) for word in made.words)
    assert not set(made.words) & set(STOP_WORDS)
    assert lexicon(types=1).sizes.tolist() == [1] * 6
    record = made.record()["words"]
    assert record[made.words[0]] == {"relation": "det", "rank": 1, "probability": made.probabilities()[0]}
    assert record[made.words[20]]["relation"] == "root"


def test_zipf_falls_with_the_rank_and_uniform_does_not() -> None:
    zipf = lexicon(types=10).probabilities()
    np.testing.assert_allclose(zipf[2:5], [6 / 11, 3 / 11, 2 / 11])
    np.testing.assert_allclose(lexicon(types=10, exponent=2).probabilities()[:2], [4 / 5, 1 / 5])
    np.testing.assert_allclose(lexicon(types=10, kind="uniform").probabilities()[2:5], [1 / 3] * 3)


def test_words_are_drawn_from_their_relation_as_often_as_their_probability() -> None:
    made, rng = lexicon(types=10), np.random.default_rng(0)
    drawn = made.draw([1] * 6000, rng, None)
    np.testing.assert_allclose(
        np.bincount(drawn, minlength=10) / 6000, [0, 0, 6 / 11, 3 / 11, 2 / 11, *[0] * 5], atol=0.02
    )
    assert made.draw([0, 5], rng, None)[1] == 9


def test_loglinear_words_have_the_softmax_of_topic_and_vector() -> None:
    made = lexicon(kind="loglinear", dimensions=3, temperature=0.5)
    topic = made.topic(7)
    assert topic is not None and made._vectors is not None
    found = made.probabilities(topic)
    for relation in range(len(RELATIONS)):
        first, stop = made.first_types[relation : relation + 2].tolist()
        weights = [
            math.exp(sum(topic[d] * made._vectors[d, word] for d in range(3)) / 0.5) for word in range(first, stop)
        ]
        np.testing.assert_allclose(found[first:stop], [weight / sum(weights) for weight in weights], rtol=1e-9)
    np.testing.assert_array_equal(topic, lexicon(kind="loglinear", dimensions=3).topic(7))
    assert not np.array_equal(topic, made.topic(8)) and not np.array_equal(
        topic, lexicon(1, kind="loglinear", dimensions=3).topic(7)
    )


def test_entropies_and_best_guesses_are_means_over_the_words_of_a_corpus() -> None:
    made = lexicon(kind="uniform")
    shares = np.array([each.count for each in GRAMMAR.relations]) / 12
    np.testing.assert_allclose(made.shares, shares)
    assert made.predictability() == pytest.approx(
        (float((shares * np.log(made.sizes)).sum()), float((shares / made.sizes).sum()))
    )
    assert lexicon(kind="flat").predictability() is None


def test_the_temperature_that_is_found_makes_words_as_unpredictable_as_those_of_zipf() -> None:
    zipf, made = lexicon().predictability(), lexicon(kind="loglinear", temperature=None)
    known = made.predictability()
    assert zipf is not None and known is not None
    assert known[0] == pytest.approx(zipf[0], abs=2e-3) and made.temperature == round(made.temperature or 0, 3)


@pytest.mark.parametrize("kind", ["nesting", "flat"])
@pytest.mark.parametrize("length", [1, 2, 9, 40])
def test_brackets_close_what_was_opened(kind: str, length: int) -> None:
    made, rng = lexicon(kind=kind), np.random.default_rng(length)
    crossed = False
    for _ in range(50):
        opened: list[int] = []
        for word in made.draw([1] * length, rng, None).tolist():
            if word < made.type_count:
                assert made.first_types[1] <= word < made.first_types[2]
                opened.append(word)
            else:
                crossed |= opened[-1] != word - made.type_count
                opened.reverse()
                opened.remove(word - made.type_count)
                opened.reverse()
        assert len(opened) == length % 2
    assert crossed == (kind == "flat" and length > 2)
    closing = made.words[made.type_count]
    assert made.record()["words"][closing]["closes"] == made.words[0]


@pytest.mark.skipif(not FRENCH.is_file(), reason="the treebank is not at hand")
def test_french_gsd_gives_the_published_sizes_entropies_and_ceilings() -> None:
    grammar = count_grammar(read_treebank([FRENCH]), GrammarSettings())

    def known(**settings: Any) -> tuple[Lexicon, float, float]:
        made = Lexicon(grammar, LexiconSettings(**settings), seed=0)
        found = made.predictability()
        assert found is not None
        return made, *found

    zipf, entropy, best = known()
    sizes = dict(zip(zipf.relations, zipf.sizes.tolist(), strict=True))
    assert [sizes[name] for name in ("nmod", "conj", "root", "obl:mod", "nsubj", "det", "cop")] == [
        1027, 491, 487, 479, 437, 9, 1,
    ]  # fmt: skip
    assert zipf.type_count == 4999
    assert (entropy, best) == pytest.approx((3.55, 0.241), abs=0.005)
    relations = -float((zipf.shares * np.log(zipf.shares)).sum())
    assert relations == pytest.approx(2.61, abs=0.005) and math.exp(relations + entropy) == pytest.approx(472, abs=1)
    assert (np.repeat(zipf.shares, zipf.sizes) * zipf.probabilities()).max() == pytest.approx(0.063, abs=0.0005)
    assert known(kind="uniform")[1:] == pytest.approx((4.51, 0.0625), abs=0.005)
    # of vectors that are drawn: the published ones are of another draw
    assert known(kind="loglinear")[1:] == pytest.approx((2.09, 0.473), abs=0.08)
    matched, entropy, best = known(kind="loglinear", temperature=None)
    assert (matched.temperature, entropy, best) == pytest.approx((2.03, 3.55, 0.236), abs=0.06)

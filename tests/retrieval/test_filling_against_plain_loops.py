from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index import exact
from npm.core.types import Answer
from npm.indexing.settings import PruningRule
from npm.retrieval import filler as filler_module
from npm.retrieval import spans
from npm.retrieval.blocks import BlockPlan
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval, ScoringSettings
from tests.helpers.random_indexes import SCALE, random_index, random_queries
from tests.retrieval.plain_filling import LentToBlock, plain_fill

OURS = ScoringSettings(exclude_query_phrases=False)
SCORINGS = {
    "ours": OURS,
    "cut, longer is better": replace(OURS, temperature=2.0, cut_expressions=True, length_exponent=1.5),
    "reference": FillSettings.reference().scoring,
    "reference, shorter is better": replace(FillSettings.reference().scoring, temperature=0.5, length_exponent=-1.0),
}
EVERYTHING = FillSettings(
    k=10_000,
    overlaps=Overlaps.keep,
    merged_groups=10_000,
    occurrences=10_000,
    retrieval=Retrieval.dense,
    reader="none",
    candidates_per_side=10_000,
)


def assert_equal_phrases(answer: Answer, expected: list[tuple[float, str, int]]) -> None:
    assert len(answer.phrases) == len(expected)
    got = sorted((phrase.phrase, phrase.occurrence_count, phrase.score) for phrase in answer.phrases)
    for (phrase, count, score), (wanted, wanted_phrase, wanted_count) in zip(
        got, sorted(expected, key=lambda item: (item[1], item[2], item[0])), strict=True
    ):
        assert (phrase, count) == (wanted_phrase, wanted_count)
        assert score == pytest.approx(wanted, rel=1e-5)
    scores = [phrase.score for phrase in answer.phrases]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("name", SCORINGS)
@pytest.mark.parametrize(
    ("rule", "one_mask"), [*((rule, False) for rule in PruningRule), (PruningRule.word_boundaries, True)]
)
def test_every_phrase_and_score_equals_that_of_plain_loops(
    name: str, rule: PruningRule, one_mask: bool, rng: np.random.Generator, tmp_path: Path
) -> None:
    settings = replace(EVERYTHING, scoring=SCORINGS[name], max_phrase_tokens=4)
    filler, corpus = random_index(tmp_path / "store", rng, rule=rule, settings=settings)
    queries = random_queries(rng, 3)
    pairs = filler.fill_encoded(["", "", ""], queries)
    if one_mask:  # single words
        filler.encoder.query_masks = 1
        queries = replace(queries, end=queries.start)
    for few, blocks in ((10_000, None), (7, None), (10_000, [0, 5, 13])):
        limited = replace(settings, candidates_per_side=few)
        answers = filler.fill_encoded(
            ["", "", ""], queries, settings=limited, blocks=None if blocks is None else np.array(blocks)
        )
        for number, answer in enumerate(answers):
            expected = plain_fill(
                corpus,
                queries.start[number],
                queries.end[number],
                scale=SCALE,
                scoring=SCORINGS[name],
                max_phrase_tokens=4,
                candidates_per_side=few,
                blocks=blocks,
                one_mask=one_mask,
            )
            assert_equal_phrases(answer, expected)
            assert not one_mask or 0 < len(answer.phrases) < len(pairs[number].phrases)


@pytest.mark.parametrize("name", SCORINGS)
@pytest.mark.parametrize("reads", [True, False])
def test_blocks_that_are_read_and_that_have_bonuses_of_their_own_equal_plain_loops(
    name: str, reads: bool, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(EVERYTHING, scoring=SCORINGS[name], max_phrase_tokens=4, retrieval=Retrieval.hybrid)
    rule = PruningRule.word_boundaries
    filler, corpus = random_index(tmp_path / "store", rng, rule=rule, settings=settings)
    queries, blocks = random_queries(rng, 2), [2, 3, 9, 11]
    sizes = np.diff(filler.index.store.block_offsets)[blocks].tolist()
    plans = [
        BlockPlan(
            np.array(blocks),
            rng.random(len(blocks)) * 2,
            tuple(rng.standard_normal((2, size)) for size in sizes) if reads else (),
        )
        for _ in range(2)
    ]
    monkeypatch.setattr(filler_module, "choose_blocks", lambda *_, **__: plans)
    for number, answer in enumerate(filler.fill_encoded(["", ""], queries)):
        own, both = plans[number], (queries.start[number], queries.end[number])
        lent = {
            block: LentToBlock(float(own.bonuses[place]), own.joint[place] if own.joint else None)
            for place, block in enumerate(blocks)
        }
        expected = plain_fill(
            corpus,
            *both,
            scale=SCALE,
            scoring=SCORINGS[name],
            max_phrase_tokens=4,
            candidates_per_side=10_000,
            blocks=blocks,
            lent=lent,
            joint_share=settings.joint_share,
        )
        assert_equal_phrases(answer, expected)


@pytest.mark.parametrize("name", SCORINGS)
@pytest.mark.parametrize("overlaps", Overlaps)
def test_values_keep_the_phrases_among_them_with_their_scores(
    name: str, overlaps: Overlaps, rng: np.random.Generator, tmp_path: Path
) -> None:
    settings = replace(EVERYTHING, scoring=SCORINGS[name], max_phrase_tokens=4)
    filler, _ = random_index(tmp_path / "store", rng, rule=PruningRule.all, settings=settings)
    queries = random_queries(rng, 1)
    (every,) = filler.fill_encoded([""], queries, settings=replace(settings, overlaps=Overlaps.keep))
    values = [phrase.phrase.upper() for phrase in every.phrases[::7]]
    assert len(values) > 3
    # one group at a time would be read without values
    few = replace(settings, values=[*values, "nowhere"], overlaps=overlaps, merged_groups=1)
    (answer,) = filler.fill_encoded([""], queries, settings=few)
    assert answer.phrases == tuple(phrase for phrase in every.phrases if phrase.phrase.upper() in values)


@pytest.mark.parametrize("queries_per_scan", [2, 3, 4, 9])
def test_no_scan_has_more_queries_than_the_searcher_takes_two_of_them_for_each_text(
    queries_per_scan: int, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler, _ = random_index(tmp_path / "store", rng, rule=PruningRule.all, settings=EVERYTHING)
    queries = random_queries(rng, 5)
    expected = filler.fill_encoded([""] * 5, queries)
    monkeypatch.setattr(exact, "SCORE_BYTES_PER_SCAN", 4 * len(filler.index.rows) * queries_per_scan)
    for answer, whole in zip(filler.fill_encoded([""] * 5, queries), expected, strict=True):
        assert_equal_phrases(answer, [(each.score, each.phrase, each.occurrence_count) for each in whole.phrases])


def test_as_many_phrases_are_read_as_are_asked_for_where_fewer_would_be_merged(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    settings = replace(EVERYTHING, scoring=OURS, k=5, merged_groups=1)
    filler, _ = random_index(tmp_path / "store", rng, rule=PruningRule.all, settings=settings)
    assert len(filler.fill_encoded([""], random_queries(rng, 1))[0].phrases) == 5


def test_a_left_walk_is_one_token_shorter_only_in_the_reference(rng: np.random.Generator, tmp_path: Path) -> None:
    settings = replace(EVERYTHING, scoring=OURS)
    filler, _ = random_index(tmp_path / "store", rng, rule=PruningRule.all, settings=settings)
    end_rows, no_rows = np.arange(len(filler.index.rows)), np.zeros(0, dtype=np.int64)
    longest = {}
    for scoring in (OURS, FillSettings.reference().scoring):
        finder = spans.SpanFinder(filler.index.store, filler.index.rows, (3, None), scoring)
        longest[scoring.reference] = finder.find(no_rows, end_rows).lengths.max()
    assert longest == {False: 3, True: 2}

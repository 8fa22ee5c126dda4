"""The parts of a question in benchmarks/bench_cost.py, by a clock that is moved by hand, and in a small index."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bench_cost import (
    ELSE,
    METHODS,
    PARTS,
    PartClock,
    TimedSearch,
    cost_of,
    measured,
)
from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import IndexBuildSettings
from npm.models.encoder import Encoder
from npm.reading.mask_reader import MaskReader
from npm.retrieval.filler import PhraseFiller
from tests.evaluation.conftest import PASSAGES, QUESTIONS

TEXTS = [text for _, _, text, _, _ in QUESTIONS]


class Hand:
    """A clock that goes on by one second at each look."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1
        return self.seconds


def test_a_part_within_another_counts_once_and_all_parts_add_up() -> None:
    hand = Hand()
    clock = PartClock(hand)  # looks at 1
    with clock.part("reading"), clock.part("encoder"):  # 2 and 3
        pass  # 4
    # 5: one second each before, in reading, in the encoder, in reading again
    found = clock.take()  # 6
    assert found == {ELSE: 2.0, "reading": 2.0, "encoder": 1.0}
    assert sum(found.values()) == hand.seconds - 1
    assert clock.take() == {ELSE: 1.0}


def test_the_parts_of_a_question_add_up_to_the_whole_and_change_no_answer(index_folder: Path, encoder: Encoder) -> None:
    index = PhraseIndex.open(index_folder)
    for name, settings in METHODS.items():
        hand = Hand()
        clock = PartClock(hand)
        reader = MaskReader(encoder)
        timed = replace(index, searcher=TimedSearch(index.searcher, clock))
        filler = PhraseFiller(timed, encoder, settings, reader=reader)
        with measured(clock):
            assert filler.fill(TEXTS) == PhraseFiller(index, encoder, settings, reader=reader).fill(TEXTS)
            cost = cost_of(filler.fill, TEXTS, 2, clock, name, "cpu")
        assert set(cost.parts) <= {*PARTS, ELSE} and {"encoder", "search", "scoring", "answer text"} <= set(cost.parts)
        assert ("reading" in cost.parts) == (name == "npm-hybrid")
        # Of six texts, three pairs: the mean over texts of the milliseconds is the sum of the parts.
        assert cost.batch == 2 and cost.median <= cost.p95
        clock.take()
        filler.fill(TEXTS)
        assert set(clock.take()) == {ELSE, "search"}  # nothing else is timed outside


@pytest.fixture(scope="module")
def complete_index(tmp_path_factory: pytest.TempPathFactory) -> tuple[PhraseIndex, Encoder]:
    """An index of an encoder that does all there is: block vectors and joint reading."""
    folder = tmp_path_factory.mktemp("cost")
    lines = [json.dumps({"id": name, "title": name.title(), "text": text}) for name, text in PASSAGES.items()]
    (folder / "c.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    encoder = Encoder.load(device="cpu", dtype="float32")
    build_index(folder / "index", IndexBuildSettings(corpus=CorpusSettings(files=[str(folder / "c.jsonl")])), encoder)
    return PhraseIndex.open(folder / "index"), encoder


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        ("npm-dense", {"encoder"}),
        ("npm-bm25", {"encoder"}),
        ("npm-hybrid without reading", {"encoder"}),
        ("npm-hybrid", {"encoder"}),  # another model reads
    ],
)
def test_every_pass_of_the_encoder_is_in_a_named_part(
    complete_index: tuple[PhraseIndex, Encoder], method: str, parts: set[str]
) -> None:
    index, encoder = complete_index
    clock, passes = PartClock(Hand()), Counter[str]()
    filler = PhraseFiller(replace(index, searcher=TimedSearch(index.searcher, clock)), encoder, METHODS[method])
    hook = encoder.model.register_forward_hook(lambda *_: passes.update([clock.current]))
    try:
        filler.fill(TEXTS)
        assert set(passes) == {ELSE}  # nothing but search is timed outside
        count = passes.pop(ELSE)
        with measured(clock):
            filler.fill(TEXTS)
    finally:
        hook.remove()
    assert set(passes) == parts <= {*PARTS}
    assert passes.total() == count >= len(parts)


def test_a_rest_that_is_no_whole_batch_is_not_counted() -> None:
    asked: list[int] = []
    cost = cost_of(lambda own: asked.append(len(own)), TEXTS[:5], 2, PartClock(Hand()), "m", "cpu")
    assert asked == [2, 2, 2]  # the first is not counted
    assert sum(cost.parts.values()) == pytest.approx(cost.median)

"""Texts with several masks: the formula by hand, against plain loops, and on small indexes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from npm.core.errors import QueryError
from npm.core.types import Answer, Filling, JointAnswer, Phrase
from npm.corpus.text import Stemming, words_of
from npm.indexing.changes import delete_documents
from npm.indexing.settings import DeleteSettings
from npm.reading.mask_reader import MaskReader
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.joint_filling import associations, beam_search, joint_fillings
from npm.retrieval.queries import QueryVectors, encode_queries, sentences_of
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval, ScoringSettings
from tests.helpers.live_indexes import built, record
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

TEXT = "<mask> lies in <mask>."
TEXTS = [TEXT, "The capital of Iceland is <mask>.", "<mask> and <mask> are cities in <mask>", "The river <mask> flows."]
REPEATS = FillSettings(scoring=ScoringSettings(exclude_query_phrases=False))
EVERYTHING = replace(REPEATS, k=10_000, beam_width=256, overlaps=Overlaps.keep)


def phrases(**scores: float) -> tuple[Phrase, ...]:
    return tuple(Phrase(name.replace("_", " "), score, 1, ()) for name, score in scores.items())


def blocks_of(**blocks: list[int] | None) -> Callable[[str], np.ndarray | None]:
    known = {
        name.replace("_", " "): None if held is None else np.array(held, dtype=np.int64)
        for name, held in blocks.items()
    }
    return known.__getitem__


def plain_fillings(
    masks: list[tuple[Phrase, ...]], held: dict[str, set[int] | None], total: int, smoothing: float
) -> list[tuple[tuple[str, ...], float]]:
    """Of all combinations of phrases the 256 best, each with its share of these, best first."""
    found = []
    for chosen in itertools.product(*masks):
        score = math.prod(phrase.score for phrase in chosen)
        for first, second in itertools.combinations(chosen, 2):
            one, other = held[first.phrase], held[second.phrase]
            if one is not None and other is not None:
                expected = len(one) * len(other) / total
                score *= (len(one & other) + smoothing) / (expected + smoothing)
        found.append((tuple(phrase.phrase for phrase in chosen), score))
    best = sorted(found, key=lambda each: -each[1])[:256]
    whole = sum(score for _, score in best)
    return [(names, score / whole) for names, score in best]


def assert_fillings(got: tuple[Filling, ...], expected: list[tuple[tuple[str, ...], float]]) -> None:
    assert [filling.score for filling in got] == pytest.approx([score for _, score in expected], rel=1e-9)
    scores = dict(expected)
    for filling in got:  # equal scores in any order
        assert filling.score == pytest.approx(scores[filling.phrases], rel=1e-9)


def test_phrases_that_stand_together_more_often_than_by_chance_win_as_worked_out_by_hand() -> None:
    masks = [phrases(Oslo=0.5, Paris=0.4), phrases(France=0.6, Norway=0.3)]
    held = blocks_of(Oslo=[0, 1], Paris=[2, 3], France=[2, 3, 4, 5], Norway=[0])
    # N = 8, ε = 1/2: c(Oslo, France) = (0 + ½)/(2·4/8 + ½) = 1/3, c(Oslo, Norway) = (1 + ½)/(2·1/8 + ½) = 2,
    # c(Paris, France) = (2 + ½)/(1 + ½) = 5/3, c(Paris, Norway) = ½/(¼ + ½) = 2/3
    weights = {("Paris", "France"): 0.4, ("Oslo", "Norway"): 0.3, ("Oslo", "France"): 0.1, ("Paris", "Norway"): 0.08}
    settings = replace(REPEATS, cooccurrence_smoothing=0.5)
    got, _ = joint_fillings(TEXT, masks, held, block_count=8, settings=settings)
    assert [filling.phrases for filling in got] == list(weights)
    assert [filling.score for filling in got] == pytest.approx([weight / 0.88 for weight in weights.values()])
    best, _ = joint_fillings(TEXT, masks, held, block_count=8, settings=replace(settings, k=1))
    assert best == got[:1]  # what is not shown has its share all the same


def test_what_is_never_expected_together_and_never_stands_together_says_nothing() -> None:
    assert associations([frozenset()], [frozenset({7})], total=10, smoothing=0.5) == 1.0
    masks = [phrases(Oslo=0.5), phrases(so=0.6, Norway=0.4)]
    got, _ = joint_fillings(TEXT, masks, blocks_of(Oslo=[0], so=None, Norway=[]), block_count=9, settings=REPEATS)
    assert [filling.score for filling in got] == pytest.approx([0.6, 0.4])


@pytest.mark.parametrize("mask_count", [2, 3, 4])
def test_a_wide_beam_finds_what_trying_every_combination_finds(mask_count: int, rng: np.random.Generator) -> None:
    for _ in range(20):
        held: dict[str, set[int] | None] = {}
        masks = []
        for mask in range(mask_count):
            names = [f"w{mask}x{number}" for number in range(int(rng.integers(1, 5)))]
            held |= {name: set(np.flatnonzero(rng.random(12) < rng.random()).tolist()) for name in names}
            held[names[0]] = held[names[0]] if rng.random() < 0.7 else None
            masks.append(phrases(**dict(zip(names, np.sort(rng.random(len(names)))[::-1].tolist(), strict=True))))
        arrays = {name: None if own is None else sorted(own) for name, own in held.items()}
        smoothing = float(rng.choice([0.01, 0.5, 3.0]))
        settings = FillSettings(k=10_000, beam_width=256, cooccurrence_smoothing=smoothing)
        text = " and ".join(["<mask>"] * mask_count)
        got, _ = joint_fillings(text, masks, blocks_of(**arrays), block_count=12, settings=settings)
        assert_fillings(got, plain_fillings(masks, held, 12, smoothing))


def test_ties_go_to_the_better_phrases_further_left_however_many_there_are() -> None:
    """More than 16: up to there, any sort leaves equal numbers in their order."""
    pairs = np.random.default_rng(0).integers(-2, 1, (30, 20)).astype(float)
    chosen, totals = beam_search([np.zeros(30), np.zeros(20)], {(0, 1): pairs}, width=300)
    places = sorted(np.ndindex(30, 20), key=lambda place: -pairs[place])[:300]
    assert list(map(tuple, chosen.tolist())) == places
    assert totals.tolist() == [pairs[place] for place in places]


def test_a_beam_of_one_goes_on_from_the_best_beginning_alone() -> None:
    masks = [phrases(a=0.6, b=0.4), phrases(c=0.9, d=0.1)]
    held = blocks_of(a=[0], b=[1], c=[1], d=[2])
    wide, _ = joint_fillings(TEXT, masks, held, block_count=9, settings=replace(REPEATS, cooccurrence_smoothing=0.01))
    assert wide[0].phrases == ("b", "c")
    narrow = replace(REPEATS, cooccurrence_smoothing=0.01, beam_width=1)
    assert joint_fillings(TEXT, masks, held, block_count=9, settings=narrow) == ((Filling(("a", "c"), 1.0),), ())


def test_no_phrase_of_a_filling_repeats_another_unless_the_scoring_lets_phrases_repeat_the_text() -> None:
    masks = [phrases(Oslo=0.6, the_city_of_Rome=0.4), phrases(oslo=0.7, Rome=0.3)]
    held = blocks_of(Oslo=[0], the_city_of_Rome=[1], oslo=[0], Rome=[1])
    got, _ = joint_fillings("<mask> is <mask>", masks, held, block_count=2, settings=FillSettings())
    assert {filling.phrases for filling in got} == {("Oslo", "Rome"), ("the city of Rome", "oslo")}
    free, _ = joint_fillings("<mask> is <mask>", masks, held, block_count=2, settings=REPEATS)
    assert len(free) == 4 and sum(filling.score for filling in free) == pytest.approx(1)
    # "city" is in the text, and "Rome" in the other phrase
    asked, _ = joint_fillings("the city <mask> is <mask>", masks[::-1], held, block_count=2, settings=FillSettings())
    assert ("Rome", "the city of Rome") not in {filling.phrases for filling in asked}


def test_scores_that_underflow_and_masks_without_phrases_leave_no_filling() -> None:
    held = blocks_of(a=[0], b=[0], c=[0])
    for masks in ([phrases(a=0.5), ()], [phrases(a=0.0), phrases(b=1.0)], [phrases(a=1.0), phrases(a=1.0)], [(), ()]):
        assert joint_fillings(TEXT, masks, held, block_count=1, settings=FillSettings())[0] == ()
    tiny = [phrases(a=1e-200, b=1e-210), phrases(c=1e-200)]
    got, _ = joint_fillings(TEXT, tiny, held, block_count=1, settings=FillSettings())
    assert [filling.score for filling in got] == pytest.approx([1.0, 1e-10])


@pytest.fixture(scope="module", params=["bert", "roberta"])
def filler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    encoder = tiny_encoder(request.param)
    folder = built(tmp_path_factory.mktemp("joint") / "index", [record(n) for n in range(8)], encoder)
    return PhraseFiller.open(folder, encoder)


def joint(filler: PhraseFiller, text: str, settings: FillSettings, **options: Any) -> JointAnswer:
    filler.settings = settings
    answer = filler.fill(text, **options)
    assert isinstance(answer, JointAnswer) and answer.phrases == ()
    return answer


def blocks_with_words(filler: PhraseFiller, phrase: str) -> set[int] | None:
    """The live blocks whose text and title have all content words of `phrase`."""
    store, live = filler.index.store, filler.index.live_blocks
    words = set(words_of(phrase, Stemming.plural, keep_stopwords=False))
    found = set()
    for block in range(store.block_count):
        title = store.document(int(store.block_documents[block])).title
        held = set(words_of(f"{title} {store.block_text(block)}", Stemming.plural, keep_stopwords=False))
        if words <= held and (live is None or live[block]):
            found.add(block)
    return found if words else None


def assert_joint(filler: PhraseFiller, answer: JointAnswer, settings: FillSettings) -> None:
    """The fillings are those that trying every combination gives; `answer` shows all phrases."""
    masks = [mask.phrases for mask in answer.masks]
    assert max(map(len, masks)) < settings.beam_width and settings.k >= settings.beam_width
    held = {phrase.phrase: blocks_with_words(filler, phrase.phrase) for own in masks for phrase in own}
    live = filler.index.live_blocks
    total = filler.index.store.block_count if live is None else int(live.sum())
    expected = plain_fillings(masks, held, total, settings.cooccurrence_smoothing)
    assert_fillings(answer.fillings, expected)


@pytest.mark.parametrize("retrieval", ["dense", "bm25", "hybrid"])
def test_each_mask_is_answered_as_if_its_vectors_were_those_of_a_text_with_one_mask(
    retrieval: str, filler: PhraseFiller
) -> None:
    settings = FillSettings(retrieval=Retrieval(retrieval), k=4, beam_width=6)
    for text in (TEXT, TEXTS[2]):
        answer = joint(filler, text, settings)
        vectors = encode_queries(filler.encoder, sentences_of([text], settings))
        assert len(answer.masks) == text.count("<mask>") == len(vectors.start)
        for number, mask in enumerate(answer.masks):
            one = slice(number, number + 1)
            alone = QueryVectors(start=vectors.start[one], end=vectors.end[one], cut=vectors.cut)
            expected = filler.fill_encoded([text], alone, settings=settings)[0].phrases
            assert [replace(each, score=0.0) for each in mask.phrases] == [
                replace(each, score=0.0) for each in expected
            ]
            # queries that are scanned together differ from those scanned alone in their last bits
            assert [each.score for each in mask.phrases] == pytest.approx([each.score for each in expected], rel=1e-5)
        assert 0 < sum(filling.score for filling in answer.fillings) <= 1 + 1e-9
        assert len(answer.fillings) <= 4
        assert {filling.phrases[0] for filling in answer.fillings} <= {
            phrase.phrase
            for phrase in joint(filler, text, replace(settings, k=6, overlaps=Overlaps.keep)).masks[0].phrases
        }


@pytest.mark.parametrize("scoring", [ScoringSettings(exclude_query_phrases=False), FillSettings.reference().scoring])
@pytest.mark.parametrize("retrieval", ["bm25", "hybrid"])
def test_fillings_of_an_index_equal_plain_loops_over_its_blocks(
    retrieval: str, scoring: ScoringSettings, filler: PhraseFiller
) -> None:
    settings = replace(EVERYTHING, retrieval=Retrieval(retrieval), bm25_blocks=2, max_phrase_tokens=6, scoring=scoring)
    answer = joint(filler, TEXT, settings)
    assert len(answer.fillings) > 8
    assert_joint(filler, answer, settings)


def test_deleted_documents_are_neither_counted_nor_answered(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    folder = built(tmp_path / "index", [record(n) for n in range(8)], encoder)
    settings = replace(EVERYTHING, bm25_blocks=1)
    filler = PhraseFiller.open(folder, encoder)
    before = joint(filler, TEXT, settings)
    delete_documents(folder, DeleteSettings(ids=["d1", "d3", "d6"]))
    assert filler.refresh() and filler.index.live_blocks is not None
    after = joint(filler, TEXT, settings)
    assert_joint(filler, after, settings)
    assert after.fillings != before.fillings


def test_a_block_is_read_once_for_all_masks(filler: PhraseFiller) -> None:
    class Counting(MaskReader):
        passages: ClassVar[list[str]] = []

        def read(self, pairs: Any, **more: Any) -> Any:
            self.passages += [passage.text for _, passage in pairs]
            return super().read(pairs, **more)

    reading = PhraseFiller(filler.index, filler.encoder, FillSettings(bm25_blocks=2), reader=Counting(filler.encoder))
    answer = reading.fill("<mask> and Kraków are cities in <mask>")
    assert isinstance(answer, JointAnswer) and all(mask.phrases for mask in answer.masks)
    assert len(Counting.passages) == 2
    first, second = ([phrase.score for phrase in mask.phrases] for mask in answer.masks)
    assert first != pytest.approx(second, rel=1e-5)


@pytest.mark.parametrize("retrieval", ["dense", "hybrid"])
def test_texts_with_one_mask_and_with_several_are_answered_together_in_order(
    retrieval: str, filler: PhraseFiller
) -> None:
    filler.settings = FillSettings(retrieval=Retrieval(retrieval))
    together = filler.fill(TEXTS)
    assert [answer.text for answer in together] == TEXTS
    assert [type(answer) for answer in together] == [JointAnswer, Answer, JointAnswer, Answer]
    for answer in together:
        alone = filler.fill(answer.text)
        assert [phrase.phrase for phrase in answer.phrases] == [phrase.phrase for phrase in alone.phrases]
        if isinstance(answer, JointAnswer) and isinstance(alone, JointAnswer):
            assert [each.phrases for each in answer.fillings] == [each.phrases for each in alone.fillings]
            scores = [[each.score for each in one.fillings] for one in (answer, alone)]
        else:
            scores = [[phrase.score for phrase in one.phrases] for one in (answer, alone)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-4)
    assert filler.fill(TEXTS) == together  # deterministic


def test_filters_hold_for_every_mask(filler: PhraseFiller) -> None:
    answer = joint(filler, TEXT, FillSettings(k=3), documents=["d2", "d4"], where=["lang=en"])
    documents = {place.document for mask in answer.masks for each in mask.phrases for place in each.occurrences}
    assert documents <= {"d2", "d4"} and all(mask.phrases for mask in answer.masks)
    nothing = joint(filler, TEXT, FillSettings(k=3), documents=[])
    assert [mask.phrases for mask in nothing.masks] == [(), ()] and nothing.fillings == ()
    assert nothing.notes == (
        "the list of documents to answer from is empty, so nothing is answered",
        "the text has no filling: no phrase for mask 1, 2",
    )
    blocks = joint(filler, TEXT, FillSettings(k=3), blocks=[1, 2])
    assert blocks.fillings


def test_what_the_masks_of_a_text_cannot_be(filler: PhraseFiller) -> None:
    with pytest.raises(QueryError, match="text 2 of 2"):
        filler.fill([TEXT, "<mask> " * 9])
    with pytest.raises(QueryError, match="tokens from the first <mask>"):
        filler.fill([TEXT, "<mask>" + " of" * 500 + " <mask>"])
    cut = joint(filler, "of " * 500 + TEXT + " of" * 500, FillSettings())
    assert cut.cut and "cut around the masks" in cut.notes[0] and cut.fillings
    for odd in ("<mask><mask>", "<mask> <mask> <mask>", "Os<mask>lo is <mask>", "<mask>" * 8):
        answer = joint(filler, odd, FillSettings(k=2))
        assert len(answer.masks) == odd.count("<mask>") == len(answer.fillings[0].phrases)


def test_passages_at_hand_are_filled_jointly_and_count_where_phrases_stand(filler: PhraseFiller) -> None:
    settings = FillSettings(
        retrieval=Retrieval.dense, k=10_000, beam_width=256, max_phrase_tokens=1, scoring=REPEATS.scoring
    )
    passages = PhraseFiller.over(SENTENCES, filler.encoder)
    answer = joint(passages, TEXT, replace(settings, cooccurrence_smoothing=0.1))
    masks = [mask.phrases for mask in answer.masks]
    held: dict[str, set[int] | None] = {
        phrase.phrase: {
            number for number, sentence in enumerate(SENTENCES) if f" {phrase.phrase.casefold()} " in spaced(sentence)
        }
        for own in masks
        for phrase in own
    }
    assert any(len(own) > 1 for own in held.values() if own)
    expected = plain_fillings(masks, held, len(SENTENCES), 0.1)
    assert_fillings(answer.fillings, expected)
    for texts in ([TEXT], ["It is <mask>.", TEXT]):
        with pytest.raises(QueryError, match="exactly one <mask>"):
            passages.score(texts, ["Oslo"] * len(texts))


def spaced(sentence: str) -> str:
    """Case-folded, punctuation as space."""
    return " " + "".join(char if char.isalnum() else " " for char in sentence.casefold()) + " "

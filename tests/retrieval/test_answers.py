"""The order of phrases, those of one place, what repeats the question, and the smallest share of a clear answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.exact import ExactSearcher
from npm.core.errors import SettingError
from npm.core.types import JointAnswer, Occurrence, Phrase
from npm.corpus.text import words_of
from npm.retrieval.answers import best_groups, is_name, says_nothing_new, unknown_words, without_overlaps
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval
from npm.retrieval.spans import CandidateSpans
from tests.evaluation.methods.word_indexes import index_of_texts
from tests.helpers.tiny_models import SENTENCES, tiny_encoder


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_groups_of_equal_scores_come_in_the_order_of_the_corpus(count: int) -> None:
    starts = np.array([90, 10, 40, 60, 20])  # i64 [5]
    nothing = np.zeros(5, dtype=np.int64)
    hashes = np.array([7, 1, 5, 9, 9], dtype=np.uint64)  # groups that begin at 90, 10, 40 and 20
    candidates = CandidateSpans(starts, nothing + 1, nothing, nothing, hashes)
    groups, scores = best_groups(candidates, np.array([0.5, 0.125, 0.5, 0.25, 0.25]), count=count)
    assert [group.tolist() for group in groups] == [[4, 3], [2], [0], [1]][:count]
    assert scores.tolist() == [0.5, 0.5, 0.5, 0.125][:count]
    (first, *_), _ = best_groups(candidates, np.array([0.5, 0.125, 0.5, 0.3125, 0.1875]), count=count)
    assert first.tolist() == [3, 4]  # the heaviest of a group first


def test_occurrences_of_equal_weight_come_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    index = index_of_texts(tmp_path / "index", ["Oslo is the capital of Norway."] * 40, encoder)
    alike = replace(index, searcher=ExactSearcher(np.zeros((len(index.rows), encoder.dimensions), dtype=np.float32)))
    settings = FillSettings(retrieval=Retrieval.dense, occurrences=40, candidates_per_side=10_000)
    answer = PhraseFiller(alike, encoder, settings).fill("It is <mask>.")
    assert answer.phrases
    for phrase in answer.phrases:
        assert [place.document for place in phrase.occurrences] == [f"d{number}" for number in range(40)]


@pytest.mark.parametrize(
    ("phrase", "question", "nothing_new"),
    [
        ("Bhutan", "The king of Bhutan reigns from <mask>", True),
        ("king of Bhutan", "The king of Bhutan reigns from <mask>", True),
        ("the Bhutan of a king", "The king of Bhutan reigns from <mask>", True),
        ("Thimphu", "The king of Bhutan reigns from <mask>", False),
        ("Thimphu, Bhutan", "The king of Bhutan reigns from <mask>", False),
        ("Bhutanese", "The king of Bhutan reigns from <mask>", False),
        ("Norway's king", "Who is the king of Norway? <mask>", True),
        ("the", "The answer is <mask>", True),
        ("of", "The answer is <mask>", False),
        ("1605", "It was 1606: <mask>", False),
        ("ŁÓDŹ", "łódź is in <mask>", True),
        ("—", "It is <mask>", True),
    ],
)
def test_a_phrase_is_left_out_only_if_all_its_content_words_are_in_the_question(
    phrase: str, question: str, nothing_new: bool
) -> None:
    assert says_nothing_new(phrase, frozenset(words_of(question))) == nothing_new


def placed(phrase: str, score: float, start: int | None, document: str = "d0") -> Phrase:
    """A phrase whose best occurrence begins at the character `start` of a document; None: it has none."""
    first, length = start or 0, len(phrase)
    best = Occurrence(document, "", first, first + length, phrase, first, first + length, 0, length)
    another = Occurrence("d9", "", 0, length, phrase, 0, length, 0, length)
    return Phrase(phrase, score, 2, () if start is None else (best, another))


BANK = [
    placed("Bank of America", 0.3, 10),
    placed("Giannini", 0.2, 40),
    placed("Bank", 0.15, 10),
    placed("America", 0.1, 18),
    placed("America", 0.08, 18, "d1"),
    placed("Ame", 0.05, 25),  # begins where the first one ends
    placed("Giannini 1904", 0.04, 40),
]


def shown(phrases: Sequence[Phrase], **changes: object) -> list[tuple[str, float, int]]:
    settings = replace(FillSettings(), **changes)  # type: ignore[arg-type]
    return [(each.phrase, round(each.score, 9), len(each.occurrences)) for each in without_overlaps(phrases, settings)]


def test_phrases_of_one_place_are_one_entry_with_the_sum_of_their_scores() -> None:
    everything = [("Bank of America", 0.55, 2), ("Giannini", 0.24, 2), ("America", 0.08, 2), ("Ame", 0.05, 2)]
    assert shown(BANK) == everything
    assert shown(BANK, k=2, occurrences=1) == [("Bank of America", 0.55, 1), ("Giannini", 0.24, 1)]
    assert shown(BANK, occurrences=0) == [(phrase, score, 0) for phrase, score, _ in everything]
    kept = [(each.phrase, each.score, 2) for each in BANK]
    assert shown(BANK, overlaps=Overlaps.keep) == kept[:5]
    assert shown(BANK, overlaps=Overlaps.keep, k=9) == kept
    without = [placed("Bank of America", 0.3, None), placed("Bank", 0.2, None)]
    assert shown(without) == [("Bank of America", 0.3, 0), ("Bank", 0.2, 0)]
    # what overlaps with two entries belongs to the better one; the order stays that of the best phrases
    chain = [placed("ab", 0.3, 0), placed("cd", 0.25, 2), placed("bcd", 0.2, 1), placed("cde", 0.2, 2)]
    assert shown(chain) == [("ab", 0.5, 2), ("cd", 0.45, 2)]
    assert shown([]) == []


MERGED = ["The capital of Iceland is <mask>.", "a river <mask> the sea"]


@pytest.fixture(scope="module")
def overlapping(tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    encoder = tiny_encoder("bert")
    return PhraseFiller(index_of_texts(tmp_path_factory.mktemp("overlaps") / "index", SENTENCES, encoder), encoder)


@pytest.mark.parametrize("k", [1, 5, 12, 10_000])
def test_answers_have_k_entries_of_different_places(overlapping: PhraseFiller, k: int) -> None:
    kept = PhraseFiller(overlapping.index, overlapping.encoder, FillSettings(overlaps=Overlaps.keep))
    for text, answer in zip(MERGED, overlapping.fill(MERGED, k=k), strict=True):
        every = kept.fill(text, k=10_000).phrases
        entries = without_overlaps(every, FillSettings(k=10_000))
        assert [each.phrase for each in answer.phrases] == [each.phrase for each in entries[:k]]
        assert sum(each.score for each in answer.phrases) <= 1 + 1e-9
        places = [each.occurrences[0] for each in answer.phrases]
        for one, other in itertools.combinations(places, 2):
            apart = one.end_char <= other.start_char or other.end_char <= one.start_char
            assert one.document != other.document or apart
        bare = overlapping.fill(text, k=k, occurrences=0).phrases
        assert [each.phrase for each in bare] == [each.phrase for each in answer.phrases]
        assert [each.score for each in bare] == pytest.approx([each.score for each in answer.phrases], rel=1e-9)
        assert not any(each.occurrences for each in bare)


def test_each_mask_of_a_text_has_k_entries_of_different_places(overlapping: PhraseFiller) -> None:
    text = "<mask> is the capital of <mask>."
    answer = overlapping.fill(text, k=12)
    assert isinstance(answer, JointAnswer)
    kept = PhraseFiller(overlapping.index, overlapping.encoder, FillSettings(overlaps=Overlaps.keep))
    every = kept.fill(text, k=10_000)
    assert isinstance(every, JointAnswer)
    for mask, phrases in zip(answer.masks, every.masks, strict=True):
        entries = without_overlaps(phrases.phrases, FillSettings(k=12))
        assert [each.phrase for each in mask.phrases] == [each.phrase for each in entries]
        assert sum(each.score for each in mask.phrases) <= 1 + 1e-9


def test_the_note_on_few_phrases_counts_what_is_shown(overlapping: PhraseFiller) -> None:
    overlapping.settings = FillSettings(bm25_blocks=1)
    try:
        counts = [10, 20, 30]
        answers = [overlapping.fill(MERGED[0], k=k) for k in counts]
    finally:
        overlapping.settings = FillSettings()
    noted = [f"{len(each.phrases)} of {k} phrases" in str(each.notes) for k, each in zip(counts, answers, strict=True)]
    assert noted == [len(each.phrases) < k for k, each in zip(counts, answers, strict=True)]
    assert noted[-1] and len(answers[-1].phrases) < len(overlapping.fill(MERGED[0], k=30).phrases)


TEXTS = [
    "The capital of Iceland is <mask>.",
    "<mask> and Kraków are in <mask>.",
    "<mask> wrote about Zorkville in iGnusto.",
]


@pytest.fixture(scope="module")
def filler(built_index: Path) -> PhraseFiller:
    return PhraseFiller.open(built_index)


@pytest.mark.parametrize("min_share", [0.05, 0.3, 0.6, 0.9, 1.0])
def test_the_status_compares_the_best_share_and_nothing_else_changes(filler: PhraseFiller, min_share: float) -> None:
    for before, after in zip(filler.fill(TEXTS), filler.fill(TEXTS, min_share=min_share), strict=True):
        best = getattr(before, "fillings", None) or before.phrases
        low = not best or best[0].score < min_share or "Zorkville" in before.text
        assert (before.status, after.status) == ("ok", "low_evidence" if low else "ok")
        assert replace(after, status="ok", notes=after.notes[: len(after.notes) - low]) == before
        assert low == any("no clear answer" in note for note in after.notes)


def test_an_answer_without_phrases_is_unclear_and_sums_have_no_threshold(
    built_index: Path, filler: PhraseFiller
) -> None:
    assert filler.fill(TEXTS[0], documents=[], min_share=0.1).status == "low_evidence"
    reference = replace(FillSettings.reference(), min_share=1.0)
    assert PhraseFiller.open(built_index, settings=reference).fill(TEXTS[0]).status == "ok"
    with pytest.raises(SettingError, match="min_share"):
        filler.fill(TEXTS[0], min_share=2)


def test_capitalized_words_that_occur_nowhere_are_named(filler: PhraseFiller) -> None:
    known, _, unknown = (" ".join(answer.notes) for answer in filler.fill(["Strolling <mask>.", *TEXTS[1:]]))
    assert "not in the corpus" not in known
    assert "not in the corpus: Zorkville, iGnusto" in unknown


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("Who is the dealer in Zorkville?", ["Zorkville"]),
        ("When was the P500 released?", ["P500"]),
        ("Who is the CEO of the club?", []),  # may be spelled out
        ("Who won the Spanish race?", []),  # of Spain
        ("Who wrote in Madrid?", []),
        ("Zorkville is where?", []),  # a sentence begins with a capital
    ],
)
def test_names_and_codes_missing_from_the_corpus(filler: PhraseFiller, text: str, missing: list[str]) -> None:
    lexicon = filler.index.lexicon
    assert [word for word in unknown_words(text, lexicon) if is_name(word)] == missing

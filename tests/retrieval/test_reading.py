"""What a reader says of the blocks that a text is answered from, and how it counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npm.core.types import Answer, TokenFlag
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.settings import IndexBuildSettings
from npm.models.encoder import Encoder
from npm.reading.confidence import Confidence
from npm.reading.mask_reader import MaskReader
from npm.reading.reader import Passage, TokenScores
from npm.reading.span_head import SpanHeadReader
from npm.retrieval.blocks import BlockPlan, passage_of, read_blocks
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval, ScoringSettings
from tests.helpers.tiny_models import FAMILIES, SENTENCES, tiny_encoder, tiny_span_head

TEXTS = [
    "The capital of Iceland is <mask>.",
    "<mask> and Kraków are cities in Poland",
    "The river <mask> rises in Switzerland. It flows to the North Sea in the Netherlands, past many cities.",
]
SETTINGS = FillSettings(overlaps=Overlaps.keep, k=20)


def opened(encoder: Encoder, folder: Path, *, max_block_tokens: int = 24, title: str = "") -> PhraseFiller:
    file = folder / "corpus.jsonl"
    records = [{"id": f"d{number}", "title": title, "text": text} for number, text in enumerate(SENTENCES)]
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    blocks = BlockSettings(max_block_tokens=max_block_tokens)
    build_index(folder / "index", IndexBuildSettings(corpus=CorpusSettings(files=[str(file)]), blocks=blocks), encoder)
    return PhraseFiller.open(folder / "index", encoder)


@pytest.fixture(scope="module", params=FAMILIES)
def filler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    return opened(tiny_encoder(request.param), tmp_path_factory.mktemp("reading"))


@pytest.fixture(scope="module")
def bert_filler(tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    return opened(tiny_encoder("bert"), tmp_path_factory.mktemp("reading"))


def assert_same_answers(first: Sequence[Answer], second: Sequence[Answer], *, exact: bool = False) -> None:
    for left, right in zip(first, second, strict=True):
        assert [phrase.phrase for phrase in left.phrases] == [phrase.phrase for phrase in right.phrases]
        assert [phrase.occurrences for phrase in left.phrases] == [phrase.occurrences for phrase in right.phrases]
        scores = ([phrase.score for phrase in answer.phrases] for answer in (left, right))
        np.testing.assert_allclose(*scores, rtol=0 if exact else 1e-4)


def plan_of(*blocks: int) -> BlockPlan:
    return BlockPlan.within(np.array(blocks, dtype=np.int64))


def filled(filler: PhraseFiller, settings: FillSettings, texts: Sequence[str] = TEXTS) -> list[Answer]:
    reading = PhraseFiller(filler.index, filler.encoder, settings, reader=MaskReader(filler.encoder))
    return reading.fill(list(texts))


class SureReader:
    """Says that an answer is one word, wherever it stands."""

    name = fingerprint = "sure"
    confidence: Confidence | None = None

    def __init__(self, word: str) -> None:
        self.word = word

    def read(self, pairs: Sequence[tuple[str, Passage]]) -> Iterator[list[TokenScores]]:
        for text, passage in pairs:
            first = passage.text.find(self.word)
            stop = first + len(self.word) if first >= 0 else 0
            bounds = np.array([[0, max(first, 1)], [max(first, 1), max(stop, 2)], [max(stop, 2), len(passage.text)]])
            sure, unsure = np.log([[0.01, 0.97, 0.01]] * 2), np.log([[0.01, 0.01, 0.01]] * 2)
            scores = sure if first >= 0 else unsure
            none = np.log1p(-np.exp(scores).sum(1))
            yield [TokenScores(bounds, scores, none)] * text.count("<mask>")


def test_any_object_that_reads_chooses_the_phrase(filler: PhraseFiller) -> None:
    sure = PhraseFiller(filler.index, filler.encoder, SETTINGS, reader=SureReader("Oslofjord"))
    answer = sure.fill("What is at the end of Norway's capital Oslo?")
    assert answer.phrases[0].phrase == "Oslofjord"
    assert answer.text == "What is at the end of Norway's capital Oslo? <mask>."


def test_confidence_is_that_of_the_features_and_decides_the_status(filler: PhraseFiller) -> None:
    reader = SureReader("Oslofjord")
    reader.confidence = Confidence((1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 2.0, 0.5)
    sure = PhraseFiller(filler.index, filler.encoder, SETTINGS, reader=reader)
    known = sure.fill("What is at the end of Norway's capital Oslo?")
    assert known.confidence == pytest.approx(1 / (1 + np.exp(-(2 * np.log(0.97) + 2.0))))
    assert known.status == "ok"
    assert sure.fill(known.text, min_confidence=known.confidence).status == "ok"
    reader.word = "Atlantis"
    unknown = sure.fill("What is at the end of Norway's capital Oslo?")
    assert unknown.confidence is not None and unknown.confidence < 0.5
    assert unknown.status == "low_evidence" and unknown.phrases
    assert sure.fill("Oslo is in <mask>.", min_confidence=0.0).status == "ok"
    assert sure.fill("<mask> is in <mask>.").confidence is None
    without = PhraseFiller(filler.index, filler.encoder, replace(SETTINGS, reader="none"), reader=reader)
    assert without.fill("Oslo is in <mask>.").confidence is None


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("What is at the end of Norway's capital Oslo?", "ok"),
        ("What is at the end of Zorkland's capital Oslo?", "low_evidence"),  # a name that the corpus lacks
        ("What is at the end of the CBD's capital Oslo?", "ok"),  # an abbreviation of what it may spell out
        ("What is at the end of zorkland's capital Oslo?", "ok"),
    ],
)
def test_no_answer_about_what_the_corpus_does_not_name_is_clear(filler: PhraseFiller, text: str, status: str) -> None:
    reader = SureReader("Oslofjord")
    reader.confidence = Confidence((1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 2.0, 0.5)
    sure = PhraseFiller(filler.index, filler.encoder, SETTINGS, reader=reader)
    answer = sure.fill(text)
    assert (answer.status, answer.phrases[0].phrase) == (status, "Oslofjord")
    assert (status == "ok") or any("Zorkland" in note for note in answer.notes)
    assert sure.fill(text, min_confidence=0.0).status == "ok"


def test_confidence_does_not_depend_on_the_number_of_phrases_shown(filler: PhraseFiller) -> None:
    reader = SureReader("Oslofjord")
    reader.confidence = Confidence((0.1, 0.2, 0.3, 0.4, 0.5, 0.6), 0.0, 0.0)
    found = {
        PhraseFiller(filler.index, filler.encoder, replace(SETTINGS, k=k, overlaps=overlaps), reader=reader)
        .fill("Oslo is at the end of <mask>.")
        .confidence
        for k in (1, 2, 10)
        for overlaps in Overlaps
    }
    assert len(found) == 1 and None not in found


def test_what_the_reader_cannot_read_has_phrases_without_evidence_and_no_error(tmp_path: Path) -> None:
    class Blind:
        name = fingerprint = "blind"

        def read(self, pairs: Sequence[tuple[str, Passage]]) -> Iterator[list[TokenScores]]:
            for each in SureReader("Oslofjord").read(pairs):
                yield [replace(own, scores=np.full_like(own.scores, -np.inf)) for own in each]

    settings = replace(SETTINGS, literal_weight=8.0, bm25_blocks=3)
    blind = opened(tiny_encoder("bert"), tmp_path)
    # nothing in the text but what every block may have: the gap after it is open, and no weight is above zero
    for text in ("<mask>", "= = = <mask>.", "Oslo is at the end of <mask>."):
        answer = PhraseFiller(blind.index, blind.encoder, settings, reader=Blind()).fill(text)
        assert np.isfinite([phrase.score for phrase in answer.phrases]).all()


def test_an_object_that_reads_needs_no_confidence(filler: PhraseFiller) -> None:
    class Plain:
        name = fingerprint = "plain"
        read = SureReader("Oslofjord").read

    answer = PhraseFiller(filler.index, filler.encoder, replace(SETTINGS, min_confidence=0.5), reader=Plain()).fill(
        "Oslo is at the end of <mask>."
    )
    assert (answer.confidence, answer.status) == (None, "ok")
    assert any("min_confidence" in note for note in answer.notes)


def test_each_mask_has_the_scores_of_the_blocks_of_its_text(filler: PhraseFiller) -> None:
    store, reader = filler.index.store, MaskReader(filler.encoder)
    plans = [plan_of(1, 3), BlockPlan.everywhere(), plan_of(0)]
    read = read_blocks(store, reader, TEXTS, plans)
    assert [len(masks) for masks in read] == [1, 0, 1]
    for text, masks, plan in zip(TEXTS, read, plans, strict=True):
        if plan.is_everywhere:
            continue
        (found,) = masks
        for scores, block in zip(found.joint, plan.blocks.tolist(), strict=True):
            ((expected,),) = reader.read([(text, passage_of(store, block))])
            np.testing.assert_allclose(scores, expected.scores, atol=1e-4)


def test_titles_are_read_with_their_blocks_and_answer_nothing(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    encoder.title_tokens = 4
    filler = opened(encoder, tmp_path, title="Wonder of the World")
    store = filler.index.store
    flags = store.sequences(range(2, 3)).flags
    titles = int((flags == TokenFlag.TITLE).sum())
    passage = passage_of(store, 2)
    assert titles > 0 and passage.tokens is not None and len(passage.tokens.bounds) == len(flags) - titles
    ((found,),) = read_blocks(store, MaskReader(encoder), TEXTS[:1], [plan_of(2)])
    assert found.joint[0].shape == (2, len(flags))
    ((untitled,),) = MaskReader(encoder).read([(TEXTS[0], Passage(passage.text))])
    assert np.abs(found.joint[0][:, titles:] - untitled.scores).max() > 1e-3


def test_reading_changes_answers_of_hybrid_and_no_others(bert_filler: PhraseFiller) -> None:
    for retrieval in (Retrieval.dense, Retrieval.bm25, Retrieval.hybrid):
        settings = replace(SETTINGS, retrieval=retrieval)
        unread, read = (filled(bert_filler, replace(settings, reader=name)) for name in ("none", ""))
        scores = [[phrase.score for answer in answers for phrase in answer.phrases] for answers in (unread, read)]
        assert (scores[0] == pytest.approx(scores[1], rel=1e-5)) is (retrieval is not Retrieval.hybrid)


@pytest.mark.parametrize("scoring", [ScoringSettings(), FillSettings.reference().scoring], ids=["ours", "reference"])
def test_texts_read_together_get_the_answers_they_get_alone(scoring: ScoringSettings, filler: PhraseFiller) -> None:
    settings = replace(SETTINGS, scoring=scoring)
    together = filled(filler, settings)
    assert all(answer.phrases for answer in together)
    assert_same_answers(together, [filled(filler, settings, [text])[0] for text in TEXTS])
    for answer in together:
        scores = [phrase.score for phrase in answer.phrases]
        assert scores == sorted(scores, reverse=True)


def test_a_temperature_divides_what_the_reader_says(bert_filler: PhraseFiller) -> None:
    scores: list[dict[str, float]] = []
    for temperature in (1.0, 2.0):
        scoring = ScoringSettings(temperature=temperature, length_exponent=0.0)
        changes = {"k": 1000, "occurrences": 1000, "bm25_blocks": 1000, "lexical_weight": 0.0, "scoring": scoring}
        (answer,) = filled(bert_filler, replace(SETTINGS, **changes), TEXTS[:1])
        scores.append({phrase.phrase: phrase.score for phrase in answer.phrases if len(phrase.occurrences) == 1})
    assert scores[0].keys() == scores[1].keys() and len(scores[0]) > 10
    steep, flat = (np.log(np.array([each[phrase] for phrase in scores[0]])) for each in scores)
    assert np.ptp(steep) > 1
    np.testing.assert_allclose(flat - flat[0], (steep - steep[0]) / 2, atol=1e-3)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_reader_of_transformers_answers_over_an_index_of_other_tokens(
    family: str, filler: PhraseFiller, tmp_path: Path
) -> None:
    name = tiny_span_head(family, tmp_path)
    settings = replace(SETTINGS, reader=name)
    with PhraseFiller.open(filler.index.folder, filler.encoder, settings=settings) as reading:
        assert isinstance(reading.reader(settings), SpanHeadReader)
        answer = reading.fill("Which city is the capital of Iceland?")
    assert answer.phrases and all(phrase.occurrences for phrase in answer.phrases)


def test_passages_in_a_script_that_the_reader_does_not_know_are_noted(bert_filler: PhraseFiller) -> None:
    class Stranger(SureReader):
        def read(self, pairs: Sequence[tuple[str, Passage]]) -> Iterator[list[TokenScores]]:
            for own in super().read(pairs):
                yield [replace(each, unknown_share=0.9) for each in own]

    def notes(reader: SureReader) -> str:
        return " ".join(PhraseFiller(bert_filler.index, bert_filler.encoder, reader=reader).fill(TEXTS[0]).notes)

    assert "language" in notes(Stranger("Iceland")) and "language" not in notes(SureReader("Iceland"))


def test_a_long_passage_is_read_in_windows_that_fit_behind_the_beginning_of_its_title() -> None:
    encoder = tiny_encoder("bert", max_positions=40)
    encoder.title_tokens = 3
    text, title = " ".join(SENTENCES), "Norway Iceland Poland"
    pairs = [("The capital is <mask>.", Passage(text, each)) for each in (title, f"{title} of the North Sea", "")]
    titled, longer, untitled = (scores for (scores,) in MaskReader(encoder).read(pairs))
    assert len(titled.bounds) > 2 * encoder.max_input_tokens
    assert np.isfinite(titled.scores).all()
    np.testing.assert_array_equal(titled.scores, longer.scores)
    assert not np.allclose(titled.scores, untitled.scores)

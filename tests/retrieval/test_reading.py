"""Questions that are read together with the blocks they are answered from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from npm.core.types import MASK_TEXT, Answer, TokenFlag
from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.settings import IndexBuildSettings
from npm.models.encoder import Encoder
from npm.retrieval import reading
from npm.retrieval.blocks import Restriction, block_restrictions
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import encode_queries
from npm.retrieval.reading import TRAINED_JOINT_SHARE, joint_share, joint_similarities, with_reading
from npm.retrieval.scoring import ScoringSettings
from npm.retrieval.search import Search
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval
from tests.helpers.tiny_models import FAMILIES, SENTENCES, tiny_encoder

TEXTS = [
    "The capital of Iceland is <mask>.",
    "<mask> and Kraków are cities in Poland",
    "The river <mask> rises in Switzerland. It flows to the North Sea in the Netherlands, past many cities.",
]


def opened(encoder: Encoder, folder: Path, *, max_block_tokens: int = 24, title: str = "") -> PhraseFiller:
    file = folder / "corpus.jsonl"
    records = [{"id": f"d{number}", "title": title, "text": text} for number, text in enumerate(SENTENCES)]
    lines = [json.dumps(record) for record in records]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = IndexBuildSettings(
        corpus=CorpusSettings(files=[str(file)]), blocks=BlockSettings(max_block_tokens=max_block_tokens)
    )
    build_index(folder / "index", settings, encoder)
    return PhraseFiller.open(folder / "index", encoder)


@pytest.fixture(scope="module", params=FAMILIES)
def filler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    return opened(tiny_encoder(request.param), tmp_path_factory.mktemp("reading"))


@pytest.fixture(scope="module")
def bert_filler(tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    return opened(tiny_encoder("bert"), tmp_path_factory.mktemp("reading"))


def settings_with(share: float, **changes: object) -> FillSettings:
    return replace(FillSettings(overlaps=Overlaps.keep, k=20, reading_share=share), **changes)


def restriction_to(*blocks: int) -> Restriction:
    return Restriction.within(np.array(blocks, dtype=np.int64))


def read_by_hand(filler: PhraseFiller, text: str, block: int | None) -> np.ndarray:
    """The start and end query f32 [2, d] of one text with one block behind it, without padding."""
    states, first, _ = pass_by_hand(filler, text, block)
    return states[[first, first + 1]].numpy()


def pass_by_hand(filler: PhraseFiller, text: str, block: int | None) -> tuple[torch.Tensor, int, list[int]]:
    """Vectors f32 [L, d] of one text with one block behind it, where its masks begin, and where the block is."""
    encoder = filler.encoder
    before, after = text.split(MASK_TEXT)
    before = before.rstrip() if type(encoder.model).__name__.startswith(("Roberta", "ModernBert")) else before
    halves = [encoder.tokenizer(half, add_special_tokens=False)["input_ids"] for half in (before, after)]
    ids = [*encoder.prefix_ids, *halves[0], encoder.mask_id, encoder.mask_id, *halves[1], *encoder.suffix_ids]
    asked = read = len(ids)
    if block is not None:
        room = encoder.max_input_tokens - len(ids) - len(encoder.suffix_ids)
        passage = filler.index.store.sequences(range(block, block + 1)).token_ids.tolist()
        ids += [*passage[:room], *encoder.suffix_ids] if room > 0 else []
        read += len(passage[: max(room, 0)])
    with torch.no_grad():
        states = encoder.token_vectors(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.int64))[0]
    return states, len(encoder.prefix_ids) + len(halves[0]), list(range(asked, read))


def queries_read(
    filler: PhraseFiller, restrictions: list[Restriction | None], share: float, texts: list[str] = TEXTS
) -> list[Restriction | None]:
    vectors = encode_queries(filler.encoder, texts)
    return with_reading(filler.index, filler.encoder, texts, vectors, restrictions, settings_with(share))


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_queries_are_mixed_from_the_text_alone_and_the_text_with_each_block_behind_it(
    share: float, filler: PhraseFiller
) -> None:
    last = filler.index.store.block_count - 1
    restrictions: list[Restriction | None] = [restriction_to(0, 2, last), restriction_to(1), restriction_to(0, 3)]
    for text, before, after in zip(TEXTS, restrictions, queries_read(filler, restrictions, share), strict=True):
        assert before is not None and after is not None and after.queries is not None
        assert after.blocks.tolist() == before.blocks.tolist()
        alone = read_by_hand(filler, text, None)
        for queries, block in zip(after.queries, before.blocks.tolist(), strict=True):
            expected = share * read_by_hand(filler, text, block) + (1 - share) * alone
            np.testing.assert_allclose(queries, expected, atol=1e-5)


def test_texts_that_look_everywhere_or_nowhere_read_nothing(bert_filler: PhraseFiller) -> None:
    restrictions = [None, restriction_to(), restriction_to(4, 1)]  # in any order
    everywhere, nowhere, somewhere = queries_read(bert_filler, restrictions, 1.0)
    assert everywhere is None
    assert nowhere is not None and nowhere.queries is not None and len(nowhere.queries) == 0
    assert somewhere is not None and somewhere.queries is not None
    for queries, block in zip(somewhere.queries, (4, 1), strict=True):
        np.testing.assert_allclose(queries, read_by_hand(bert_filler, TEXTS[2], block), atol=1e-5)
    assert queries_read(bert_filler, [None] * 3, 1.0) == [None] * 3
    assert queries_read(bert_filler, [], 1.0, []) == []


def test_a_block_that_does_not_fit_is_cut_and_one_without_any_room_is_not_read(tmp_path: Path) -> None:
    filler = opened(tiny_encoder("bert", max_positions=28), tmp_path, max_block_tokens=26)
    alone = read_by_hand(filler, TEXTS[0], None)
    (partly,) = queries_read(filler, [restriction_to(0)], 1.0, TEXTS[:1])
    assert partly is not None and partly.queries is not None
    passage = filler.index.store.sequences(range(1)).token_ids
    assert len(filler.encoder.tokenizer(TEXTS[0])["input_ids"]) + len(passage) > 28
    np.testing.assert_allclose(partly.queries[0], read_by_hand(filler, TEXTS[0], 0), atol=1e-5)
    assert np.abs(partly.queries[0] - alone).max() > 1e-3
    long = "Iceland " * 60 + MASK_TEXT
    (full,) = queries_read(filler, [restriction_to(0)], 1.0, [long])
    assert full is not None and full.queries is not None
    vectors = encode_queries(filler.encoder, [long])
    np.testing.assert_allclose(full.queries[0], np.stack([vectors.start[0], vectors.end[0]]), atol=1e-5)


def assert_same_answers(first: list[Answer], second: list[Answer], *, exact: bool = False) -> None:
    for left, right in zip(first, second, strict=True):
        assert [phrase.phrase for phrase in left.phrases] == [phrase.phrase for phrase in right.phrases]
        assert [phrase.occurrences for phrase in left.phrases] == [phrase.occurrences for phrase in right.phrases]
        scores = ([phrase.score for phrase in answer.phrases] for answer in (left, right))
        np.testing.assert_allclose(*scores, rtol=0 if exact else 1e-4)


def filled(filler: PhraseFiller, settings: FillSettings, texts: list[str] = TEXTS) -> list[Answer]:
    return PhraseFiller(filler.index, filler.encoder, settings).fill(texts)


def test_a_share_of_zero_answers_like_a_hybrid_that_cannot_read(
    bert_filler: PhraseFiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_nothing = filled(bert_filler, settings_with(0.0))
    vectors = encode_queries(bert_filler.encoder, TEXTS)
    lexical = block_restrictions(bert_filler.index, TEXTS, vectors, settings_with(0.0))
    mixed = with_reading(bert_filler.index, bert_filler.encoder, TEXTS, vectors, lexical, settings_with(0.0))
    monkeypatch.setattr("npm.retrieval.fill.block_restrictions", lambda *_, allowed: mixed)
    assert_same_answers(filled(bert_filler, settings_with(0.0)), read_nothing)


def test_reading_changes_answers_of_hybrid_and_no_others(bert_filler: PhraseFiller) -> None:
    for retrieval in (Retrieval.dense, Retrieval.bm25):
        answers = [filled(bert_filler, settings_with(share, retrieval=retrieval)) for share in (0.0, 1.0)]
        assert_same_answers(*answers, exact=True)
    without, reading = (filled(bert_filler, settings_with(share)) for share in (0.0, 1.0))
    scores = [[phrase.score for answer in answers for phrase in answer.phrases] for answers in (without, reading)]
    assert scores[0] != pytest.approx(scores[1], rel=1e-5)


@pytest.mark.parametrize("scoring", [ScoringSettings(), FillSettings.reference().scoring], ids=["ours", "reference"])
def test_texts_read_together_get_the_answers_they_get_alone(scoring: ScoringSettings, filler: PhraseFiller) -> None:
    settings = settings_with(0.5, scoring=scoring)
    together = filled(filler, settings)
    assert all(answer.phrases for answer in together)
    assert_same_answers(together, [filled(filler, settings, [text])[0] for text in TEXTS])
    for answer in together:
        scores = [phrase.score for phrase in answer.phrases]
        assert scores == sorted(scores, reverse=True)


def joint_by_hand(filler: PhraseFiller, text: str, block: int) -> np.ndarray:
    """The scores f64 [2, T] of the tokens of a block, read in one pass behind the text."""
    states, first, tokens = pass_by_hand(filler, text, block)
    states = states.double()
    logits = states[[first, first + 1]] @ states.T * filler.encoder.similarity_scale  # f64 [2, L]
    flags = filler.index.store.sequences(range(block, block + 1)).flags.tolist()
    keys = [0, *(at for at, flag in zip(tokens, flags, strict=True) if flag != TokenFlag.TITLE)]
    return (logits[:, tokens] - logits[:, keys].logsumexp(1, keepdim=True)).numpy()


def test_titles_are_read_with_their_blocks_and_are_no_keys_of_the_joint_pass(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    encoder.title_tokens = 4
    filler = opened(encoder, tmp_path, title="Wonder of the World")
    flags = filler.index.store.sequences(range(2, 3)).flags
    assert 0 < int((flags == TokenFlag.TITLE).sum()) < len(flags) / 2
    (read,) = with_reading(
        filler.index,
        encoder,
        TEXTS[:1],
        encode_queries(encoder, TEXTS[:1]),
        [restriction_to(2)],
        settings_with(0.5, joint_share=0.5),
    )
    assert read is not None and read.joint is not None
    np.testing.assert_allclose(read.joint[0], joint_by_hand(filler, TEXTS[0], 2), atol=1e-4)


@pytest.mark.parametrize("pairs_at_once", [256, 2])
def test_keys_of_the_joint_pass_compete_with_each_other_and_with_the_first_token(
    pairs_at_once: int, filler: PhraseFiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PAIRS_AT_ONCE", pairs_at_once)
    vectors = encode_queries(filler.encoder, TEXTS)
    asked = [restriction_to(1, 3), None, restriction_to(0)]
    settings = settings_with(0.5, joint_share=0.5)
    read = with_reading(filler.index, filler.encoder, TEXTS, vectors, asked, settings)
    assert read[1] is None
    for text, restriction in zip(TEXTS[::2], read[::2], strict=True):
        assert restriction is not None and restriction.joint is not None
        assert len(restriction.joint) == len(restriction.blocks)
        for scores, block in zip(restriction.joint, restriction.blocks.tolist(), strict=True):
            np.testing.assert_allclose(scores, joint_by_hand(filler, text, block), atol=1e-4)
            assert np.exp(scores).sum(1).max() < 1  # the rest is "not here"


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_similarities_mix_the_stored_keys_and_those_of_the_joint_pass(share: float, bert_filler: PhraseFiller) -> None:
    index, encoder = bert_filler.index, bert_filler.encoder
    settings = settings_with(1.0, joint_share=share)
    vectors = encode_queries(encoder, TEXTS[:1])
    (restriction,) = with_reading(
        index, encoder, TEXTS[:1], vectors, [Restriction(np.array([1, 2]), np.array([0.0, 3.0]))], settings
    )
    assert restriction is not None and restriction.queries is not None and restriction.joint is not None
    assert index.vectors is not None
    seen: dict[int, float] = {}
    offsets = index.store.block_offsets
    for place, (block, bonus) in enumerate(((1, 0.0), (2, 3.0))):
        rows = index.rows.rows_within(offsets[[block]], offsets[[block + 1]])
        for row, position in zip(rows.tolist(), index.rows.positions(rows).tolist(), strict=True):
            key = index.vectors.take(np.array([row]))[0].astype(np.float32)  # f32 [d]
            stored = encoder.similarity_scale * float(restriction.queries[place][0] @ key)
            joint = float(restriction.joint[place][0, position - offsets[block]])
            seen[row] = (1 - share) * stored + share * joint + bonus
    all_rows = np.array(sorted(seen))
    scans = [index.searcher.scan(pair, all_rows) for pair in restriction.queries]
    factors = (1 - share) * encoder.similarity_scale, share
    got = Search(index, scans, (0, 1), (all_rows, None), factors, restriction).similarities(0, all_rows)
    np.testing.assert_allclose(got, [seen[row] for row in all_rows.tolist()], atol=1e-3)


def test_a_temperature_divides_the_similarities_of_the_joint_pass_too(bert_filler: PhraseFiller) -> None:
    scores: list[dict[str, float]] = []
    for temperature in (1.0, 2.0):
        scoring = ScoringSettings(temperature=temperature, length_exponent=0.0)
        changes = {"k": 1000, "occurrences": 1000, "bm25_blocks": 1000, "lexical_weight": 0.0, "scoring": scoring}
        (answer,) = filled(bert_filler, settings_with(0.5, joint_share=0.5, **changes), TEXTS[:1])
        scores.append({phrase.phrase: phrase.score for phrase in answer.phrases if len(phrase.occurrences) == 1})
    assert scores[0].keys() == scores[1].keys() and len(scores[0]) > 10
    steep, flat = (np.log(np.array([each[phrase] for phrase in scores[0]])) for each in scores)
    assert np.ptp(steep) > 1
    np.testing.assert_allclose(flat - flat[0], (steep - steep[0]) / 2, atol=1e-3)


def test_a_joint_share_is_taken_up_by_encoders_that_were_trained_for_it(bert_filler: PhraseFiller) -> None:
    encoder = tiny_encoder("bert")
    assert joint_share(FillSettings(), encoder) == 0.0
    encoder.reads_jointly = True
    assert joint_share(FillSettings(), encoder) == TRAINED_JOINT_SHARE > 0
    assert joint_share(FillSettings(joint_share=0.0), encoder) == 0.0


def test_a_token_that_was_cut_off_is_as_far_as_the_farthest_that_was_read(rng: np.random.Generator) -> None:
    queries, keys = rng.standard_normal((2, 8)), rng.standard_normal((4, 8))  # the first token and three of five
    scores = joint_similarities(queries, keys, np.zeros(5, dtype=np.uint8), 1.0)  # f64 [2, 5]
    products = queries @ keys.T  # f64 [2, 4]
    expected = products - np.log(np.exp(products).sum(1, keepdims=True))
    np.testing.assert_allclose(scores[:, :3], expected[:, 1:])
    np.testing.assert_allclose(scores[:, 3:], np.repeat(expected.min(1, keepdims=True), 2, axis=1))


def test_without_a_reading_share_blocks_are_read_only_for_a_joint_share(
    bert_filler: PhraseFiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[float | None] = []

    def with_reading(*given: Any) -> Any:
        reads.append(given[-1].joint_share)
        return reading.with_reading(*given)

    monkeypatch.setattr("npm.retrieval.fill.with_reading", with_reading)
    for share in (0.0, 0.5):
        bert_filler.settings = settings_with(0.0, joint_share=share)
        bert_filler.fill(TEXTS[0])
    assert reads == [0.5]


def test_a_joint_share_asked_of_an_encoder_that_was_not_trained_for_it_is_noted(bert_filler: PhraseFiller) -> None:
    def notes(**changes: object) -> str:
        bert_filler.settings = settings_with(0.5, **changes)
        return " ".join(bert_filler.fill(TEXTS[0]).notes)

    assert "joint_share=0 may answer better" in notes(joint_share=0.5)
    assert "joint_share" not in notes() + notes(joint_share=0.0) + notes(joint_share=0.5, retrieval=Retrieval.dense)

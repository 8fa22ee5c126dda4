"""Texts as queries, their masks and neighbors; plain questions as statements."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npm.core.errors import QueryError
from npm.core.types import MASK_TEXT
from npm.models.settings import PoolerKind
from npm.retrieval.queries import (
    MaskNeighbors,
    QueryVectors,
    check_query,
    encode_masks,
    encode_queries,
    masked_inputs,
    read_queries,
    read_query,
)
from tests.helpers.tiny_models import FAMILIES, tiny_encoder


@pytest.mark.parametrize("text", ["", " \n", "no mask here", "<mask> and <mask>", "broken \udcff <mask>"])
def test_a_text_that_is_not_one_question_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match="line 3") as caught:
        check_query(text, where="line 3")
    str(caught.value).encode()  # a message that can be printed


@pytest.mark.parametrize("family", ["roberta", "modernbert"])
def test_a_text_is_read_as_the_tokenizer_reads_it_with_its_mask_and_the_mask_is_doubled(family: str) -> None:
    encoder = tiny_encoder(family)
    for text in ("The capital<mask> is", "The capital <mask>, they", "<mask>", " Ärger  <mask>  x"):
        ids = encoder.tokenizer(text)["input_ids"]
        slot = ids.index(encoder.mask_id)
        doubled = torch.tensor([[*ids[:slot], encoder.mask_id, *ids[slot:]]])
        with torch.no_grad():
            states = encoder.token_vectors(doubled, torch.ones_like(doubled))[0].numpy()
        got = encode_queries(encoder, [text])
        np.testing.assert_allclose(got.start[0], states[slot], atol=1e-5)
        np.testing.assert_allclose(got.end[0], states[slot + 1], atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_batching_changes_neither_order_nor_vectors(family: str) -> None:
    encoder = tiny_encoder(family)
    texts = [f"{'Paris lies on the Seine. ' * count}It is <mask>." for count in (3, 0, 2, 1, 0)]
    together = encode_queries(encoder, texts, tokens_per_batch=40)
    for number, text in enumerate(texts):
        alone = encode_queries(encoder, [text])
        np.testing.assert_allclose(together.start[number], alone.start[0], atol=1e-5)
        np.testing.assert_allclose(together.end[number], alone.end[0], atol=1e-5)


def test_special_tokens_written_by_the_user_are_ordinary_text() -> None:
    encoder = tiny_encoder("bert")
    seen: list[list[int]] = []
    original = encoder.token_vectors

    def watch(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        seen.append(input_ids[0].tolist())
        return original(input_ids, attention_mask)

    encoder.token_vectors = watch  # type: ignore[method-assign]
    encode_queries(encoder, ["What is [MASK] or [SEP]? <mask>"])
    assert seen[0].count(encoder.mask_id) == 2
    assert seen[0].count(encoder.suffix_ids[0]) == 1


SEVERAL = (
    "Paris lies on<mask>, <mask> on the Rhine",
    "<mask><mask>",
    "<mask> x<mask>y  <mask> ",
    "The capital is <mask>",
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("query_masks", [1, 2])
@pytest.mark.parametrize("kind", [PoolerKind.avg, PoolerKind.cls_before_pooler])
def test_all_masks_of_a_text_are_encoded_in_one_pass(family: str, query_masks: int, kind: PoolerKind) -> None:
    encoder = tiny_encoder(family)
    encoder.query_masks = query_masks
    strips = family != "bert"  # the mask token takes the space to its left
    starts, ends, sentences = [], [], []
    for text in SEVERAL:
        first, *others = text.split("<mask>")
        ids, slots = [*encoder.prefix_ids], []
        pieces = [first, *others]
        for piece in pieces[:-1]:
            ids += encoder.tokenizer(piece.rstrip() if strips else piece, add_special_tokens=False)["input_ids"]
            slots.append(len(ids))
            ids += [encoder.mask_id] * query_masks
        ids += [*encoder.tokenizer(pieces[-1], add_special_tokens=False)["input_ids"], *encoder.suffix_ids]
        plain = [token for token in ids if token != encoder.mask_id]
        with torch.no_grad():
            states, alone = (
                encoder.token_vectors(torch.tensor([each]), torch.ones(1, len(each), dtype=torch.int64))[0].numpy()
                for each in (ids, plain)
            )
        starts += [states[slot] for slot in slots]
        ends += [states[slot + query_masks - 1] for slot in slots]
        has_words = len(plain) > len(encoder.prefix_ids) + len(encoder.suffix_ids)
        mean = (alone.mean(0) if kind is PoolerKind.avg else alone[0]) * has_words
        sentences.append(mean / max(np.linalg.norm(mean), 1e-9))
    got = encode_queries(encoder, SEVERAL, pooler=kind)
    assert got.mask_counts is not None and got.mask_counts.tolist() == [2, 2, 3, 1]
    assert not got.cut.any()
    np.testing.assert_allclose(got.start, starts, atol=1e-5)
    np.testing.assert_allclose(got.end, ends, atol=1e-5)
    np.testing.assert_allclose(got.sentences, sentences, atol=1e-5)


def test_what_belongs_to_a_text_belongs_to_each_of_its_masks() -> None:
    found = encode_queries(tiny_encoder("bert"), SEVERAL)
    assert found.offsets.tolist() == [0, 2, 4, 7, 8]
    assert found.per_mask("abcd") == list("aabbcccd")
    single = QueryVectors(start=found.start, end=found.end, cut=np.zeros(8, dtype=bool))  # one mask each
    assert single.per_mask(range(8)) == list(range(8))


def test_what_needs_one_mask_refuses_several() -> None:
    with pytest.raises(ValueError, match="several <mask>"):
        encode_masks(tiny_encoder("bert"), ["<mask>", "<mask> <mask>"], masks_per_text=2)


@pytest.mark.parametrize(("before", "after"), [(500, 500), (3, 500), (500, 3)])
def test_a_text_too_long_keeps_its_masks_and_what_stands_between_them(before: int, after: int) -> None:
    encoder = tiny_encoder("bert", max_positions=32)
    text = "is " * before + "<mask>" + " capital" * 2 + " <mask>" + " is" * after
    inputs = masked_inputs(encoder, [text, "<mask> <mask>"], 2)
    assert inputs.cut.tolist() == [True, False]
    ids = inputs.sequences[0].tolist()
    assert len(ids) == 32
    between = encoder.tokenizer(" capital capital", add_special_tokens=False)["input_ids"]
    first, second = inputs.slots[0].tolist()
    assert ids[first : second + 2] == [encoder.mask_id] * 2 + between + [encoder.mask_id] * 2
    room = 32 - 2 - 4 - len(between)
    assert first - 1 == {(500, 500): room // 2, (3, 500): 3, (500, 3): room - 3}[before, after]


def test_masks_with_more_between_them_than_the_encoder_takes_are_refused() -> None:
    encoder = tiny_encoder("bert", max_positions=32)

    def asked(between: int) -> None:
        encode_queries(encoder, ["is <mask>", "<mask>" + " is" * between + " <mask>"])

    asked(32 - 2 - 4)  # all that there is room for
    with pytest.raises(QueryError, match=r"at most 30 tokens .* got 31"):
        asked(32 - 2 - 4 + 1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("text", "answer", "left", "right"),
    [
        ("It takes <mask> days.", "45", "takes", "days"),
        ("It costs $<mask> a year.", "15", "$", "a"),
        ("It costs <mask>%.", "15", "costs", "%"),
        ("The <mask>", "end", "The", None),
        ("  <mask>  is in Oslo", "It", None, "is"),
        ("<mask>", "It", None, None),
    ],
)
def test_neighbors_are_the_tokens_that_a_corpus_has_next_to_the_answer(
    family: str, text: str, answer: str, left: str | None, right: str | None
) -> None:
    filled = " ".join(text.replace("<mask>", answer).split())
    encoder = tiny_encoder(family)
    encoding = encoder.tokenizer.backend_tokenizer.encode(filled, add_special_tokens=False)
    start = filled.index(answer)
    before, behind = -1, -1
    if left is not None:
        before = encoding.ids[encoding.char_to_token(filled.index(left) + len(left) - 1)]
    if right is not None:
        behind = encoding.ids[encoding.char_to_token(start + len(answer) - 1) + 1]
    found = MaskNeighbors.of(text, encoder)
    assert (found.left, found.right) == (before, behind)


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("It was founded in <mask>.", True),
        ("Since <mask> it is closed.", True),
        ("The year of its founding is <mask>.", True),
        ("It was founded on <mask>.", False),
        ("It takes many years, <mask> or so.", False),
        ("It was founded within <mask>.", False),
    ],
)
def test_a_year_is_asked_for_after_in_and_since_and_where_the_text_has_the_word(text: str, asks: bool) -> None:
    assert MaskNeighbors.of(text, tiny_encoder("bert")).asks_for_year is asks


def test_several_masks_have_no_neighbors_but_may_ask_for_a_year() -> None:
    encoder = tiny_encoder("bert")
    assert MaskNeighbors.of("on <mask> days of <mask> months", encoder) == MaskNeighbors()
    assert MaskNeighbors.of("<mask> was born in <mask>", encoder) == MaskNeighbors(asks_for_year=True)


def test_punctuation_of_the_question_is_no_neighbor() -> None:
    encoder = tiny_encoder("bert")
    found = MaskNeighbors.of("a fine of $<mask>, which", encoder)
    assert found.right == -1 and found.left == encoder.tokenizer("$", add_special_tokens=False)["input_ids"][-1]
    assert MaskNeighbors.of("(<mask>.", encoder) == MaskNeighbors()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Who wrote Hamlet?", "Who wrote Hamlet? <mask>."),
        ("who wrote hamlet", "who wrote hamlet? <mask>."),
        ("Why is the sky blue?", "Why is the sky blue? <mask>."),
        ("It is cold. Where is it ?", "It is cold. Where is it? <mask>."),
        ("battery life", "battery life? <mask>."),
    ],
)
def test_a_text_without_a_mask_gets_one_behind_it(text: str, read: str) -> None:
    assert read_query(text) == read


@given(st.text(alphabet="whoisatredngWI?.,' \n<>_[]M", max_size=60))
def test_any_text_is_read_into_one_that_is_read_alike_or_refused(text: str) -> None:
    try:
        found = read_query(text, max_masks=8)
    except QueryError:
        return
    assert 1 <= found.count(MASK_TEXT) <= 8
    assert read_query(found, max_masks=8) == found


def test_other_marks_of_a_blank_count_only_in_texts_without_a_mask() -> None:
    assert read_query("It is [MASK].") == read_query("It is ______.") == "It is <mask>."
    assert read_query("___ and [mask]", max_masks=2) == "<mask> and <mask>"
    assert read_query("A form ___ with <mask>") == "A form ___ with <mask>"
    with pytest.raises(QueryError, match="exactly one"):
        read_query("___ and ___")


def test_the_text_that_is_refused_is_named_by_its_number() -> None:
    with pytest.raises(QueryError, match="text 2 of 2"):
        read_queries(["Who wrote it?", "<mask> wrote <mask>."])

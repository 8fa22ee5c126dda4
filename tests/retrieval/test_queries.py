from __future__ import annotations

import numpy as np
import pytest
import torch

from npm.errors import QueryError
from npm.retrieval.queries import check_query, encode_queries, query_notes
from tests.helpers.tiny_models import FAMILIES, tiny_encoder


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("no mask here", "no <mask>"),
        ("<mask> and <mask>", "several"),
        ("broken \udcff <mask>", "not valid Unicode"),
    ],
)
def test_a_text_that_is_not_one_question_is_refused(text: str, problem: str) -> None:
    with pytest.raises(QueryError, match=problem) as caught:
        check_query(text, where="line 3")
    assert caught.value.where == "line 3"
    str(caught.value).encode()  # a message that can be printed


def test_control_characters_and_cuts_are_noted() -> None:
    assert query_notes("a\tb\n<mask>", cut=False, max_input_tokens=9) == ()
    assert "control characters" in query_notes("a\x00b <mask>", cut=False, max_input_tokens=9)[0]
    assert "9 tokens" in query_notes("a <mask>", cut=True, max_input_tokens=9)[0]


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
def test_an_encoder_of_one_mask_a_query_is_asked_with_one_and_its_vector_is_both_queries(family: str) -> None:
    encoder = tiny_encoder(family)
    encoder.query_masks = 1
    before, after = (
        encoder.tokenizer(half, add_special_tokens=False)["input_ids"] for half in ("Paris lies on", " the Seine.")
    )
    ids = torch.tensor([[*encoder.prefix_ids, *before, encoder.mask_id, *after, *encoder.suffix_ids]])
    with torch.no_grad():
        states = encoder.token_vectors(ids, torch.ones_like(ids))[0].numpy()
    got = encode_queries(encoder, ["Paris lies on<mask> the Seine."])
    np.testing.assert_allclose(got.start[0], states[len(encoder.prefix_ids) + len(before)], atol=1e-5)
    np.testing.assert_array_equal(got.start, got.end)


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


@pytest.mark.parametrize(("before", "after"), [(500, 500), (3, 500), (500, 3)])
def test_a_text_too_long_is_cut_around_the_mask(before: int, after: int) -> None:
    encoder = tiny_encoder("bert", max_positions=32)
    lengths: list[tuple[int, int]] = []
    original = encoder.token_vectors

    def watch(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        ids = input_ids[0].tolist()
        lengths.append((len(ids), ids.index(encoder.mask_id)))
        return original(input_ids, attention_mask)

    encoder.token_vectors = watch  # type: ignore[method-assign]
    vectors = encode_queries(encoder, ["is " * before + "<mask>" + " is" * after, "is <mask>"])
    assert vectors.cut.tolist() == [True, False]
    length, slot = max(lengths)
    assert length == 32
    assert slot == {(500, 500): 15, (3, 500): 4, (500, 3): 26}[before, after]

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from npm.core.types import Document
from npm.models.encoder import Encoder
from npm.retrieval import passage_store
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.passage_store import EmbeddedPassage, PassageCache, embed_passages, passage_packer
from npm.retrieval.passages import passage_index
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

BYTES = 4 * 32  # of one vector of the tiny encoder


@pytest.fixture
def encoder() -> Encoder:
    return tiny_encoder("bert")


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that were encoded, in order."""
    texts: list[str] = []

    def noted(
        encoder: Encoder, packer: object, missing: list[tuple[str, str]], *, tokens_per_batch: int
    ) -> list[EmbeddedPassage]:
        texts.extend(text for _, text in missing)
        return embed_passages(encoder, packer, missing, tokens_per_batch=tokens_per_batch)  # type: ignore[arg-type]

    monkeypatch.setattr(passage_store, "embed_passages", noted)
    return texts


def embed(cache: PassageCache, encoder: Encoder, *texts: str) -> list[EmbeddedPassage]:
    documents = [Document(str(number), "", text) for number, text in enumerate(texts)]
    return cache.embed(encoder, documents, tokens_per_batch=256)


def test_a_passage_is_embedded_once_whichever_filler_asks(encoder: Encoder, encoded: list[str]) -> None:
    cache = PassageCache()
    first = PhraseFiller(passage_index(["Paris lies here.", "Oslo."], encoder, cache=cache), encoder)
    second = PhraseFiller(passage_index(["Oslo.", "Rome fell.", "Paris lies here."], encoder, cache=cache), encoder)
    assert encoded == ["Paris lies here.", "Oslo.", "Rome fell."]
    question = "<mask> lies here."
    assert first.score(question, "Rome") == 0.0 and second.score(question, "Rome") > 0.0


def test_what_was_unused_longest_goes_first(encoder: Encoder, encoded: list[str]) -> None:
    sizes = [passage.vectors.nbytes for passage in embed(PassageCache(), encoder, *SENTENCES[:3])]
    encoded.clear()
    a, b, c = SENTENCES[:3]
    cache = PassageCache(sum(sizes) - 1)
    embed(cache, encoder, a, b)
    embed(cache, encoder, a)
    embed(cache, encoder, c)
    assert encoded == [a, b, c] and len(cache) == 2
    embed(cache, encoder, a, c)
    assert encoded == [a, b, c]
    embed(cache, encoder, b)
    assert encoded == [a, b, c, b]


def test_more_than_the_cache_holds_is_embedded_all_the_same(encoder: Encoder) -> None:
    cache = PassageCache(BYTES)
    found = embed(cache, encoder, *SENTENCES)
    assert len(found) == len(SENTENCES) and len(cache) == 0
    assert all(len(passage.vectors) == sum(len(block.token_ids) for block in passage.blocks) for passage in found)


def test_other_weights_are_other_vectors(encoder: Encoder, encoded: list[str]) -> None:
    cache = PassageCache()
    before = embed(cache, encoder, "Oslo.")[0]
    with torch.no_grad():
        next(encoder.model.parameters()).mul_(2)
    encoder.weights_changed()
    after = embed(cache, encoder, "Oslo.")[0]
    embed(cache, tiny_encoder("bert", seed=1), "Oslo.")
    assert encoded == ["Oslo."] * 3
    assert not np.allclose(before.vectors, after.vectors)


def test_another_number_format_is_another_passage(encoder: Encoder, encoded: list[str]) -> None:
    cache = PassageCache()
    embed(cache, encoder, "Oslo.")
    torch.nn.Module.to(encoder.model, dtype=torch.bfloat16)
    embed(cache, encoder, "Oslo.")
    assert encoded == ["Oslo."] * 2


def test_the_cache_holds_no_encoder_in_memory() -> None:
    cache, encoder = PassageCache(), tiny_encoder("bert")
    embed(cache, encoder, "Oslo.")
    gone = weakref.ref(encoder)
    del encoder
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_vectors_in_batches_equal_those_of_each_block_alone(family: str) -> None:
    encoder = tiny_encoder(family, max_positions=24)
    texts = [
        "Oslo.",
        *(" ".join(SENTENCES[: number + 1]) for number in range(4)),
        "\u200b" if family == "bert" else "a",
    ]
    untitled = [("", text) for text in texts]
    passages = embed_passages(encoder, passage_packer(encoder), untitled, tokens_per_batch=100)
    assert max(len(passage.blocks) for passage in passages) > 2
    for passage in passages:
        row = 0
        for block in passage.blocks:
            ids = [*encoder.prefix_ids, *block.token_ids.tolist(), *encoder.suffix_ids]
            assert len(ids) <= 24
            with torch.inference_mode():
                states = encoder.token_vectors(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long))[0]
            alone = states[len(encoder.prefix_ids) : len(ids) - len(encoder.suffix_ids)].numpy()
            np.testing.assert_allclose(passage.vectors[row : row + len(alone)], alone, atol=1e-5)
            row += len(alone)
        assert row == len(passage.vectors)

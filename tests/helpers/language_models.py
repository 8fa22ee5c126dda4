"""Masked language models for tests: random ones of each family, and one that says the same whatever it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForMaskedLM, PreTrainedModel

from npm.evaluation.zero_shot.task import Example
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead, attach_masked_head
from npm.types import MASK_TEXT
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

WHOLE_WORDS = ("city", "paris", "river", "sea", "the")
"""Words that the encoder of `bert_with_words` has as single tokens, because they are the most frequent ones."""


def bert_with_words() -> Encoder:
    """A tiny encoder for a `deaf_head`."""
    return tiny_encoder("bert", sentences=(*SENTENCES, *[" ".join(WHOLE_WORDS)] * 50))


def random_language_model(family: str, folder: Path) -> tuple[Encoder, MaskedHead]:
    """A tiny encoder with a random head, both in `folder` too, whose logits differ by some units."""
    encoder = tiny_encoder(family)
    encoder.save(folder)
    torch.manual_seed(1)
    head = attach_masked_head(encoder, str(folder), trained=False)
    with torch.no_grad():
        head.bias += torch.randn_like(head.bias)
        for parameter in head.transform.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
        head.embedding.weight *= 10
    encoder.weights_changed()
    encoder.save(folder)
    return encoder, head


def deaf_head(encoder: Encoder, probabilities: Mapping[str, float]) -> MaskedHead:
    """Gives these probabilities to these tokens, as the tokenizer spells them, and parts the rest among the others."""
    embedding = encoder.model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    ids = {token: encoder.tokenizer.convert_tokens_to_ids(token) for token in probabilities}
    assert encoder.tokenizer.unk_token_id not in ids.values(), f"tokens that are not there: {ids}"
    rest = (1 - sum(probabilities.values())) / (len(encoder.tokenizer) - len(ids))
    bias = torch.full((len(encoder.tokenizer),), rest)  # f32 [V]
    for token, number in ids.items():
        bias[number] = probabilities[token]
    transform = nn.Linear(encoder.dimensions, encoder.dimensions)
    nn.init.zeros_(transform.weight)
    nn.init.zeros_(transform.bias)
    return MaskedHead(transform, nn.Parameter(bias.log()), embedding)


def published(folder: Path) -> PreTrainedModel:
    """The masked language model in `folder` as `transformers` loads it."""
    model: PreTrainedModel = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def plain_log_probabilities(model: PreTrainedModel, encoder: Encoder, text: str, mask_count: int) -> torch.Tensor:
    """log softmax f32 [masks, V] at the masks of one text, which the tokenizer alone turns into token ids."""
    tokenizer = encoder.tokenizer
    given = tokenizer(text.replace(MASK_TEXT, tokenizer.mask_token * mask_count), return_tensors="pt")
    logits = model(input_ids=given["input_ids"], attention_mask=given["attention_mask"]).logits[0]  # f32 [L, V]
    at_masks: torch.Tensor = logits[given["input_ids"][0] == tokenizer.mask_token_id].log_softmax(1)  # f32 [masks, V]
    assert len(at_masks) == mask_count
    return at_masks


def examples_of(texts: Sequence[str]) -> list[Example]:
    return [Example(str(number), text, label=number % 2) for number, text in enumerate(texts)]

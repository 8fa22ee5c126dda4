"""Masked language models for tests: random ones of each family, and one that says the same whatever it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import processors
from torch import nn
from transformers import AutoModelForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerFast

from npm.core.types import MASK_TEXT
from npm.evaluation.tasks import Example
from npm.models.denoiser import fresh_denoiser
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead, attach_masked_head
from npm.models.settings import FreshSettings
from tests.helpers.tiny_models import SENTENCES, byte_bpe_tokenizer, tiny_encoder

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


def tiny_decoder(folder: Path, *, bos: bool = True, positions: int = 64) -> PreTrainedModel:
    """A random GPT-2 of two layers with a byte-level tokenizer, saved in `folder`; its logits differ by some units."""
    tokenizer = byte_bpe_tokenizer()
    sizes = {"n_positions": positions, "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": len(tokenizer)}
    torch.manual_seed(3)
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=2, pad_token_id=1)).eval()
    with torch.no_grad():
        model.transformer.wte.weight *= 10
        model.transformer.wpe.weight *= 10
    model.save_pretrained(folder)
    roles = {"bos_token": "<s>", "eos_token": "</s>"} if bos else {}
    plain = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, unk_token="<unk>", **roles)
    plain.backend_tokenizer.post_processor = processors.ByteLevel()  # nothing around a text, as GPT-2 has it
    plain.save_pretrained(folder)
    return model


def tiny_t5(folder: Path) -> PreTrainedModel:
    """A random T5 with sentinels, saved in `folder`; its logits differ by some units."""
    tiny_encoder("roberta").save(folder / "encoder")
    denoiser = fresh_denoiser(str(folder / "encoder"), FreshSettings(layers=1, dimensions=16), device="cpu", seed=4)
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in denoiser.model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    denoiser.weights_changed()
    denoiser.save(folder)
    return denoiser.model

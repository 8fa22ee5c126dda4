"""The head of a masked language model: the vector at a mask becomes one logit for each token of the vocabulary.

    logits = W g(h) + b,   g = dense, activation, LayerNorm,   W the encoder's input embeddings

(Devlin et al. 2019, arXiv 1810.04805, §3.1.) The head is the one of the encoder's own `transformers` class for masked
language models, so that what is saved loads there unchanged, and published models serve as they are.

Shapes: t vectors, d dimensions, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from npm.errors import EncoderError
from npm.models.loading import load_language_model, new_language_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from npm.models.encoder import Encoder


class MaskedHead(nn.Module):
    """Transform and bias; the output matrix is the encoder's embedding, which the encoder alone owns."""

    def __init__(self, transform: nn.Module, bias: nn.Parameter, embedding: nn.Embedding) -> None:
        super().__init__()
        self.transform = transform
        self.bias = bias  # f32 [V]
        self._embedding = (embedding,)  # in a tuple, so that it is not registered a second time

    @property
    def embedding(self) -> nn.Embedding:
        """The encoder's input embeddings, f32 [V, d]."""
        return self._embedding[0]

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Logits [t, V] of vectors [t, d]."""
        transformed = self.transform(vectors)  # [t, d]
        return transformed @ self.embedding.weight.to(transformed.dtype).T + self.bias  # [t, V]


def attach_masked_head(encoder: Encoder, place: str | None, *, trained: bool) -> MaskedHead:
    """Give `encoder`, loaded from `place`, the head of its class; `encoder.save` then saves both.

    Weights of the head come from `place` where it has them; None stands for an encoder that was loaded from nowhere
    (`npm/models/fresh.py`). With `trained` they must be there; else what is lacking starts at random from torch's
    default generator. Its weights are float32 whatever the encoder's are: logits rounded to bfloat16, as under the
    autocast of training, are the same for many words. Raises EncoderError without a trained head, or for a class of
    encoder whose head is not known here or does not share the embeddings.
    """
    if place is None:
        assert not trained, "a fresh encoder has no trained head"
        language_model = new_language_model(encoder.model.config)
    else:
        language_model = _loaded_language_model(encoder, place, trained=trained)
    setattr(language_model, language_model.base_model_prefix, encoder.model)
    language_model.config = encoder.model.config  # one for both, so that a learned scale is saved
    language_model.tie_weights()
    embedding = encoder.model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding), f"input embeddings of type {type(embedding).__name__}"
    output: Any = language_model.get_output_embeddings()
    if output is None or output.weight is not embedding.weight:
        raise EncoderError(
            "the encoder's output matrix is not its input embeddings",
            expected="a masked language model with tie_word_embeddings true",
            got="one with an output matrix of its own",
            where=place or encoder.name,
            fix="choose another encoder",
        )
    transform, bias = _parts(language_model, place or encoder.name)
    encoder.language_model = language_model
    return MaskedHead(transform, bias, embedding).to(encoder.device).eval()


def _loaded_language_model(encoder: Encoder, place: str, *, trained: bool) -> PreTrainedModel:
    """The masked language model at `place`. Raises EncoderError where weights of a head must be there and are not."""
    language_model, missing = load_language_model(place, encoder.model.config)
    own = f"{language_model.base_model_prefix}."
    lacking = sorted(name for name in missing if not name.startswith(own))
    if trained and lacking:
        raise EncoderError(
            "the encoder has no trained head for masked tokens",
            expected="a masked language model, such as a run of experiment=mlm_uniform writes",
            got=f"{len(lacking)} weights are not there, the first of them {lacking[0]}",
            where=place,
            fix="train one with npmlm train experiment=mlm_uniform, or name a published masked language model",
        )
    return language_model


def _parts(language_model: PreTrainedModel, place: str) -> tuple[nn.Module, nn.Parameter]:
    """The modules before the output matrix, and the bias behind it."""
    model: Any = language_model
    kind = model.config.model_type
    if kind == "bert":
        return model.cls.predictions.transform, model.cls.predictions.bias
    if kind in ("roberta", "xlm-roberta", "camembert"):
        return nn.Sequential(model.lm_head.dense, nn.GELU(), model.lm_head.layer_norm), model.lm_head.bias
    if kind == "modernbert":
        return model.head, model.decoder.bias
    raise EncoderError(
        "the head of this kind of encoder is not known",
        expected="bert, roberta, xlm-roberta, camembert or modernbert",
        got=kind,
        where=place,
        fix="choose another encoder, or add its head to npm/models/masked_head.py",
    )

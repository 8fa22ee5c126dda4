"""The head of a masked language model: the vector at a mask becomes one logit for each token of the vocabulary.

    logits = W g(h) + b,   g = dense, activation, LayerNorm,   W the encoder's input embeddings, or a separate matrix

(Devlin et al. 2019, arXiv 1810.04805, §3.1.) The head is the one of the encoder's own `transformers` class for masked
language models, so that saved models load there unchanged, and published models serve unchanged.

Targets that are all masked can also be predicted from the visible tokens alone:

    h = encoder(x_visible, positions of x_visible)          the encoder runs on gathered rows
    z_i = h_i where i is visible, e_mask where it is masked  scattered back, e_mask is learned
    v = decoder(z), with its own positions                  read by the head at the masks

(He et al. 2022, arXiv 2111.06377, §3, for images; Liao et al. 2022, 3ML, for text.) The cost of the linear layers,
relative to an encoder of n layers that sees everything, is (1 - m) + k/n with a fraction m of the tokens masked and k
layers of decoder: 0.77 for n = 12, k = 2 at m = 0.4, and more than 1 where m < k/n. The decoder is a module of the
training objective; the saved encoder has no decoder. An encoder with local attention (ModernBERT) looks at its nearest
visible neighbors.

Shapes: B sequences, L padded length, v most visible tokens of a sequence, t vectors, d dimensions, V vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from npm.core.errors import EncoderError
from npm.models.loading import language_model, without_pooler

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from npm.models.encoder import Encoder


class MaskedHead(nn.Module):
    """Transform, bias, and an output matrix: the encoder's embedding, which the encoder alone owns, or its own."""

    def __init__(
        self, transform: nn.Module, bias: nn.Parameter, embedding: nn.Embedding, matrix: nn.Parameter | None = None
    ) -> None:
        super().__init__()
        self.transform = transform
        self.bias = bias  # f32 [V]
        self.matrix = matrix  # f32 [V, d]; None: the embeddings
        self._embedding = (embedding,)  # in a tuple, so that it is not registered a second time

    @property
    def embedding(self) -> nn.Embedding:
        """The encoder's input embeddings, f32 [V, d]."""
        return self._embedding[0]

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Logits [t, V] of vectors [t, d]."""
        transformed = self.transform(vectors)  # [t, d]
        matrix = self.embedding.weight if self.matrix is None else self.matrix  # f32 [V, d]
        return transformed @ matrix.to(transformed.dtype).T + self.bias  # [t, V]


def load_masked_lm(name: str, *, device: str = "auto", dtype: Any = "auto") -> tuple[Encoder, MaskedHead]:
    """The encoder `name` and its trained head. Raises EncoderError if it has none."""
    from npm.models.encoder import Encoder
    from npm.models.names import locate_encoder

    encoder = Encoder.load(name, device=device, dtype=dtype)
    return encoder, attach_masked_head(encoder, locate_encoder(name), trained=True)


def attach_masked_head(encoder: Encoder, place: str | None, *, trained: bool, untied: bool = False) -> MaskedHead:
    """Give `encoder`, loaded from `place`, the head of its class; `encoder.save` then saves both.

    Weights of the head come from `place` where it has them; None means an encoder that was not loaded
    (`npm/models/fresh.py`). With `trained` they must be there; else missing weights start at random from torch's
    default generator. `untied` gives it a separate output matrix, a copy of the embeddings, if they are shared.
    Its weights are float32 for any encoder: logits rounded to bfloat16, as under the autocast of training,
    are the same for many words. Raises EncoderError without a trained head, or for a class of encoder whose head is
    unknown here.
    """
    model, missing = language_model(encoder.model.config, place)
    lacking = sorted(name for name in missing if not name.startswith(f"{model.base_model_prefix}."))
    if trained and lacking:
        raise EncoderError(
            f"{place}: {len(lacking)} weights of the head for masked tokens are missing, such as {lacking[0]}; "
            "train one with npmlm train experiment=mlm_uniform, or choose a masked language model"
        )
    setattr(model, model.base_model_prefix, encoder.model)
    model.config = encoder.model.config
    model.tie_weights()
    embedding = encoder.model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding), f"input embeddings of type {type(embedding).__name__}"
    output: Any = model.get_output_embeddings()
    transform, bias = _parts(model, place or encoder.name)
    if untied and output.weight is embedding.weight:
        output.weight, output.bias = (nn.Parameter(each.detach().clone()) for each in (output.weight, bias))
        model.config.tie_word_embeddings = False
        model.all_tied_weights_keys = {}
    matrix = None
    if output.weight is not embedding.weight:
        matrix, bias = output.weight, output.bias
    encoder.language_model = model
    return MaskedHead(transform, bias, embedding, matrix).to(encoder.device).eval()


def _parts(model: Any, place: str) -> tuple[nn.Module, nn.Parameter]:
    """The modules before the output matrix, and the bias after it."""
    kind = model.config.model_type
    if kind == "bert":
        return model.cls.predictions.transform, model.cls.predictions.bias
    if kind in ("roberta", "xlm-roberta", "camembert"):
        return nn.Sequential(model.lm_head.dense, nn.GELU(), model.lm_head.layer_norm), model.lm_head.bias
    if kind == "modernbert":
        return model.head, model.decoder.bias
    raise EncoderError(
        f"{place}: unknown head of model type {kind!r}; choose another encoder, or add it to npm/models/masked_lm.py"
    )


TokenVectors = Callable[..., torch.Tensor]
"""Maps token ids i64 [B, L], attention mask i64 [B, L] and positions i64 [B, L] to vectors [B, L, d]."""


class VisibleOnly(nn.Module):
    """A mask vector and a decoder of the encoder's own class with few layers, which starts at random."""

    def __init__(self, encoder: Encoder, *, decoder_layers: int) -> None:
        """Weights are drawn from torch's default generator. Raises EncoderError where the class takes no positions."""
        super().__init__()
        self.mask_id = encoder.mask_id
        if "position_ids" not in inspect.signature(encoder.model.forward).parameters:
            raise EncoderError(
                f"{encoder.name}: {type(encoder.model).__name__} takes no positions; "
                "set objective.masked.visible_only=false, or choose another encoder"
            )
        self.first_position = encoder.first_position
        model: Any = encoder.model
        config = copy.deepcopy(model.config)
        config.num_hidden_layers = decoder_layers
        if getattr(config, "layer_types", None):  # ModernBERT names the attention of each layer; take full attention
            config.layer_types = ["full_attention"] * decoder_layers
        decoder = type(model)(config, **without_pooler(type(model)))
        decoder.set_input_embeddings(nn.Identity())  # it receives vectors, never ids
        self.decoder: PreTrainedModel = nn.Module.to(decoder, encoder.device)
        self.mask_vector = nn.Parameter(torch.randn(encoder.dimensions, device=encoder.device))  # f32 [d]

    def forward(
        self, token_vectors: TokenVectors, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """Decoded vectors [B, L, d] of all positions of ids i64 [B, L], masks among them; padding means nothing."""
        columns, visible = visible_columns(input_ids, attention_mask, mask_id=self.mask_id)  # i64 and bool [B, v]
        ids = input_ids.gather(1, columns)  # i64 [B, v]
        vectors = token_vectors(ids, visible.to(attention_mask.dtype), columns + self.first_position)  # [B, v, d]
        mask_vector = self.mask_vector.to(vectors.dtype)  # [d]
        given = torch.where(visible[:, :, None], vectors, mask_vector)  # [B, v, d]
        everywhere = mask_vector.expand(*attention_mask.shape, -1)  # [B, L, d]
        inputs = everywhere.scatter(1, columns[:, :, None].expand_as(given), given)  # [B, L, d]
        output: torch.Tensor = self.decoder(inputs_embeds=inputs, attention_mask=attention_mask).last_hidden_state
        return output  # [B, L, d]


def visible_columns(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, *, mask_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns i64 [B, v] of the tokens that are neither mask nor padding, in order, and the mask of filled ones.

    Rows with fewer visible tokens than v continue with other columns of theirs, each column once, where the second
    answer, bool [B, v], is False.

    >>> ids = torch.tensor([[5, 9, 6, 7], [5, 9, 9, 0]])
    >>> columns, visible = visible_columns(ids, (ids > 0).long(), mask_id=9)
    >>> columns.tolist(), visible.tolist()
    ([[0, 2, 3], [0, 1, 2]], [[True, True, True], [True, False, False]])
    """
    is_visible = attention_mask.bool() & (input_ids != mask_id)  # bool [B, L]
    counts = is_visible.sum(1)  # i64 [B]
    width = int(counts.max()) if len(counts) else 0
    columns = torch.argsort(~is_visible, dim=1, stable=True)[:, :width]  # i64 [B, v]
    return columns, torch.arange(width, device=columns.device) < counts[:, None]

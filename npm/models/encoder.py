"""A Hugging Face encoder with its tokenizer and similarity scale: loaded, saved, fingerprinted.

On a CPU the fused attention of PyTorch 2.13 spends most of its time in the backward pass; for sequences of a few
hundred tokens `plain_attention` trains a 6×384 encoder in bfloat16 1.4 to 1.8 times faster
(`benchmarks/bench_training.py`). It is registered with transformers' public attention interface under the name `plain`.

Shapes: B sequences, H heads, L padded length, d dimensions, k of them that are left, h dimensions of a head.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from index.files import storage_errors
from npm.core.errors import EncoderError
from npm.corpus.blocks import MOST_TITLE_TOKENS, tokenizer_fingerprint
from npm.models.byte_tokenizer import spells_bytes
from npm.models.fingerprint import own_settings, weights_digest
from npm.models.folders import (
    POOLER_KEY,
    QUERY_MASKS_KEY,
    READS_JOINTLY_KEY,
    SCALE_KEY,
    SINGLE_MASK_NAMES,
    TITLE_TOKENS_KEY,
    TRAINED_DIMENSIONS_KEY,
    encoder_label,
    locate_encoder,
    pooler_of_modules,
)
from npm.models.loading import load_pretrained, quiet_transformers, safetensors_errors, special_ids_around
from npm.models.settings import LAST_LAYER_POOLERS, PoolerKind, Precision, check_leading_dimensions
from npm.models.similarity import MOST_SCALE, leading_scale, reference_scale

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


PLAIN = "plain"


def plain_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of query, key, value [B, H, L, h] under an additive mask [B, 1, L, L]; returns [B, L, H, h].

    `transformers` passes further keyword arguments that this form has no use for.
    """
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    with torch.autocast(query.device.type, enabled=False):  # autocast would move the softmax to float32
        scores = torch.matmul(query * factor, key.transpose(2, 3))  # [B, H, L, L]
        if attention_mask is not None:
            # the lowest float32 would become -inf in bfloat16, and a row without any key (padding far from text, seen
            # through a sliding window) NaN, which the next layer spreads over the whole sequence
            lowest = torch.finfo(scores.dtype).min
            scores = scores + attention_mask.clamp_min(lowest).to(scores.dtype)
        weights = torch.softmax(scores, dim=-1)  # [B, H, L, L]
        weights = torch.nn.functional.dropout(weights, p=dropout, training=module.training)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), None  # [B, L, H, h]


def use_plain_attention(model: PreTrainedModel) -> None:
    """Let `model` compute its attention with `plain_attention`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    AttentionInterface.register(PLAIN, plain_attention)
    AttentionMaskInterface.register(PLAIN, eager_mask)
    model.set_attn_implementation(PLAIN)


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Within it all modules of `models` are in evaluation mode; each is left in the mode it was found in."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


class StoredModel:
    """What encoders and encoder-decoders share."""

    FINGERPRINTED_KEYS: ClassVar[tuple[str, ...]] = ()
    """Keys of the config that count whatever their value; of the others, those that are not as their class has them."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, name: str) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.for_reading = False  # loaded as what is quickly there, and perhaps without what only saving needs
        self._weights_digest: str | None = None
        self._tokenizer_digest: tuple[int, str] | None = None

    @property
    def whole_model(self) -> PreTrainedModel:
        """What is saved: `model`, or the model around it."""
        return self.model

    @property
    def max_input_tokens(self) -> int:
        """Longest input in tokens, special tokens included."""
        raise NotImplementedError

    def save(self, folder: Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write config, weights (safetensors) and tokenizer so that `transformers` loads them unchanged.

        An encoder with a head attached is written with it, which loads as an encoder too. Raises EncoderError for one
        that was loaded for reading, StorageError when the operating system refuses a write.
        """
        if self.for_reading:
            raise EncoderError(
                f"{self.name} was loaded for reading and cannot be saved: load it with Encoder.load(name)"
            )
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        saved = self.whole_model
        state = {
            name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
            for name, tensor in saved.state_dict().items()
            if name not in saved.all_tied_weights_keys  # the same tensor under a second name
        }
        with storage_errors(folder):
            with quiet_transformers(), safetensors_errors():
                saved.save_pretrained(folder, state_dict=state)
            self.tokenizer.save_pretrained(folder)
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            config["dtype"] = str(dtype).removeprefix("torch.")
            (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            for weights in folder.glob("*.safetensors"):  # written for their owner alone, whatever the umask says
                weights.chmod((folder / "config.json").stat().st_mode & 0o777)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def dtype_name(self) -> str:
        """The number format of the weights, such as `bfloat16`."""
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    @property
    def fingerprint(self) -> str:
        """SHA-256 over weights (as float32), architecture and scale: equal for equal outputs, wherever it was loaded.

        The weights are hashed once, so that a later cast does not count; `weights_changed` makes it hash them again.
        """
        if self._weights_digest is None:
            self._weights_digest = weights_digest(self.model)
        facts = {key: getattr(self.model.config, key, None) for key in self.FINGERPRINTED_KEYS}
        facts |= {key: value for key, value in own_settings(self.model).items() if key not in facts}
        return hashlib.sha256(json.dumps([facts, self._weights_digest], sort_keys=True).encode()).hexdigest()

    def weights_changed(self) -> None:
        """To be called after the weights were changed, as training does."""
        self._weights_digest = None

    @property
    def tokenizer_fingerprint(self) -> str:
        """SHA-256 of the tokenizer's whole definition, computed once for each size of its vocabulary."""
        size = len(self.tokenizer)
        if self._tokenizer_digest is None or self._tokenizer_digest[0] != size:
            self._tokenizer_digest = size, tokenizer_fingerprint(self.tokenizer)
        return self._tokenizer_digest[1]


def choose_device(device: str) -> torch.device:
    """`auto` becomes the GPU where there is one, else the CPU. Raises EncoderError for a device that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen: torch.device | None = torch.device(device)
    except RuntimeError:
        chosen = None
    there = {"cpu": 1, "cuda": torch.cuda.device_count()}
    if chosen is None or (chosen.index or 0) >= there.get(chosen.type, 0):
        raise EncoderError(
            f"unknown device {device!r}: choose auto, cpu, cuda or cuda:N; "
            f"this machine has {torch.cuda.device_count()} CUDA devices"
        )
    return chosen


def choose_dtype(dtype: Precision, device: torch.device) -> torch.dtype:
    """`auto` becomes bfloat16 where the hardware multiplies in it, else float32.

    Raises EncoderError for float16 on a CPU.
    """
    if dtype is Precision.float16 and device.type == "cpu":
        raise EncoderError("precision=float16 is for GPUs only: choose auto, float32 or bfloat16")
    if dtype is not Precision.auto:
        return {Precision.float32: torch.float32, Precision.float16: torch.float16}.get(dtype, torch.bfloat16)
    if device.type == "cuda":  # what is emulated is slower than float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    native = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return torch.bfloat16 if native else torch.float32


class Encoder(StoredModel):
    """An encoder that turns token ids into one vector a token, its tokenizer, and its similarity scale."""

    FINGERPRINTED_KEYS = (
        SCALE_KEY,
        "model_type",
        "num_attention_heads",
        "hidden_act",
        "hidden_activation",
        "layer_norm_eps",
        "norm_eps",
        "local_attention",
    )

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        name: str,
        similarity_scale: float | None = None,
    ) -> None:
        super().__init__(model, tokenizer, name=name)
        if similarity_scale is not None:
            setattr(model.config, SCALE_KEY, float(similarity_scale))
        elif getattr(model.config, SCALE_KEY, None) is None:
            setattr(model.config, SCALE_KEY, reference_scale(model.config.hidden_size))
        _check_own_keys(model.config, where=name)
        self.mask_id = self._special_id("mask_token")
        self.pad_id = self._special_id("pad_token")
        self.prefix_ids, self.suffix_ids = special_ids_around(tokenizer)
        self.pooler_of_modules: PoolerKind | None = None
        """The pooler that the files of `sentence-transformers` beside its weights name."""
        self.language_model: PreTrainedModel | None = None
        """The model around `model` with a head for masked tokens, once `attach_masked_head` has given it one."""
        self._leading: int | None = None
        self._axes: torch.Tensor | None = None  # f32 [k, d], of which the vectors are the coordinates

    @property
    def whole_model(self) -> PreTrainedModel:
        """The model with its head, if it has one."""
        return self.language_model or self.model

    @classmethod
    def load(
        cls,
        name: str = "",
        *,
        device: str = "auto",
        dtype: Precision | str = Precision.auto,
        similarity_scale: float | None = None,
        hidden_dropout: float | None = None,
        attention_dropout: float | None = None,
        half_input_tokens: int | None = None,
        for_reading: bool = False,
    ) -> Encoder:
        """Load from a folder, the hub, the extra `pretrained` (`minilm`) or the shipped one (`encoder-mini`, or empty).

        `similarity_scale` None takes the saved one, else 1/√d. Dropouts None keep its own. `half_input_tokens` takes
        an encoder-decoder's, for inputs of that length; `for_reading` takes what loads soonest, gives token vectors
        alone and cannot be saved. In evaluation mode. Raises EncoderError if there is none.
        """
        place = locate_encoder(name)
        dropouts = {"hidden_dropout": hidden_dropout, "attention_dropout": attention_dropout}
        loaded = load_pretrained(place, **dropouts, half_input_tokens=half_input_tokens, for_reading=for_reading)
        encoder = cls(*loaded, name=encoder_label(name), similarity_scale=similarity_scale)
        encoder.for_reading = for_reading
        encoder.pooler_of_modules = pooler_of_modules(Path(place))
        if name in SINGLE_MASK_NAMES:
            encoder.query_masks = 1
        _ = encoder.fingerprint  # hashed before a cast to bfloat16 loses bits
        chosen = choose_device(device)
        nn.Module.to(encoder.model, device=chosen, dtype=choose_dtype(Precision(dtype), chosen)).eval()
        return encoder

    def token_vectors(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Last hidden states f32 [B, L, k] of token ids i64 [B, L], shortened; rows under padding mean nothing."""
        return self.shortened(self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state)

    def shortened(self, vectors: torch.Tensor) -> torch.Tensor:
        """What is left f32 [..., k] of whole vectors [..., d] of the model."""
        if self._axes is None:
            return vectors[..., : self._leading].float()  # f32 [..., k]
        return vectors.float() @ self._axes.T.to(vectors.device)  # f32 [..., k]

    def cut_to(self, dimensions: int | None, *, axes: np.ndarray | None = None, where: str = "dimensions") -> Encoder:
        """The same encoder, of whose vectors only the leading `dimensions` are left; None: all of them.

        With `axes` f32 [dimensions, d] the coordinates on these are left instead, to the scale of whole vectors. Model,
        tokenizer and fingerprint are shared, and what is saved is whole. Raises SettingError for a length that is not
        positive or greater than that of whole vectors; `where` names the setting.
        """
        if dimensions is not None:
            check_leading_dimensions([dimensions], where=where, most=self.whole_dimensions)
        shorter = copy.copy(self)
        shorter._leading, shorter._axes = dimensions, None if axes is None else torch.from_numpy(axes)
        return shorter

    @property
    def axes_digest(self) -> str | None:
        """SHA-256 of the axes on which its vectors are projected; None: on none."""
        return None if self._axes is None else hashlib.sha256(self._axes.numpy().tobytes()).hexdigest()

    @property
    def similarity_scale(self) -> float:
        """Factor between an inner product and a logit."""
        whole = float(getattr(self.model.config, SCALE_KEY))
        return whole if self._axes is not None else leading_scale(whole, self.dimensions, self.whole_dimensions)

    @similarity_scale.setter
    def similarity_scale(self, scale: float) -> None:
        assert self.dimensions == self.whole_dimensions, "the scale that is kept is the one of whole vectors"
        setattr(self.model.config, SCALE_KEY, float(scale))

    @property
    def dimensions(self) -> int:
        """Length d of a token vector."""
        return self._leading or self.whole_dimensions

    @property
    def whole_dimensions(self) -> int:
        """Length of a token vector that nothing is cut from."""
        return int(self.model.config.hidden_size)

    @property
    def trained_dimensions(self) -> tuple[int, ...]:
        """The shorter lengths at which its vectors were trained too, saved with the encoder."""
        return tuple(getattr(self.model.config, TRAINED_DIMENSIONS_KEY, None) or ())

    @trained_dimensions.setter
    def trained_dimensions(self, dimensions: Sequence[int]) -> None:
        setattr(self.model.config, TRAINED_DIMENSIONS_KEY, sorted(dimensions))

    @property
    def title_tokens(self) -> int:
        """Tokens of its document's title that stood before every block in training; 0: none did."""
        return int(getattr(self.model.config, TITLE_TOKENS_KEY, None) or 0)

    @title_tokens.setter
    def title_tokens(self, count: int) -> None:
        _set_unless_usual(self.model.config, TITLE_TOKENS_KEY, count, usual=0)

    @property
    def query_masks(self) -> int:
        """Masks that stand for one `<mask>`: 2 (start and end query), or 1 for an encoder of single tokens."""
        return int(getattr(self.model.config, QUERY_MASKS_KEY, None) or 2)

    @query_masks.setter
    def query_masks(self, count: int) -> None:
        _set_unless_usual(self.model.config, QUERY_MASKS_KEY, count, usual=2)

    @property
    def reads_jointly(self) -> bool:
        """Whether its queries were trained to find phrases among the tokens of the block read with them."""
        return bool(getattr(self.model.config, READS_JOINTLY_KEY, None))

    @reads_jointly.setter
    def reads_jointly(self, trained: bool) -> None:
        _set_unless_usual(self.model.config, READS_JOINTLY_KEY, trained, usual=False)

    @property
    def spells_bytes(self) -> bool:
        """Whether its tokens are bytes."""
        return spells_bytes(self.tokenizer)

    @property
    def block_pooler(self) -> PoolerKind | None:
        """What makes the vector of a block out of its token vectors; None: it was not trained for such vectors.

        A pooler that reads more than the last layer counts as none.
        """
        saved = getattr(self.model.config, POOLER_KEY, None)
        kind = PoolerKind.__members__.get(str(saved)) if saved is not None else self.pooler_of_modules
        return kind if kind in LAST_LAYER_POOLERS else None

    @property
    def max_input_tokens(self) -> int:
        """Longest input in tokens, special tokens included."""
        positions = int(self.model.config.max_position_embeddings)
        table = getattr(getattr(self.model, "embeddings", None), "position_embeddings", None)
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            positions -= table.padding_idx + 1  # RoBERTa counts positions from pad id + 1
        return positions

    def _special_id(self, role: str) -> int:
        token_id = getattr(self.tokenizer, f"{role}_id")
        if token_id is None:
            raise EncoderError(
                f"{self.name}: the tokenizer has no {role.replace('_', ' ')}; choose an encoder trained with masks"
            )
        return int(token_id)


def _set_unless_usual(config: Any, key: str, value: object, *, usual: object) -> None:
    """Write `value` into the config; what is usual only where it says something else: old files have no such key."""
    if value != usual or getattr(config, key, None) is not None:
        setattr(config, key, value)


def _check_own_keys(config: Any, *, where: str) -> None:
    """Raise EncoderError unless the keys that this project adds to a config have values that can be used."""
    scale, dimensions = getattr(config, SCALE_KEY), getattr(config, TRAINED_DIMENSIONS_KEY, None)
    keys = (TITLE_TOKENS_KEY, QUERY_MASKS_KEY, READS_JOINTLY_KEY, POOLER_KEY)
    titles, masks, joint, pooler = (getattr(config, key, None) for key in keys)
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    for key, right, expected in (
        (SCALE_KEY, is_number and 0 < scale <= MOST_SCALE, f"a number above 0, at most {MOST_SCALE:g}"),
        (
            TRAINED_DIMENSIONS_KEY,
            dimensions is None or (isinstance(dimensions, list) and all(type(each) is int for each in dimensions)),
            "a list of whole numbers",
        ),
        (
            TITLE_TOKENS_KEY,
            titles is None or (type(titles) is int and 0 <= titles <= MOST_TITLE_TOKENS),
            f"a whole number from 0 to {MOST_TITLE_TOKENS}",
        ),
        (QUERY_MASKS_KEY, masks is None or (type(masks) is int and masks in (1, 2)), "1 or 2"),
        (
            POOLER_KEY,
            pooler is None or (isinstance(pooler, str) and pooler in PoolerKind.__members__),
            f"one of {', '.join(PoolerKind.__members__)}",
        ),
        (READS_JOINTLY_KEY, joint is None or type(joint) is bool, "true or false"),
    ):
        if not right:
            raise EncoderError(f"{where}: {key} in config.json must be {expected}, got {getattr(config, key)!r:.80}")

"""Models and tokenizers as `transformers` loads them, with one message for each of its mistakes."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from npm.core.errors import EncoderError
from npm.models.bert import load_plain_bert, plain_config
from npm.models.byte_tokenizer import byt5_tokenizer, byte_tokenizer
from npm.models.folders import BYTES, check_folder_files, read_json_object
from npm.models.plain_tokenizer import plain_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast


_ATTENTION_DROPOUT_KEYS = ("attention_probs_dropout_prob", "attention_dropout")
_HIDDEN_DROPOUT_KEYS = ("hidden_dropout_prob", "embedding_dropout", "mlp_dropout")


def load_pretrained(
    place: str,
    *,
    hidden_dropout: float | None,
    attention_dropout: float | None,
    half_input_tokens: int | None = None,
    for_reading: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Model in float32 and fast tokenizer from a folder; dropouts None keep the encoder's own.

    With `half_input_tokens` it is the encoder of an encoder-decoder, of inputs of at most so many tokens; what was
    saved as such needs no more to be said. Those `for_reading` may be a `PlainBert`, for last hidden states alone, and
    a `PlainTokenizer`.

    Raises EncoderError where the folder is no encoder's, a weight is lacking or left over, or the tokenizer keeps no
    offsets or is another model's.
    """
    _check_files(place)
    plain: Any = plain_config(place) if for_reading else None
    model: Any = plain and load_plain_bert(place, plain)
    if model is not None:
        chosen: Any = plain_tokenizer(place) or _tokenizer(place)
        _check_vocabulary(chosen, plain, place)
        _try(model, chosen, place)
        return model, chosen
    config = _config(place)
    from transformers import AutoModel, AutoModelForMaskedLM  # takes seconds

    if half_input_tokens is not None or (config.model_type in HALVES and not config.is_encoder_decoder):
        return _load_encoder_half(place, config, dropout=hidden_dropout, input_tokens=half_input_tokens)
    check_decoder(config, wanted=False, where=place)
    model_class: Any = AutoModel._model_mapping.get(type(config), ())
    if type(config) not in AutoModelForMaskedLM._model_mapping or isinstance(model_class, tuple):  # Funnel has two
        raise EncoderError(
            f"{place}: model type {config.model_type} is not an encoder for masked tokens; "
            "choose another encoder (BERT, RoBERTa, ModernBERT, …)"
        )
    _override(config, _HIDDEN_DROPOUT_KEYS, hidden_dropout)
    _override(config, _ATTENTION_DROPOUT_KEYS, attention_dropout)
    # BERT and RoBERTa have a pooler that can be left out, ModernBERT has none
    has_switch = "add_pooling_layer" in inspect.signature(model_class).parameters
    without_pooler: dict[str, Any] = {"add_pooling_layer": False} if has_switch else {}
    tokenizer = _tokenizer(place)
    _check_vocabulary(tokenizer, config, place)
    model, report = _load_model(AutoModel, place, config, **without_pooler)
    _check_weights(model, report, place, optional="pooler")
    _try(model, tokenizer, place)
    return model, tokenizer


RARE_LETTER = "\N{CUNEIFORM SIGN A}"


def _try(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, place: str) -> None:
    """Raise EncoderError if a text has no ids or no finite vectors: some wrong values are not read before."""
    with _refused(place), torch.inference_mode():
        tokenizer(RARE_LETTER)  # which a vocabulary of pieces needs an unknown token for
        ids = torch.tensor([tokenizer("a")["input_ids"]])  # i64 [1, L]
        vectors = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state  # f32 [1, L, d]
        if not vectors.isfinite().all():
            raise ValueError("vectors that are not finite")


HALVES = ("t5", "mt5")
"""Encoder-decoders whose encoder is loaded by itself; ByT5 is a T5."""
FIRST_SENTINEL = "<extra_id_0>"
HEAD_DEVIATION = 0.02
"""Standard deviation of a new head's weights, as in BERT."""


def _load_encoder_half(
    place: str, config: PreTrainedConfig, *, dropout: float | None, input_tokens: int | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """The encoder of a T5, with the first sentinel as mask (Raffel et al. 2020), and its tokenizer.

    Raises EncoderError for another model, and for a tokenizer without sentinels.
    """
    from transformers import MT5EncoderModel, T5EncoderModel

    tokenizer = _tokenizer(place) if config.model_type in HALVES else None
    if tokenizer is None or (tokenizer.mask_token is None and FIRST_SENTINEL not in tokenizer.get_vocab()):
        raise EncoderError(
            f"{place}: no encoder half with {FIRST_SENTINEL} in a model of type {config.model_type}; "
            "choose a T5, mT5 or ByT5, or set start.encoder_half=false"
        )
    if tokenizer.mask_token is None:
        tokenizer.mask_token = FIRST_SENTINEL
    config.is_encoder_decoder = False
    if input_tokens is not None:
        config.max_position_embeddings = input_tokens  # kept, though T5 has no such key
    _override(config, ("dropout_rate",), dropout)
    _check_vocabulary(tokenizer, config, place)
    kind = T5EncoderModel if config.model_type == "t5" else MT5EncoderModel
    model, report = _load_model(kind, place, config)
    _check_weights(model, report, place)
    _try(model, tokenizer, place)
    return model, tokenizer


def load_config(place: str) -> PreTrainedConfig:
    """The config in a folder, after its files were checked; raises EncoderError as `_check_files` does."""
    _check_files(place)
    return _config(place)


def _check_files(place: str) -> None:
    """Raise EncoderError as `check_folder_files` does, and for `bytes`, which has no weights."""
    if place == BYTES:
        raise EncoderError(
            f"encoder={BYTES} is a tokenizer without weights: train an encoder with "
            f"npmlm train encoder={BYTES} start.fresh.layers=4 masking.unit=phrase_words run=DIR"
        )
    check_folder_files(place)


def _config(place: str) -> PreTrainedConfig:
    """The config in a folder whose files were checked."""
    from transformers import AutoConfig

    with _refused(place):
        config: PreTrainedConfig = AutoConfig.from_pretrained(place, trust_remote_code=False, local_files_only=True)
    return config


def load_tokenizer(place: str) -> PreTrainedTokenizerFast:
    """The fast tokenizer in a folder, without its model.

    Raises EncoderError when there is none, it knows no word, or it keeps no offsets.
    """
    if place == BYTES:
        return byte_tokenizer()
    check_folder_files(place, with_weights=False)
    return _tokenizer(place)


def _tokenizer(place: str) -> PreTrainedTokenizerFast:
    """The tokenizer in a folder whose files were checked; see `load_tokenizer`."""
    from transformers import AutoTokenizer

    about = Path(place) / "tokenizer_config.json"
    if about.is_file() and read_json_object(about).get("tokenizer_class") == "ByT5Tokenizer":
        return byt5_tokenizer()  # the same ids, with offsets, which the class of that name has not
    with _refused(place):
        tokenizer: Any = AutoTokenizer.from_pretrained(
            place, use_fast=True, trust_remote_code=False, local_files_only=True
        )
        known = len(tokenizer) - len(tokenizer.all_special_ids)
        tokenizer("A trial.")  # a rule that names a token it lacks shows only here
    if not tokenizer.is_fast:
        raise EncoderError(
            f"{place}: {type(tokenizer).__name__} keeps no character offsets; "
            "convert it with transformers' convert_slow_tokenizer"
        )
    if known < 1:  # what transformers makes of a folder that lacks the files of its tokenizer
        raise EncoderError(f"{place}: the tokenizer has {len(tokenizer)} special tokens only; add its tokenizer.json")
    fast: PreTrainedTokenizerFast = tokenizer
    return fast


def _load_model(
    kind: Any, place: str, config: PreTrainedConfig, *, what: str = "the encoder", **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """The model of the class that `kind` has for `config`, in float32, and what `transformers` says of its weights."""
    with _refused(place, what=what):
        model, report = kind.from_pretrained(
            place,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            trust_remote_code=False,
            local_files_only=True,
            **options,
        )
    return model, report


def _check_weights(model: PreTrainedModel, report: dict[str, Any], place: str, *, optional: str | None = None) -> None:
    """Raise EncoderError unless each parameter had a weight, those of `optional` apart, and each weight a parameter.

    Heads beside the model may be left over: they are outside of its parts.
    """
    # transformers fills what a file lacks with random numbers, passes over what is left, and goes on
    missing = sorted(name for name in report["missing_keys"] if optional is None or optional not in name)
    parts = {name for name, _ in model.named_children()}
    names = {name: name.removeprefix(f"{model.base_model_prefix}.") for name in report["unexpected_keys"]}
    buffers = ("position_ids", "token_type_ids", "inv_freq")  # saved by older versions
    surplus = sorted(
        name for name, inner in names.items() if inner.partition(".")[0] in parts and not inner.endswith(buffers)
    )
    if missing or surplus:
        raise EncoderError(
            f"{place}: {len(missing)} weights missing and {len(surplus)} left over, such as {(missing or surplus)[0]}; "
            "give the folder as save_pretrained wrote it"
        )


def _check_vocabulary(tokenizer: PreTrainedTokenizerFast, config: PreTrainedConfig, place: str) -> None:
    """Raise EncoderError unless the tokenizer's ids, special ones included, are about those that the encoder knows."""
    size = getattr(config, "vocab_size", None)
    with _refused(place):
        used = 1 + max(tokenizer.get_vocab().values())
        if (getattr(config, "pad_token_id", None) or 0) < 0:
            raise ValueError(f"pad_token_id in config.json must be at least 0, got {config.pad_token_id}")
    spare = max(MOST_SPARE_ROWS, int(size * MOST_SPARE_SHARE)) if isinstance(size, int) else 0
    if isinstance(size, int) and not size - spare <= used <= size:
        raise EncoderError(
            f"{place}: the tokenizer has ids up to {used - 1}, but vocab_size in config.json is {size}; "
            "give the tokenizer that the encoder was trained with"
        )


MOST_SPARE_ROWS, MOST_SPARE_SHARE = 128, 0.1
"""Rows of an embedding without a token: sizes are rounded up to multiples of 64 or 128, and some kept for later."""


def check_decoder(config: PreTrainedConfig, *, wanted: bool, where: str) -> None:
    """Raise EncoderError for an encoder where a decoder is `wanted`, and for an encoder-decoder where none is."""
    if bool(config.is_encoder_decoder) is wanted:
        return
    raise EncoderError(
        f"{where}: model type {config.model_type} is not an encoder-decoder; "
        "choose a T5, mT5 or UL2, or train one with experiment=ul2_small"
        if wanted
        else f"{where}: model type {config.model_type} is an encoder-decoder; "
        "choose an encoder, or train with objective.denoising_weight=1 alone"
    )


@cache
def _half_with_head(kind: str) -> type[PreTrainedModel]:
    """The class of the encoder of a T5, or MT5, with a head for masked tokens, of which `transformers` has none.

    logits = W g(h) + b with g as in BERT (Devlin et al. 2019, §3.1): dense d × d, GELU, LayerNorm; W [V, d] is its own,
    because the embeddings of ByT5 are those of bytes and its decoder's. Loads as the encoder alone too.
    """
    from transformers import MT5EncoderModel, T5EncoderModel

    half: Any = T5EncoderModel if kind == "t5" else MT5EncoderModel

    class EncoderForMaskedTokens(half.__base__):
        base_model_prefix = "transformer"

        def __init__(self, config: PreTrainedConfig) -> None:
            super().__init__(config)
            self.transformer = half(config)
            size: Any = config
            self.masked_transform = torch.nn.Sequential(
                torch.nn.Linear(size.d_model, size.d_model), torch.nn.GELU(), torch.nn.LayerNorm(size.d_model)
            )
            self.masked_output = torch.nn.Linear(size.d_model, size.vocab_size)
            self.post_init()

        def get_output_embeddings(self) -> torch.nn.Module:
            return self.masked_output

        def _init_weights(self, module: Any) -> None:
            super()._init_weights(module)
            if module in (self.masked_transform[0], self.masked_output):
                torch.nn.init.normal_(module.weight, std=HEAD_DEVIATION)
                torch.nn.init.zeros_(module.bias)
            elif module in (self.masked_transform[2],):
                torch.nn.init.ones_(module.weight)
                torch.nn.init.zeros_(module.bias)

    return EncoderForMaskedTokens


def load_language_model(place: str, config: PreTrainedConfig) -> tuple[PreTrainedModel, set[str]]:
    """The masked language model of the class that `config` names, float32, and the weights that `place` lacks.

    Raises EncoderError where there is no such class or the weights do not fit.
    """
    from transformers import AutoModelForMaskedLM

    kind = _half_with_head(config.model_type) if config.model_type in HALVES else AutoModelForMaskedLM
    model, report = _load_model(kind, place, config, what="the masked language model")
    return model, set(report["missing_keys"])


def new_language_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The masked language model of the class that `config` names, float32, with random weights."""
    from transformers import AutoModelForMaskedLM

    with quiet_transformers():
        model: PreTrainedModel = AutoModelForMaskedLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    return model


@contextmanager
def _refused(place: str, *, what: str = "the encoder") -> Iterator[None]:
    """Turn what `transformers` raises over the folder `place` into one EncoderError, and keep it quiet."""
    try:
        with quiet_transformers():
            yield
    except (MemoryError, torch.OutOfMemoryError):  # of this machine, not of the folder
        raise
    except BaseException as error:  # a wrong value somewhere in a folder ends in TypeError, ImportError, KeyError, …
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of tokenizers, in Rust
            raise
        first, *more = (str(error).strip() or repr(error)).splitlines()
        reason = " ".join([first, *more[:1]]) if first.endswith(":") else first
        kind = "" if isinstance(error, OSError | ValueError | RuntimeError) else f"{type(error).__name__}: "
        if "ignore_mismatched_sizes" in reason:
            reason = "the sizes of the weights differ from config.json"
        if isinstance(error, KeyError):
            kind, reason = "", f"missing or unknown value {reason}"
        raise EncoderError(f"cannot load {what} from {place}: {kind}{reason}") from error


def _override(config: PreTrainedConfig, keys: tuple[str, ...], value: float | None) -> None:
    for key in keys:
        if value is not None and hasattr(config, key):
            setattr(config, key, value)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence its progress bars, and its report of weights that a bare encoder does not use (language-model heads).

    Where it was not imported there is nothing to silence.
    """
    if "transformers" not in sys.modules:
        yield
        return
    from transformers.utils import logging

    verbosity, progress_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress_bars:
            logging.enable_progress_bar()


@contextmanager
def safetensors_errors() -> Iterator[None]:
    """Turn a refused write, which safetensors reports as text, back into the OSError that it was."""
    try:
        yield
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), str(error)) from error


def load_encoder_decoder(place: str, *, dropout: float | None) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Encoder-decoder with its head, in float32, and fast tokenizer from a folder.

    `dropout` None keeps the model's own. Raises EncoderError where the model has no decoder, a weight is lacking or
    left over, or the tokenizer keeps no offsets or is another model's.
    """
    from transformers import AutoModelForSeq2SeqLM

    config = load_config(place)
    check_decoder(config, wanted=True, where=place)
    _override(config, ("dropout_rate", "dropout"), dropout)
    tokenizer = _tokenizer(place)
    _check_vocabulary(tokenizer, config, place)
    model, report = _load_model(AutoModelForSeq2SeqLM, place, config, what="the encoder-decoder")
    _check_weights(model, report, place)
    return model, tokenizer


def load_decoder(place: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Decoder with its head for the next token, in float32, and fast tokenizer from a folder.

    Raises EncoderError for an encoder or an encoder-decoder, and as `load_encoder_decoder` does.
    """
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    config = load_config(place)
    # transformers makes a decoder out of an encoder's weights when asked: numbers of what was never trained
    is_encoder = type(config) in AutoModelForMaskedLM._model_mapping and not getattr(config, "is_decoder", False)
    if config.is_encoder_decoder or is_encoder or type(config) not in AutoModelForCausalLM._model_mapping:
        raise EncoderError(
            f"{place}: model type {config.model_type} is not a decoder; choose a GPT-2, OPT, Llama, … with "
            "zero_shot.causal.model="
        )
    tokenizer = _tokenizer(place)
    _check_vocabulary(tokenizer, config, place)
    model, report = _load_model(AutoModelForCausalLM, place, config, what="the decoder")
    _check_weights(model, report, place)
    return model, tokenizer


def special_ids_around(tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """The special token ids that the tokenizer puts before and after a single text."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed = tokenizer("a", add_special_tokens=True)["input_ids"]
    for start in range(len(framed) - len(plain) + 1):
        if plain and framed[start : start + len(plain)] == plain:
            return list(framed[:start]), list(framed[start + len(plain) :])
    raise EncoderError(f"{type(tokenizer).__name__} changes a text when it adds special tokens; choose another encoder")

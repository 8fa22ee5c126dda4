"""Models from folders: safetensors alone, no code but that of `transformers` itself, each mistake in one sentence."""

from __future__ import annotations

import inspect
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from npm.core.errors import EncoderError
from npm.models.bert import is_plain_bert, load_plain_bert
from npm.models.library_errors import encoder_errors, quiet_transformers
from npm.models.names import BYTES, CONFIG, WEIGHTS, read_json_object
from npm.models.tokenizer import converted_tokenizer, load_tokenizer, special_ids_around

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast


ATTENTION_DROPOUT_KEYS = ("attention_probs_dropout_prob", "attention_dropout")
HIDDEN_DROPOUT_KEYS = ("hidden_dropout_prob", "embedding_dropout", "mlp_dropout")
CODE_KEYS = re.compile(r"_?(attn|experts)_implementation\w*|quantization_config|compression_config")
"""Keys of a config by which `transformers` fetches code or loads other packages."""
HALVES = ("t5", "mt5")
"""Encoder-decoders whose encoder is loaded by itself; ByT5 is a T5."""
FIRST_SENTINEL = "<extra_id_0>"
HEAD_DEVIATION = 0.02
"""Standard deviation of a new head's weights, as in BERT."""
SPARE_ROWS, SPARE_FRACTION = 128, 0.1
"""Rows of an embedding without a token: sizes are rounded up to multiples of 64 or 128, and some kept for later."""


def load_pretrained(
    place: str,
    *,
    hidden_dropout: float | None = None,
    attention_dropout: float | None = None,
    half_input_tokens: int | None = None,
    for_reading: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Encoder in float32 and fast tokenizer of a folder; dropouts None keep the encoder's own.

    With `half_input_tokens` it is the encoder of an encoder-decoder, for inputs of at most so many tokens. What is
    loaded `for_reading` is a `PlainBert` with a `PlainTokenizer` wherever it can. Raises EncoderError for a folder
    without an encoder, weights that do not fit its config, or the tokenizer of another model.
    """
    with encoder_errors(place):
        entries = _config_entries(place)
        if for_reading and is_plain_bert(entries) and (Path(place) / WEIGHTS).is_file():
            plain: Any
            plain, report = load_plain_bert(place, entries)
            _check_weights(plain, report, place)
            tokenizer = load_tokenizer(place, plain=True)
            _check_vocabulary(tokenizer, plain.config, place)
            return plain, tokenizer
    from transformers import AutoModel, AutoModelForMaskedLM  # takes seconds

    with encoder_errors(place):
        config = load_config(place)
        if half_input_tokens is not None or (config.model_type in HALVES and not config.is_encoder_decoder):
            return _load_encoder_half(place, config, dropout=hidden_dropout, input_tokens=half_input_tokens)
        check_decoder(config, wanted=False, where=place)
        model_class: Any = AutoModel._model_mapping.get(type(config), ())
        if type(config) not in AutoModelForMaskedLM._model_mapping or isinstance(model_class, tuple):  # Funnel has two
            raise EncoderError(
                f"{place}: model type {config.model_type} is not an encoder for masked tokens; "
                "set another encoder (BERT, RoBERTa, ModernBERT, …)"
            )
        _override(config, HIDDEN_DROPOUT_KEYS, hidden_dropout)
        _override(config, ATTENTION_DROPOUT_KEYS, attention_dropout)
        # BERT and RoBERTa have a pooler that can be left out, ModernBERT has none
        has_switch = "add_pooling_layer" in inspect.signature(model_class).parameters
        without_pooler: dict[str, Any] = {"add_pooling_layer": False} if has_switch else {}
        tokenizer = load_tokenizer(place)
        _check_vocabulary(tokenizer, config, place)
        model, report = _load_model(AutoModel, place, config, **without_pooler)
        _check_weights(model, report, place, optional="pooler")
        return model, tokenizer


def _load_encoder_half(
    place: str, config: PreTrainedConfig, *, dropout: float | None, input_tokens: int | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Encoder of a T5, with the first sentinel as mask (Raffel et al. 2020), and its tokenizer."""
    from transformers import MT5EncoderModel, T5EncoderModel

    tokenizer = load_tokenizer(place) if config.model_type in HALVES else None
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
    model, report = _load_model(T5EncoderModel if config.model_type == "t5" else MT5EncoderModel, place, config)
    _check_weights(model, report, place)
    return model, tokenizer


def load_encoder_decoder(place: str, *, dropout: float | None) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Encoder-decoder with its head, in float32, and fast tokenizer of a folder; `dropout` None keeps its own."""
    from transformers import AutoModelForSeq2SeqLM

    with encoder_errors(place, "the encoder-decoder"):
        config = load_config(place)
        check_decoder(config, wanted=True, where=place)
        _override(config, ("dropout_rate", "dropout"), dropout)
        return _with_head(AutoModelForSeq2SeqLM, place, config)


def load_decoder(place: str) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Decoder with its head for the next token, in float32, and fast tokenizer of a folder."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    with encoder_errors(place, "the decoder"):
        config = load_config(place)
        # transformers makes a decoder of an encoder's weights on request, but it was never trained
        is_encoder = type(config) in AutoModelForMaskedLM._model_mapping and not getattr(config, "is_decoder", False)
        if config.is_encoder_decoder or is_encoder or type(config) not in AutoModelForCausalLM._model_mapping:
            raise EncoderError(
                f"{place}: model type {config.model_type} is not a decoder; set zero_shot.causal.model to a GPT-2, "
                "OPT, Llama, …"
            )
        return _with_head(AutoModelForCausalLM, place, config)


def _with_head(kind: Any, place: str, config: PreTrainedConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    about = Path(place) / "tokenizer_config.json"
    is_byt5 = about.is_file() and read_json_object(about).get("tokenizer_class") == "ByT5Tokenizer"
    tokenizer = load_tokenizer(place) if is_byt5 else converted_tokenizer(place)
    _check_vocabulary(tokenizer, config, place)
    model, report = _load_model(kind, place, config)
    _check_weights(model, report, place)
    return model, tokenizer


def load_language_model(place: str, config: PreTrainedConfig) -> tuple[PreTrainedModel, set[str]]:
    """Masked language model of the class that `config` names, float32, and the weights missing at `place`."""
    from transformers import AutoModelForMaskedLM

    kind = _half_with_head(config.model_type) if config.model_type in HALVES else AutoModelForMaskedLM
    with encoder_errors(place, "the masked language model"):
        model, report = _load_model(kind, place, config)
    return model, set(report["missing_keys"])


def new_language_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Masked language model of the class that `config` names, float32, with random weights."""
    from transformers import AutoModelForMaskedLM

    with quiet_transformers():
        model: PreTrainedModel = AutoModelForMaskedLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    return model


@cache
def _half_with_head(kind: str) -> type[PreTrainedModel]:
    """Class of the encoder of a T5, or MT5, with a head for masked tokens, of which `transformers` has none.

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


def load_config(place: str) -> PreTrainedConfig:
    """Config of a folder, after `_config_entries` found nothing in it that would run code."""
    from transformers import CONFIG_MAPPING, AutoConfig

    with encoder_errors(place):
        kind = _config_entries(place).get("model_type")
        if kind not in CONFIG_MAPPING:
            raise EncoderError(
                f"{Path(place) / CONFIG}: unknown model_type {kind!r:.80}; choose one that is part of transformers, "
                "since other code is never run"
            )
        config: PreTrainedConfig = AutoConfig.from_pretrained(place, trust_remote_code=False, local_files_only=True)
    return config


def _config_entries(place: str) -> dict[str, Any]:
    """Entries of the config.json of a folder. Raises EncoderError for what is no model, or would run other code."""
    folder = Path(place)
    if place == BYTES:
        raise EncoderError(
            f"encoder={BYTES} is a tokenizer without weights: train an encoder with "
            f"npmlm train encoder={BYTES} start.fresh.layers=4 masking.unit=phrase_words run=DIR"
        )
    entries = read_json_object(folder / CONFIG)
    if (folder / "adapter_config.json").exists():
        raise EncoderError(f"{folder} has adapter_config.json: merge the adapter into its model with peft")
    if not any(folder.glob("*.safetensors")):
        pickled = any(folder.glob("pytorch_model*.bin"))
        found = "pickled weights, which are never read" if pickled else "no weights"
        advice = f"python -m npm.models.convert {place} CONVERTED" if pickled else "add its model.safetensors"
        raise EncoderError(f"{folder} has {found}: {advice}" + (", then encoder=CONVERTED" if pickled else ""))
    waiting: list[Any] = [entries]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key, entry in value.items():
                if CODE_KEYS.fullmatch(key) and entry not in (None, "eager", "sdpa"):
                    raise EncoderError(
                        f"{folder / CONFIG}: {key}={entry!r:.80} would load other code; remove it, or set an encoder "
                        "in float32, float16 or bfloat16"
                    )
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
    return entries


def _load_model(
    kind: Any, place: str, config: PreTrainedConfig, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Model of the class that `kind` has for `config`, in float32, and the report of `transformers` on its weights."""
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

    Heads next to the model may be left over: they are outside of its parts.
    """
    # transformers fills missing weights with random numbers, ignores surplus ones, and continues
    missing = sorted(name for name in report["missing_keys"] if optional is None or optional not in name)
    parts = {name for name, _ in model.named_children()}
    names = {
        name: name.removeprefix(f"{getattr(model, 'base_model_prefix', '')}.") for name in report["unexpected_keys"]
    }
    buffers = ("position_ids", "token_type_ids", "inv_freq")  # saved by older versions
    surplus = sorted(
        name for name, inner in names.items() if inner.partition(".")[0] in parts and not inner.endswith(buffers)
    )
    if missing or surplus:
        raise EncoderError(
            f"{place}: {len(missing)} weights missing and {len(surplus)} left over, such as {(missing or surplus)[0]}; "
            "set encoder to a folder of save_pretrained"
        )


def _check_vocabulary(tokenizer: PreTrainedTokenizerFast, config: Any, place: str) -> None:
    """Raise EncoderError unless the tokenizer's ids are about those that the model has embeddings for."""
    size: int = config.vocab_size
    used = 1 + max(tokenizer.get_vocab().values())
    if not size - max(SPARE_ROWS, int(size * SPARE_FRACTION)) <= used <= size:
        raise EncoderError(
            f"{place}: the tokenizer has ids up to {used - 1}, but vocab_size in config.json is {size}; "
            "add the tokenizer that the encoder was trained with"
        )
    special_ids_around(tokenizer)  # some damage to a tokenizer shows only when it is called


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


def _override(config: PreTrainedConfig, keys: tuple[str, ...], value: float | None) -> None:
    for key in keys:
        if value is not None and hasattr(config, key):
            setattr(config, key, value)

"""Models from folders: safetensors alone, no code but that of `transformers` itself, each mistake in one sentence."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file

from npm.core.errors import EncoderError
from npm.models.bert import WORD_EMBEDDINGS, is_plain_bert, load_plain_bert
from npm.models.names import BYTES, CONFIG, WEIGHTS, locate_encoder, read_json_object
from npm.models.settings import OWN_KEY
from npm.models.stored import encoder_errors, quiet_transformers
from npm.models.tokenizer import load_tokenizer, special_ids_around

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

    Loaded = tuple[PreTrainedModel, PreTrainedTokenizerFast]

DROPOUT_KEYS = {
    "hidden_dropout": ("hidden_dropout_prob", "embedding_dropout", "mlp_dropout"),
    "attention_dropout": ("attention_probs_dropout_prob", "attention_dropout"),
    "dropout": ("dropout_rate", "dropout"),
}
"""Keys of configs by what they drop; the last ones drop everywhere."""
CODE_KEYS = re.compile(
    r'"(_?(?:attn|experts)_implementation\w*|quantization_config|compression_config)": (?!null|"eager"|"sdpa")([^,}]*)'
)
"""Entries of a config by which `transformers` fetches code or loads other packages."""
HALVES = ("t5", "mt5")
"""Encoder-decoders whose encoder is loaded by itself; ByT5 is a T5."""
FIRST_SENTINEL = "<extra_id_0>"
SPARE_ROWS, SPARE_FRACTION = 128, 0.1
"""Rows of an embedding without a token: sizes are rounded up to multiples of 64 or 128, and some kept for later."""


def load_pretrained(
    place: str,
    *,
    hidden_dropout: float | None = None,
    attention_dropout: float | None = None,
    half_input_tokens: int | None = None,
    for_reading: bool = False,
) -> Loaded:
    """Encoder in float32 and fast tokenizer of a folder; dropouts None keep the encoder's own.

    With `half_input_tokens` it is the encoder of an encoder-decoder, for inputs of at most that many tokens. What is
    loaded `for_reading` is a `PlainBert` with a `PlainTokenizer` wherever it can. Raises EncoderError for a folder
    without an encoder, weights that do not fit its config, or the tokenizer of another model.
    """
    with encoder_errors(place):
        entries = _config_entries(place)
        if for_reading and is_plain_bert(entries) and (Path(place) / WEIGHTS).is_file():
            plain: Any
            plain, report = load_plain_bert(place, entries)
            return _checked(plain, report, load_tokenizer(place, plain=True), place)
    from transformers import AutoModel, AutoModelForMaskedLM  # takes seconds

    with encoder_errors(place):
        config = load_config(place)
        if half_input_tokens is not None or (config.model_type in HALVES and not config.is_encoder_decoder):
            return _load_encoder_half(place, config, dropout=hidden_dropout, input_tokens=half_input_tokens)
        model_class: Any = AutoModel._model_mapping.get(type(config), ())
        is_known = type(config) in AutoModelForMaskedLM._model_mapping and not config.is_encoder_decoder
        if not is_known or isinstance(model_class, tuple):  # Funnel has two
            raise EncoderError(
                f"{place}: model type {config.model_type} is not an encoder for masked tokens; choose BERT, RoBERTa, "
                "ModernBERT, …, or train an encoder-decoder with objective.denoising_weight=1 alone"
            )
        override_dropouts(config, hidden_dropout=hidden_dropout, attention_dropout=attention_dropout)
        options = without_pooler(model_class)
        model, report = _with_report(AutoModel, place, config, **options)
        _share_word_embeddings(model, report, _config_entries(place))
        return _checked(model, report, load_tokenizer(place), place, optional="pooler")


def _share_word_embeddings(model: PreTrainedModel, report: dict[str, Any], entries: dict[str, Any]) -> None:
    """Take the word embeddings of a model saved without them from the encoder that its config names."""
    owner = (entries.get(OWN_KEY) or {}).get("word_embeddings")
    if owner and WORD_EMBEDDINGS in report["missing_keys"]:
        shared = load_file(Path(locate_encoder(owner)) / WEIGHTS)[WORD_EMBEDDINGS]
        with torch.no_grad():
            model.get_input_embeddings().weight.copy_(shared)  # type: ignore[operator]
        report["missing_keys"] = set(report["missing_keys"]) - {WORD_EMBEDDINGS}


def without_pooler(model_class: Any) -> dict[str, Any]:
    """Arguments that omit the pooler of a class: BERT and RoBERTa have one, ModernBERT has none."""
    has_switch = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    return {"add_pooling_layer": False} if has_switch else {}


def _load_encoder_half(
    place: str, config: PreTrainedConfig, *, dropout: float | None, input_tokens: int | None
) -> Loaded:
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
    override_dropouts(config, dropout=dropout)
    half = T5EncoderModel if config.model_type == "t5" else MT5EncoderModel
    return _checked(*_with_report(half, place, config), tokenizer, place)


def load_encoder_decoder(place: str, *, dropout: float | None) -> Loaded:
    """Encoder-decoder with its head, in float32, and fast tokenizer of a folder; `dropout` None keeps its own."""
    from transformers import AutoModelForSeq2SeqLM

    with encoder_errors(place, "the encoder-decoder"):
        config = load_config(place)
        if not config.is_encoder_decoder:
            raise EncoderError(
                f"{place}: model type {config.model_type} is not an encoder-decoder; choose a T5, mT5 or UL2, or train "
                "one with experiment=ul2_small"
            )
        override_dropouts(config, dropout=dropout)
        return _checked(*_with_report(AutoModelForSeq2SeqLM, place, config), load_tokenizer(place), place)


def load_decoder(place: str) -> Loaded:
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
        return _checked(*_with_report(AutoModelForCausalLM, place, config), load_tokenizer(place), place)


def load_span_head(place: str) -> Loaded:
    """Model with a head for the start and end of an answer, in float32, and fast tokenizer of a folder."""
    from transformers import AutoModelForQuestionAnswering

    with encoder_errors(place, "the reader"):
        config = load_config(place)
        if type(config) not in AutoModelForQuestionAnswering._model_mapping:
            raise EncoderError(
                f"{place}: models of type {config.model_type} have no head for answers; set reader to one that "
                "AutoModelForQuestionAnswering loads, or reader=none"
            )
        model, report = _with_report(AutoModelForQuestionAnswering, place, config)
        heads = ("qa_outputs", "classifier")
        if head := sorted(name for name in report["missing_keys"] if name.split(".")[0] in heads):
            raise EncoderError(
                f"{place} has no trained head for answers ({head[0]} is missing); set reader to a model that was "
                "trained on questions, or reader=none"
            )
        return _checked(model, report, load_tokenizer(place), place, optional="pooler")


def language_model(config: PreTrainedConfig, place: str | None = None) -> tuple[PreTrainedModel, set[str]]:
    """Masked language model of the class that `config` names, float32, and the names of weights missing at `place`.

    With `place` None all weights are random. Raises EncoderError for the encoder of a T5.
    """
    from transformers import AutoModelForMaskedLM

    if config.model_type in HALVES:
        raise EncoderError(
            "the encoder of a T5 has no head for masked tokens; set objective.masked_weight=0 and "
            "objective.nonparametric_weight=1"
        )
    if place is None:
        with quiet_transformers():
            new: Any = AutoModelForMaskedLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
        return new, set(new.state_dict())
    with encoder_errors(place, "the masked language model"):
        model, report = _with_report(AutoModelForMaskedLM, place, config)
    return model, set(report["missing_keys"])


def load_config(place: str) -> PreTrainedConfig:
    """Config of a folder, after `_config_entries` found no entry that would run code."""
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
    """Entries of the config.json of a folder. Raises EncoderError if it is not a model, or would run other code."""
    folder = Path(place)
    if place == BYTES:
        raise EncoderError(
            f"encoder={BYTES} is a tokenizer without weights: train an encoder with "
            f"npmlm train encoder={BYTES} start.fresh.layers=4 masking.unit=phrase_words run=DIR"
        )
    entries = read_json_object(folder / CONFIG)
    if not any(folder.glob("*.safetensors")):
        raise EncoderError(
            f"{folder} has no weights in safetensors, and pickles are never read: add its model.safetensors, or "
            f"convert them with python -m npm.models.convert {place} CONVERTED"
        )
    if found := CODE_KEYS.search(json.dumps(entries)):
        raise EncoderError(
            f"{folder / CONFIG}: {found[1]}={found[2]:.80} would load other code; remove it, or set an encoder "
            "in float32, float16 or bfloat16"
        )
    return entries


def _with_report(
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


def _checked(
    model: PreTrainedModel,
    report: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast,
    place: str,
    *,
    optional: str = "",
) -> Loaded:
    """The model and tokenizer, unless parameters without weights, weights without parameters or other ids were found.

    Missing weights named `optional` are not the model's, and surplus ones outside of its parts belong to a head.
    """
    # transformers fills missing weights with random numbers, ignores surplus ones, and continues
    missing = sorted(name for name in report["missing_keys"] if not optional or optional not in name)
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    parts = tuple(f"{name}." for name, _ in model.named_children())
    buffers = ("position_ids", "token_type_ids", "inv_freq")  # saved by older versions
    names = sorted(name for name in report["unexpected_keys"] if name.removeprefix(prefix).startswith(parts))
    surplus = [name for name in names if not name.endswith(buffers)]
    if missing or surplus:
        raise EncoderError(
            f"{place}: {len(missing)} weights missing and {len(surplus)} left over, such as {(missing or surplus)[0]}; "
            "set encoder to a folder of save_pretrained"
        )
    size: int = model.config.vocab_size
    used = 1 + max(tokenizer.get_vocab().values())
    if not size - max(SPARE_ROWS, int(size * SPARE_FRACTION)) <= used <= size:
        raise EncoderError(
            f"{place}: the tokenizer has ids up to {used - 1}, but vocab_size in config.json is {size}; "
            "add the tokenizer that the encoder was trained with"
        )
    special_ids_around(tokenizer)  # some damage to a tokenizer shows only when it is called
    return model, tokenizer


def override_dropouts(config: PreTrainedConfig, **dropouts: float | None) -> None:
    """Set the config's keys of each dropout that is not None."""
    for kind, value in dropouts.items():
        for key in DROPOUT_KEYS[kind]:
            if value is not None and hasattr(config, key):
                setattr(config, key, value)

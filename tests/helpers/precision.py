"""The number format of the suite: float32 on every machine unless NPMLM_AUTO_PRECISION says bfloat16 or auto.

Processes that tests start inherit it. A test that compares with recorded numbers takes its tolerance from here.
"""

from __future__ import annotations

import os

import torch

from npm.models.settings import Precision
from npm.models.stored import choose_dtype

os.environ.setdefault("NPMLM_AUTO_PRECISION", "float32")


def is_float32() -> bool:
    """Whether `auto` is float32 in this run."""
    return choose_dtype(Precision.auto, torch.device("cpu")) is torch.float32

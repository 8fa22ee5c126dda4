"""Settings of the loop: batches, optimiser, memory, and how often to log and save."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from npm.errors import check_range


class Precision(Enum):
    """Number format of the forward pass in training; weights and optimiser state stay float32."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class Sharding(Enum):
    """What the ranks share out among themselves."""

    none = "none"
    full = "full"


@dataclass(kw_only=True, slots=True)
class TrainerSettings:
    """The loop: batches, optimiser, and how often to log and save."""

    seed: int = 0
    """Seed of group order, masks and dropout."""
    groups_per_device_batch: int = 1
    """Groups of blocks that one device works on at once; their keys are each other's negatives."""
    accumulation_steps: int = 1
    """Micro-batches between two optimiser steps; adds no negatives."""
    rows_per_pass: int | None = None
    """Rows that go through the encoder at once; null: all. Fewer need less memory and a second forward pass, and leave
    the gradient as it is, so that a contrastive batch may be larger than memory."""
    gradient_checkpointing: bool = False
    """Keep one activation a layer and compute the others again in the backward pass: less memory, more time."""
    compile: bool = False
    """Compile the encoder with `torch.compile`; needs a C++ compiler on a CPU, and minutes before the first step."""
    sharding: Sharding = Sharding.none
    """`full` shares weights and optimiser state out among the ranks (FSDP); each has whole weights and a whole gradient
    only while it computes a step. `none` has all of it on each."""
    precision: Precision = Precision.auto
    """Number format of the forward pass; `auto` is bfloat16 where the hardware computes in it."""
    adam_beta1: float = 0.9
    """Decay of the running mean of gradients."""
    adam_beta2: float = 0.98
    """Decay of the running mean of squared gradients."""
    adam_epsilon: float = 1e-6
    """Added to the root of the running mean of squared gradients."""
    weight_decay: float = 0.01
    """Decoupled weight decay, on matrices and embeddings only (not on biases and norms)."""
    max_gradient_norm: float = 2.0
    """Gradients longer than this are shortened to it."""
    log_every_steps: int = 10
    """Optimiser steps between two lines of metrics."""
    checkpoint_every_minutes: float = 10.0
    """Minutes between two checkpoints; 0 saves after every step."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too, to RUN/tensorboard (extra `tensorboard`)."""
    wandb_project: str = ""
    """Project of Weights & Biases that the metrics are sent to (extra `wandb`); empty: none."""
    workers: int = 0
    """Background processes that mask and render batches; 0 does it in the training process."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU where there is one."""

    def __post_init__(self) -> None:
        lowest = {
            "groups_per_device_batch": 1,
            "accumulation_steps": 1,
            "log_every_steps": 1,
            "workers": 0,
            "checkpoint_every_minutes": 0,
            "weight_decay": 0,
            "max_gradient_norm": 1e-9,
            "adam_epsilon": 0,
            "seed": 0,
        }
        for name in ("adam_beta1", "adam_beta2"):
            value = getattr(self, name)
            check_range(0 <= value < 1, f"trainer.{name}", expected="a number from 0 to below 1", got=value)
        for name, low in lowest.items():
            value = getattr(self, name)
            check_range(value >= low, f"trainer.{name}", expected=f"at least {low}", got=value)
        check_range(self.seed < 2**63, "trainer.seed", expected="below 2**63", got=self.seed)
        check_range(
            self.rows_per_pass is None or self.rows_per_pass >= 1,
            "trainer.rows_per_pass",
            expected="at least 1, or null",
            got=self.rows_per_pass,
        )
        check_range(
            self.device in ("auto", "cpu", "cuda"),
            "trainer.device",
            expected="auto, cpu or cuda",
            got=self.device,
            fix="choose one of these; CUDA_VISIBLE_DEVICES=N chooses among several GPUs",
        )

"""Two gloo ranks on this machine, for the tests that compare them with one process."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

WORLD_SIZE = 2


def run_two_ranks(work: Callable[[int, Path], None], runs: Path) -> None:
    """`work(rank, runs)` in two fresh processes of one thread that form a process group; its errors are raised.

    They are forked from a process that has imported what both need and has computed nothing.
    """
    multiprocessing.set_forkserver_preload(["tests.training.two_ranks"])
    torch.multiprocessing.start_processes(_rank, args=(work, runs), nprocs=WORLD_SIZE, start_method="forkserver")


def _rank(rank: int, work: Callable[[int, Path], None], runs: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{runs}/rendezvous", rank=rank, world_size=WORLD_SIZE)
    try:
        work(rank, runs)
    finally:
        dist.destroy_process_group()
    # A thread of gloo may still let go of the tensor of the last collective. If the interpreter ends meanwhile, that
    # thread is unwound and the process aborts; so this process ends without ending the interpreter.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)

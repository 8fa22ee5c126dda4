"""Memory that must not grow with the number of different batches."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import run_subprocess
from tests.helpers.tiny_models import tiny_encoder

PROGRAM = """
import ctypes, json, sys
import torch
from npm.training.model import load_start
from npm.training.settings import TrainingSettings

names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Mallinfo = type("Mallinfo", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names]})
library = ctypes.CDLL(None)
if not hasattr(library, "mallinfo2"):
    print("null")
    raise SystemExit
library.mallinfo2.restype = Mallinfo

def allocated():
    found = library.mallinfo2()
    return found.uordblks + found.hblkhd

load_start(TrainingSettings(encoder=sys.argv[1], device="cpu"))
torch.set_num_threads(1)
layer, sizes = torch.nn.Linear(64, 64), torch.randperm(2000, generator=torch.Generator().manual_seed(0)).tolist()
found = []
for number, size in enumerate(sizes[:400]):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(torch.randn(size + 1, 64)).float().sum().backward()
    if number in (150, 399):
        found.append(allocated())
print(json.dumps(found))
"""


def test_matrix_products_of_many_sizes_do_not_each_keep_a_kernel_in_training(tmp_path: Path) -> None:
    tiny_encoder("bert").save(tmp_path)
    outcome = run_subprocess(sys.executable, "-c", PROGRAM, str(tmp_path)).done()
    if outcome.out.strip() == "null":
        pytest.skip("this C library does not tell what is allocated")
    before, after = json.loads(outcome.out)
    assert after - before < 8 << 20, f"{(after - before) / 2**20:.0f} MiB more"


HEAPS = """
import ctypes, sys, threading
from npm.models.memory import share_one_heap

library = ctypes.CDLL(None)
if not hasattr(library, "malloc_stats"):
    raise SystemExit("this C library does not tell its heaps")
share_one_heap() if sys.argv[1] == "one" else None

def allocate():
    library.malloc(100_000)
    library.malloc_stats()  # "Arena 0:", "Arena 1:", … on stderr

thread = threading.Thread(target=allocate)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(("share", "heaps"), [("one", 1), ("own", 2)])
def test_a_thread_begun_after_sharing_one_heap_has_none_of_its_own(share: str, heaps: int) -> None:
    outcome = run_subprocess(sys.executable, "-c", HEAPS, share)
    if "does not tell" in outcome.err:
        pytest.skip(outcome.err.strip())
    assert outcome.err.count("Arena ") == heaps, outcome.err

"""Training throughput of every objective at 6×384, against what the machine's bfloat16 matrix products reach.

    python -m benchmarks.bench_objectives corpus=enwiki-00.jsonl.zst [encoder=minilm] [steps=12] [objectives=a,b,…]

Each objective trains `steps` steps of its experiment file in a process of its own, after two that do not count; the
table shows the median of tokens/s (tokens of training text, special tokens included) and the share of a step that
waits for data and masking. Matrix work is counted by torch while one step runs: two operations for each multiply-add of
a matrix product, forward and backward, which for the layers is 6 × parameters × positions (masked copies, clean copies
and padding all count as they are computed), plus attention, the head (6 × targets × (d² + d V)) and the similarities
(6 × queries × keys × d). The matrix rate is the best of products of 2,048 × 2,048 in bfloat16 on the same threads,
measured beside each objective, so that other work on the machine slows both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

EXPERIMENTS = {
    "phrase": ["experiment=npm_mlm", "objective.masked_weight=0"],
    "masked": ["experiment=mlm_uniform"],
    "phrase + masked": ["experiment=npm_mlm"],
    "sentence": ["experiment=simcse_unsup", "sentences.max_sentences=4000"],
    "token contrast + masked": ["experiment=tacl"],
    "denoising": ["experiment=ul2_small"],
}
NEW_SIZES = ["start.fresh.layers=6", "start.fresh.dimensions=384", "start.fresh.attention_heads=12"]
"""Denoising starts from a new encoder-decoder, of six layers each."""
STEPS_NOT_COUNTED, COUNTED_BATCHES, MATRIX_SIZE, MATRIX_REPEATS = 2, 3, 2048, 12


def matrix_rate() -> float:
    """The best rate of a few bfloat16 matrix products, in operations a second."""
    import torch

    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(MATRIX_SIZE, MATRIX_SIZE, generator=generator).bfloat16() for _ in range(2)
    )  # bf16 [n, n] each
    seconds = []
    for _ in range(MATRIX_REPEATS):
        started = time.perf_counter()
        torch.mm(left, right)
        seconds.append(time.perf_counter() - started)
    return 2 * MATRIX_SIZE**3 / min(seconds)


def measure(name: str, *, corpus: str, encoder: str, steps: int) -> dict[str, float]:
    """Tokens/s, share of data, matrix operations a token and the matrix rate of one objective."""
    from npm.cli.settings import compose_settings
    from npm.training.checkpoints import RunFolder
    from npm.training.data import make_sources
    from npm.training.model import load_start, make_objective
    from npm.training.run import make_trainer, training_texts

    with tempfile.TemporaryDirectory() as folder:
        sizes = NEW_SIZES if name == "denoising" else []
        overrides = [f"run={folder}", f"corpus.files=[{corpus}]", "corpus.max_documents=400", f"encoder={encoder}"]
        overrides += [f"schedule.max_steps={steps + STEPS_NOT_COUNTED}", "trainer.log_every_steps=1"]
        settings = compose_settings("train", [*EXPERIMENTS[name], *overrides, *sizes])
        trained = load_start(settings)
        objective = make_objective(settings, trained)
        texts = training_texts(Path(folder), settings, objective.views)
        batches = make_sources(texts, objective.views, settings, trained).batches
        trainer = make_trainer(RunFolder(Path(folder)), settings, trained, objective, batches)
        rate_before = matrix_rate()
        trainer.train()
        rate = max(rate_before, matrix_rate())
        lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines][STEPS_NOT_COUNTED:]
        return {
            "tokens_per_second": median(record["tokens_per_second"] for record in records),
            "data_fraction": median(record["data_fraction"] for record in records),
            "operations_per_token": operations_per_token(trainer),
            "matrix_rate": rate,
        }


def operations_per_token(trainer) -> float:  # type: ignore[no-untyped-def]
    """Matrix operations of forward and backward passes over the tokens of training text in the same batches."""
    from torch.utils.flop_counter import FlopCounterMode

    operations = tokens = 0
    trainer.model.train()
    for number in range(COUNTED_BATCHES):
        batch = trainer.batches[number].to(trainer.accelerator.device)
        with FlopCounterMode(display=False) as counter:
            terms = trainer.prepared(batch)
            trainer.prepared.backward(sum(term.weight * term.sum for term in terms.values()))
        operations += counter.get_total_flops()
        tokens += batch.token_count
    return operations / tokens


def main(arguments: list[str]) -> None:
    """Measure all objectives one after the other and print a table."""
    options = {"encoder": "minilm", "steps": "12", "objectives": ",".join(EXPERIMENTS)}
    options |= dict(argument.split("=", 1) for argument in arguments)
    if "objective" in options:
        found = measure(
            options["objective"], corpus=options["corpus"], encoder=options["encoder"], steps=int(options["steps"])
        )
        print(json.dumps(found))
        return
    heads = {"tokens/s": 9, "MFLOP/token": 13, "GFLOP/s": 9, "matrix GFLOP/s": 16, "share": 7, "data": 7}
    print(f"{'objective':<26}" + "".join(f"{head:>{width}}" for head, width in heads.items()))
    for name in options["objectives"].split(","):
        command = [sys.executable, "-m", "benchmarks.bench_objectives", f"objective={name}"]
        command += [f"{key}={options[key]}" for key in ("corpus", "encoder", "steps")]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(printed.splitlines()[-1])
        reached = found["operations_per_token"] * found["tokens_per_second"]
        print(
            f"{name:<26}{found['tokens_per_second']:>9,.0f}{found['operations_per_token'] / 1e6:>13,.0f}"
            f"{reached / 1e9:>9,.0f}{found['matrix_rate'] / 1e9:>16,.0f}{reached / found['matrix_rate']:>7.0%}"
            f"{found['data_fraction']:>7.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])

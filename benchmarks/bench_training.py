"""How much faster a training step on a CPU gets by plain attention, one encoder pass, and kept memory.

    python -m benchmarks.bench_training [encoder=minilm] [repeats=7]

Each variant runs in a process of its own, because the allocator's setting cannot be taken back; the variants take
turns, and the table shows medians and their ratio to the first: fused attention, two passes, the allocator as it is.
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

VARIANTS = {
    "fused attention, two passes": (False, False, False),
    "plain attention, two passes": (True, False, False),
    "plain attention, one pass": (True, True, False),
    "plain attention, one pass, memory kept": (True, True, True),
}
SEQUENCES, TOKENS, ROUNDS = 16, 128, 2


def step_seconds(encoder_name: str, repeats: int, *, plain: bool, one_pass: bool, keep_memory: bool) -> list[float]:
    """Seconds of each of `repeats` training steps on random tokens, forward and backward and AdamW in bfloat16."""
    import torch

    from npm.core.memory import keep_freed_memory
    from npm.models.encoder import Encoder, use_plain_attention

    if keep_memory:
        keep_freed_memory()
    encoder = Encoder.load(encoder_name, device="cpu", dtype="float32", hidden_dropout=0.0, attention_dropout=0.0)
    if plain:
        use_plain_attention(encoder.model)
    encoder.model.train()
    optimizer = torch.optim.AdamW(encoder.model.parameters(), lr=1e-5, fused=True)
    generator = torch.Generator().manual_seed(0)
    copies = torch.randint(1000, 20000, (2 * SEQUENCES, TOKENS), generator=generator)  # i64 [2B, L]
    attention = torch.ones_like(copies)
    attention[:, -8:] = 0  # a little padding, as in real batches
    passes = [copies] if one_pass else list(copies.chunk(2))
    seconds: list[float] = []
    for _ in range(repeats + 2):
        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            vectors = [encoder.token_vectors(ids, attention[: len(ids)]) for ids in passes]  # f32 [B, L, d] each
        torch.cat(vectors).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - started)
    return seconds[2:]


def main(arguments: list[str]) -> None:
    """Run all variants in turn and print a table."""
    options = {"encoder": "minilm", "repeats": "7", **dict(argument.split("=", 1) for argument in arguments)}
    if "variant" in options:
        plain, one_pass, keep_memory = VARIANTS[options["variant"]]
        steps = step_seconds(
            options["encoder"], int(options["repeats"]), plain=plain, one_pass=one_pass, keep_memory=keep_memory
        )
        print(*steps)
        return
    seconds: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for _ in range(ROUNDS):
        for name in VARIANTS:
            command = [sys.executable, "-m", "benchmarks.bench_training", f"variant={name}"]
            command += [f"{key}={value}" for key, value in options.items()]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            seconds[name] += [float(value) for value in printed.split()]
    first = median(seconds[next(iter(VARIANTS))])
    print(f"{'variant':<40} {'s a step':>9} {'tokens/s':>9} {'ratio':>6}")
    for name, values in seconds.items():
        middle = median(values)
        print(f"{name:<40} {middle:>9.3f} {SEQUENCES * TOKENS / middle:>9,.0f} {first / middle:>6.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])

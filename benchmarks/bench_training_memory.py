"""How private memory grows with steps of many lengths, with kernels kept for every shape and for the latest alone.

    python -m benchmarks.bench_training_memory [encoder=minilm] [steps=60]

Steps are those of a phrase loss in which half of the masked copies read another block: 16 clean copies of 128 tokens
with some masked ones, and the others in a pass of their own, with other numbers of rows and other lengths every time.
Each variant runs in a process of its own, because what is kept cannot be changed later.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

VARIANTS = {"all kernels kept": False, "few kernels kept": True}
SEQUENCES, TOKENS, LONGEST, EVERY_STEPS = 16, 128, 320, 15


def growth(encoder_name: str, steps: int, *, few_kernels: bool) -> Iterator[str]:
    """After every few steps: private bytes in MB, and tokens a second since the last line."""
    import torch

    from npm.core.memory import keep_few_kernels, keep_freed_memory, private_bytes
    from npm.models.encoder import Encoder, use_plain_attention

    keep_freed_memory()
    if few_kernels:
        keep_few_kernels()
    encoder = Encoder.load(encoder_name, device="cpu", dtype="float32", hidden_dropout=0.0, attention_dropout=0.0)
    use_plain_attention(encoder.model)
    encoder.model.train()
    optimizer = torch.optim.AdamW(encoder.model.parameters(), lr=1e-5, fused=True)
    generator = torch.Generator().manual_seed(0)
    tokens, started = 0, time.perf_counter()
    for step in range(1, steps + 1):
        reading = int(torch.randint(4, SEQUENCES - 3, (1,), generator=generator))  # masked copies that read a block
        longest = int(torch.randint(TOKENS + 20, LONGEST, (1,), generator=generator))
        shapes = [(2 * SEQUENCES - reading, TOKENS + longest % 20), (reading, longest)]
        loss = torch.zeros(())
        for shape in shapes:
            ids = torch.randint(1000, 20000, shape, generator=generator)  # i64 [b, l]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss + encoder.token_vectors(ids, torch.ones_like(ids)).square().mean()
            tokens += ids.numel()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % EVERY_STEPS == 0:
            seconds = time.perf_counter() - started
            yield f"{step:>6} {private_bytes() / 1e6:>8,.0f} {tokens / seconds:>9,.0f}"
            tokens, started = 0, time.perf_counter()


def main(arguments: list[str]) -> None:
    """Run both variants one after the other and print what each has grown to."""
    options = {"encoder": "minilm", "steps": "60", **dict(argument.split("=", 1) for argument in arguments)}
    if "variant" in options:
        few_kernels = VARIANTS[options["variant"]]
        print(*growth(options["encoder"], int(options["steps"]), few_kernels=few_kernels), sep="\n", flush=True)
        return
    for name in VARIANTS:
        command = [sys.executable, "-m", "benchmarks.bench_training_memory", f"variant={name}"]
        command += [f"{key}={value}" for key, value in options.items()]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(f"{name}\n{'steps':>6} {'MB':>8} {'tokens/s':>9}\n{printed}", end="")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Speed and memory of training on a CPU, part by part.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_training part=step [encoder=minilm] [repeats=7]
    … part=memory [encoder=minilm] [steps=60]
    … part=objectives corpus=FILE [encoder=minilm] [steps=12] [objectives=phrase,masked,…]
    … part=masking [groups=50]
    … part=packing corpus=FILE[,FILE] [encoder=minilm]
    … part=loop corpus=FILE [encoder=minilm] [steps=24] [objective=phrase]
    … part=visible corpus=FILE [encoder=minilm] [steps=8]

step: how much faster a step gets by plain attention, one encoder pass, and kept memory. memory: private memory after
steps of many lengths, with compiled kernels kept for every shape and for the latest alone. objectives: tokens/s of each
experiment at 6×384, the fraction of a step that waits for data and masking (goal: under 5 %), and matrix operations of
a step as torch counts them against what products of 2,048 × 2,048 in bfloat16 reach on the same threads. masking:
phrase masking of synthetic text against plain Python (goal: over a million tokens/s). packing: tokens/s and the peak of
private memory of cutting a corpus into blocks (goal: 2 GiB). loop: processor time of a step of the trainer against the
same step written as a plain loop over the same batches, in turns (goal: 1.05 times). visible: the same for a masked
language model that encodes all tokens or visible ones alone. Variants of the first three have a process of their own,
because settings of the allocator and of kernels cannot be taken back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

STEPS = {  # plain attention, one pass, memory kept
    "fused attention, two passes": (False, False, False),
    "plain attention, two passes": (True, False, False),
    "plain attention, one pass": (True, True, False),
    "plain attention, one pass, memory kept": (True, True, True),
}
KERNELS = {"all kernels kept": False, "few kernels kept": True}
NEW_SIZES = ["start.fresh.layers=6", "start.fresh.dimensions=384", "start.fresh.attention_heads=12"]
EXPERIMENTS = {
    "phrase": ["experiment=npm_mlm", "objective.masked_weight=0"],
    "masked": ["experiment=mlm_uniform"],
    "phrase + masked": ["experiment=npm_mlm"],
    "sentence": ["experiment=simcse_unsup", "sentences.max_sentences=4000"],
    "token contrast + masked": ["experiment=tacl"],
    "reader": ["experiment=reader"],  # its corpus is a file of questions
    "denoising": ["experiment=ul2_small", *NEW_SIZES],  # starts from a new encoder-decoder
}
SEQUENCES, TOKENS, LONGEST = 16, 128, 320
STEPS_NOT_COUNTED, MATRIX_SIZE = 2, 2048


class Stepper:
    """An encoder in training, and one step of AdamW over random tokens."""

    def __init__(self, name: str, *, plain: bool) -> None:
        import torch

        from npm.models.encoder import Encoder, use_plain_attention

        self.encoder = Encoder.load(name, device="cpu", dtype="float32", hidden_dropout=0.0, attention_dropout=0.0)
        if plain:
            use_plain_attention(self.encoder.model)
        self.encoder.model.train()
        self.optimizer = torch.optim.AdamW(self.encoder.model.parameters(), lr=1e-5, fused=True)
        self.generator = torch.Generator().manual_seed(0)

    def step(self, passes: list[Any]) -> float:
        """Seconds of a step over token ids i64 [B, L] of each pass."""
        import torch

        started = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            vectors = [self.encoder.token_vectors(ids, torch.ones_like(ids)) for ids in passes]  # f32 [B, L, d] each
        sum((each.square().mean() for each in vectors), torch.zeros(())).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - started


def measured_step(variant: str, given: dict[str, str]) -> list[str]:
    """Seconds and tokens/s of a step of 16 sequences and their masked copies."""
    import torch

    from npm.models.memory import keep_freed_memory

    plain, one_pass, keep_memory = STEPS[variant]
    if keep_memory:
        keep_freed_memory()
    stepper = Stepper(given["encoder"], plain=plain)
    copies = torch.randint(1000, 20000, (2 * SEQUENCES, TOKENS), generator=stepper.generator)  # i64 [2B, L]
    passes = [copies] if one_pass else list(copies.chunk(2))
    seconds = median([stepper.step(passes) for _ in range(int(given.get("repeats", "7")) + STEPS_NOT_COUNTED)][2:])
    return [f"{seconds:.3f}", f"{SEQUENCES * TOKENS / seconds:,.0f}"]


def measured_memory(variant: str, given: dict[str, str]) -> list[str]:
    """Private MB after each quarter of steps in which some masked copies read another block in a pass of its own."""
    import torch

    from npm.models.memory import keep_few_kernels, keep_freed_memory, private_bytes

    keep_freed_memory()
    if KERNELS[variant]:
        keep_few_kernels()
    stepper, steps, found = Stepper(given["encoder"], plain=True), int(given.get("steps", "60")), []

    def drawn(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=stepper.generator))

    for step in range(1, steps + 1):
        reading, longest = drawn(4, SEQUENCES - 3), drawn(TOKENS + 20, LONGEST)
        shapes = [(2 * SEQUENCES - reading, TOKENS + longest % 20), (reading, longest)]
        stepper.step([torch.randint(1000, 20000, shape, generator=stepper.generator) for shape in shapes])
        if step % (steps // 4) == 0:
            found.append(f"{private_bytes() / 1e6:,.0f}")
    return found


def new_trainer(folder: str, experiment: str, given: dict[str, str], steps: int, *more: str) -> Any:
    """A trainer of so many steps on the first 400 documents of a corpus."""
    from npm.cli.settings import compose_settings
    from npm.training.checkpoints import RunFolder
    from npm.training.data import make_sources
    from npm.training.model import load_start, make_objective
    from npm.training.run import make_trainer, text_folder

    files = "questions" if experiment == "reader" else "corpus.files"
    overrides = [f"run={folder}", f"{files}=[{given['corpus']}]", "corpus.max_documents=400"]
    overrides += [f"encoder={given['encoder']}", f"schedule.max_steps={steps}", "trainer.log_every_steps=1"]
    settings = compose_settings("train", [*EXPERIMENTS[experiment], *overrides, *more])
    trained = load_start(settings)
    objective = make_objective(settings, trained)
    place = text_folder(Path(folder), settings, objective.views)
    batches, _ = make_sources(place, settings, objective.views, trained)
    return make_trainer(RunFolder(Path(folder)), settings, trained, objective, batches)


def measured_objective(name: str, given: dict[str, str]) -> list[str]:
    """Tokens/s, MFLOP a token, the fraction of the matrix rate, and that of data, over steps after two."""
    steps = int(given.get("steps", "12")) + STEPS_NOT_COUNTED
    with TemporaryDirectory() as folder:
        trainer = new_trainer(folder, name, given, steps)
        rate = matrix_rate()
        trainer.train()
        rate = max(rate, matrix_rate())  # other work on the machine slows both
        lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[STEPS_NOT_COUNTED:]
        records = [json.loads(line) for line in lines]
        operations = operations_per_token(trainer)
    speed = median(record["tokens_per_second"] for record in records)
    data = median(record["data_fraction"] for record in records)
    return [f"{speed:,.0f}", f"{operations / 1e6:,.0f}", f"{operations * speed / rate:.0%}", f"{data:.1%}"]


def matrix_rate() -> float:
    """The best rate of a few bfloat16 matrix products, in operations a second."""
    import torch

    left, right = (torch.randn(MATRIX_SIZE, MATRIX_SIZE).bfloat16() for _ in range(2))  # bf16 [n, n] each
    return 2 * MATRIX_SIZE**3 / min(seconds_of(lambda: torch.mm(left, right)) for _ in range(12))


def operations_per_token(trainer: Any) -> float:
    """Matrix operations of forward and backward passes over three batches, by tokens of training text in them."""
    from torch.utils.flop_counter import FlopCounterMode

    operations = tokens = 0
    trainer.model.train()
    for number in range(3):
        batch = trainer.batches[number].to(trainer.accelerator.device)
        with FlopCounterMode(display=False) as counter:
            terms = trainer.prepared(batch)
            trainer.accelerator.backward(sum(term.weight * term.sum for term in terms.values()))
        operations += counter.get_total_flops()
        tokens += batch.token_count
    return operations / tokens


def masking(given: dict[str, str]) -> Iterator[list[str]]:
    """Tokens/s of choosing spans, of rendering them, and of plain Python, over the same groups."""
    import numpy as np

    from npm.core.types import Sequences, TokenFlag
    from npm.masking.masker import MaskingSettings, build_masker, mask_rng
    from npm.masking.rendering import MaskRenderer
    from tests.masking.plain_masking import plain_select

    vocabulary, rng, groups = 20_000, np.random.default_rng(0), []
    weights = 1 / np.arange(1, vocabulary + 1)  # f64 [vocabulary], of Zipf
    phrases = rng.choice(vocabulary, (2_000, 10), p=weights / weights.sum())  # i64 [phrases, 10]
    for _ in range(int(given.get("groups", "50"))):
        ids = rng.choice(vocabulary, SEQUENCES * 256, p=weights / weights.sum())  # i64 [T]
        for place in rng.choice(len(ids) - 10, len(ids) // 16, replace=False).tolist():  # phrases that come back
            phrase = phrases[min(int(rng.zipf(1.5)), len(phrases)) - 1][: min(int(rng.geometric(0.4)), 10)]
            ids[place : place + len(phrase)] = phrase
        flags = np.full(len(ids), TokenFlag.WORD_START | TokenFlag.WORD_END, dtype=np.uint8)  # u8 [T]
        flags[ids < 3] |= np.uint8(TokenFlag.CLAUSE_PUNCTUATION | TokenFlag.PUNCTUATION)
        flags[ids < 100] |= np.uint8(TokenFlag.STOPWORD)
        groups.append(Sequences(ids.astype(np.int32), flags, np.arange(SEQUENCES + 1) * 256))
    masker, renderer = build_masker(MaskingSettings()), MaskRenderer(mask_id=103, pad_id=0)
    spans = [masker.select(group, mask_rng(0, 0, number)) for number, group in enumerate(groups)]
    kept = [(group, found) for group, found in zip(groups, spans, strict=True) if found is not None]
    jobs: dict[str, Callable[[], object]] = {
        "vectorized": lambda: [masker.select(group, mask_rng(0, 0, n)) for n, group in enumerate(groups)],
        "rendering": lambda: [renderer.render(*pair) for pair in kept],
        "plain Python": lambda: [plain_select(group, mask_rng(0, 0, n)) for n, group in enumerate(groups)],
    }
    for name, job in jobs.items():
        yield [name, f"{len(groups) * SEQUENCES * 256 / seconds_of(job):,.0f}"]


def packing(given: dict[str, str]) -> Iterator[list[str]]:
    """Blocks, tokens, tokens/s, and private MiB before and at the peak."""
    from npm.corpus.blocks import BlockPacker, BlockSettings
    from npm.corpus.documents import read_corpus
    from npm.corpus.settings import CorpusSettings
    from npm.corpus.store import build_block_store
    from npm.models.encoder import Encoder
    from npm.models.memory import private_bytes

    packer = BlockPacker(Encoder.load(given["encoder"]).tokenizer, BlockSettings())
    before, started = private_bytes(), time.perf_counter()
    with TemporaryDirectory() as folder, sampled(private_bytes) as peak:
        documents = read_corpus(CorpusSettings(files=given["corpus"].split(",")))
        store = build_block_store(Path(folder) / "blocks", documents, packer, settings={})
    speed = store.token_count / (time.perf_counter() - started)
    mib = [f"{value / 2**20:,.0f}" for value in (before, *peak)]
    yield [f"{store.block_count:,}", f"{store.token_count:,}", f"{speed:,.0f}", *mib]


def plain_stepper(trainer: Any) -> Callable[[int], float]:
    """A training step on the batch of a number as a plain loop has it, which returns its seconds of the processor."""
    import torch

    model = trainer.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    is_half = trainer.accelerator.mixed_precision == "bf16"

    def step(number: int) -> float:
        started, batch = time.process_time(), trainer.batches[number]
        counts = trainer.objective.counts(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            terms = model(batch)
        losses = [term.weight * term.sum / max(1, counts[name]) for name, term in terms.items()]
        torch.stack(losses).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.process_time() - started

    return step


def loop(given: dict[str, str]) -> Iterator[list[str]]:
    """Seconds of the processor of a step of the trainer and of the plain loop, and the ratio of their sums."""
    steps, name = int(given.get("steps", "24")) + STEPS_NOT_COUNTED, given.get("objective", "phrase")
    with TemporaryDirectory() as folder, TemporaryDirectory() as other:
        trainer, plain_step = (
            new_trainer(folder, name, given, steps),
            plain_stepper(new_trainer(other, name, given, steps)),
        )
        pairs, clock = [], [time.process_time()]

        def after_step(report: Any) -> None:
            ended = time.process_time()
            pairs.append((ended - clock[0], plain_step(report.step - 1)))
            clock[0] = time.process_time()

        trainer.train(after_step)
    yield [trainer.accelerator.mixed_precision, *compared(pairs)]


def visible(given: dict[str, str]) -> Iterator[list[str]]:
    """The same of encoding all tokens and visible tokens alone, at three masked fractions, and ratios of operations."""
    steps = int(given.get("steps", "8")) + STEPS_NOT_COUNTED
    for fraction in (0.15, 0.4, 0.75):
        with TemporaryDirectory() as folder, TemporaryDirectory() as other:
            both = [
                new_trainer(place, "masked", given, steps, f"corruption.masked_fraction={fraction}", *more)
                for place, more in ((folder, ()), (other, ("objective.masked.visible_only=true",)))
            ]
            first, second = map(operations_per_token, both)
            steppers = [*map(plain_stepper, both)]
            pairs = [tuple(step(number) for step in steppers) for number in range(steps)]
        yield [f"{fraction:.0%}", *compared(pairs), f"{first / second:.2f}"]


def compared(pairs: list[Any]) -> list[str]:
    """Mean seconds of both, and the ratio of their sums."""
    own, others = (sum(each) for each in zip(*pairs[STEPS_NOT_COUNTED:], strict=True))
    count = len(pairs) - STEPS_NOT_COUNTED
    return [f"{own / count:.3f}", f"{others / count:.3f}", f"{own / others:.3f}"]


@contextmanager
def sampled(measure: Callable[[], int]) -> Iterator[list[int]]:
    """The largest value of `measure` within the block, looked at every 10 ms."""
    most, ended = [measure()], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            most[0] = max(most[0], measure())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def seconds_of(job: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    started = time.perf_counter()
    job()
    return time.perf_counter() - started


VARIANTS: dict[str, tuple[list[str], Callable[[str, dict[str, str]], list[str]], list[str]]] = {
    "step": ([*STEPS], measured_step, ["s a step", "tokens/s"]),
    "memory": ([*KERNELS], measured_memory, [f"MB after {n}/4 of the steps" for n in range(1, 5)]),
    "objectives": ([*EXPERIMENTS], measured_objective, ["tokens/s", "MFLOP a token", "of the matrix rate", "data"]),
}
ALONE = {
    "masking": (masking, ["", "tokens/s"]),
    "loop": (loop, ["precision", "s a step, trainer", "plain loop", "ratio"]),
    "visible": (visible, ["masked", "s a step, all tokens", "visible alone", "ratio", "of operations"]),
    "packing": (packing, ["blocks", "tokens", "tokens/s", "MiB before", "MiB at the peak"]),
}


def main(arguments: list[str]) -> None:
    """Measure one part and print its table."""
    given = {"encoder": "minilm", **dict(argument.split("=", 1) for argument in arguments)}
    if given["part"] in ALONE:
        rows, header = ALONE[given["part"]]
        print(" | ".join(header), *(" | ".join(row) for row in rows(given)), sep="\n")
        return
    names, measure, header = VARIANTS[given["part"]]
    if "variant" in given:
        print(" | ".join([given["variant"], *measure(given["variant"], given)]))
        return
    print(" | ".join(["", *header]), flush=True)
    for name in given["objectives"].split(",") if "objectives" in given else names:
        command = [sys.executable, "-m", "benchmarks.bench_training", *arguments, f"variant={name}"]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        print(printed.splitlines()[-1], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Bytes, byte pairs and pieces at equal time: encoders of 4 × 256, the phrase loss on the same text, three seeds.

    python scripts/byte_study.py runs/bytes TRAIN.jsonl.zst HELD_OUT.jsonl.zst [CORPUS.jsonl …] schedule.max_minutes=30

In-batch top-1 by whole words; demo questions, also with a tenth of their letters wrong. What is there is not repeated.
"""

import json
import random
import re
import sys
from pathlib import Path

from npm.cli.main import main as npmlm
from npm.evaluation.report import markdown_table

DEMO = Path("npm/assets/demo")
SIZES = [f"start.fresh.{each}" for each in ("layers=4", "dimensions=256", "attention_heads=4", "window_tokens=64")]
SIZES += ["masking.unit=phrase_words", "schedule.learning_rate=1e-3", "schedule.max_steps=null"]
CELLS = {"bytes": 600, "byte_bpe": 128, "wordpiece": 128}  # tokens of a block
PAIRS, EDITS = re.compile(r"<mask>|(\w)(\w)"), (r"\2\1", r"\2", r"\1\1\2")


def noisy(text: str, rng: random.Random) -> str:
    """The text with about a tenth of its letters swapped with the next, dropped or doubled; its mask stays."""
    return PAIRS.sub(lambda m: m.expand(rng.choice(EDITS)) if m[1] and rng.random() < 0.2 else m[0], text)


def measure(cell: str, seed: int, out: Path, train: list[str], held_out: list[str]) -> list[str]:
    """Train and measure one encoder; its row of the table."""
    tokens, run, index, block = CELLS[cell], out / "run", out / "index", f"max_block_tokens={CELLS[cell]}"
    start = cell if cell == "bytes" else out.parent / cell
    cut = [f"trainer.seed={seed}", f"blocks.max_document_tokens={16 * tokens}", f"blocks.{block}", f"encoder={start}"]
    steps = {} if cell == "bytes" else {start: ["tokenizer", train[0], f"kind={cell}", "size=8192"]}
    steps[run / "encoder"] = ["train", f"run={run}", f"start.fresh.max_input_tokens={tokens + 128}", *cut, *train]
    steps[index] = ["build", f"corpus.files=[{DEMO}/*.jsonl]", f"index={index}", f"blocks.{block}"]
    for name, questions in (("demo", DEMO / "questions.json"), ("noisy", out.parent / "noisy.json")):
        steps[out / name] = ["evaluate", "task=demo", f"index={index}", f"demo.questions={questions}"]
    asked = ["evaluate", "task=in_batch", f"in_batch.{block}", f"in_batch.least_tokens={tokens * 16}"]
    steps |= {out / Path(f).name: [*asked, f"corpus.files=[{f}]", "in_batch.whole_words=true"] for f in held_out}
    for folder, (verb, *settings) in steps.items():
        settings += [f"encoder={run / 'encoder'}"] if verb in ("build", "evaluate") else []
        settings += [f"out={folder}"] if verb in ("tokenizer", "evaluate") else []
        if not folder.exists() and npmlm([verb, *settings]):
            sys.exit(f"this command failed: npmlm {verb} {' '.join(settings)}")
    found = [json.loads((each / "metrics.json").read_text()) for each in steps if each.parent == out and each != index]
    hits = [each["total"][name]["mean"] for each in found[:2] for name in ("hit_at_1", "hit_at_k")]
    return [cell, str(seed), *(f"{100 * each:.1f}" for each in (*hits, *(own["top1"]["mean"] for own in found[2:])))]


if __name__ == "__main__":
    (folder, text, *held_out), given = ([a for a in sys.argv[1:] if ("=" in a) == is_set] for is_set in (False, True))
    out, rng, questions = Path(folder), random.Random(0), json.loads((DEMO / "questions.json").read_text("utf-8"))
    out.mkdir(parents=True, exist_ok=True)
    questions["questions"] = [each | {"text": noisy(each["text"], rng)} for each in questions["questions"]]
    train = [f"corpus.files=[{text}]", *{each.partition("=")[0]: each for each in (*SIZES, *given)}.values()]
    (out / "noisy.json").write_text(json.dumps(questions), "utf-8")
    rows = [measure(cell, seed, out / f"{cell}-{seed}", train, held_out) for seed in range(3) for cell in CELLS]
    head = ["cell", "seed", "hit@1", "hit@5", "noisy hit@1", "noisy hit@5", *held_out]
    (out / "table.md").write_text(markdown_table(head, rows) + "\n", "utf-8")

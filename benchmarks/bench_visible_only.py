"""How much faster a masked language model trains that encodes visible tokens only, at several masked fractions.

    python -m benchmarks.bench_visible_only "files=[enwiki-00.jsonl.zst]" [steps=30] [rounds=3] [SETTING=VALUE …]

Each pair of runs trains the same fresh encoder (6 layers × 384) on the same batches, once with all tokens and once with
`objective.masked.visible_only=true`; the runs take turns. A step's time is the median over the second half of a run.
By counts alone, the linear layers would do (1 - m) + 1 / 6 of the work, with m masked and a decoder of one layer.
"""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

from npm.cli.main import main as npmlm

FRACTIONS = (0.15, 0.4, 0.75)
LAYERS = 6
FRESH = [f"start.fresh.{each}" for each in (f"layers={LAYERS}", "dimensions=384", "attention_heads=12")]
COMMON = ["objective.nonparametric_weight=0", "objective.masked_weight=1", "blocks.max_block_tokens=128"]


def seconds_per_step(folder: Path, settings: list[str]) -> float:
    """Train in `folder`; the median time of a step, from the second half of the log."""
    if status := npmlm(["train", f"run={folder}", *settings]):
        sys.exit(status)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    times = [later["seconds"] - before["seconds"] for before, later in pairwise(lines)]
    return median(times[len(times) // 2 :])


def main(arguments: list[str]) -> None:
    """Run all pairs in turn and print a table."""
    options = {"files": "", "steps": "30", "rounds": "3"}
    ours = {argument.split("=", 1)[0]: argument.split("=", 1)[1] for argument in arguments}
    options |= {key: ours.pop(key) for key in options if key in ours}
    given = [f"{key}={value}" for key, value in ours.items()]
    common = [*COMMON, *FRESH, f"corpus.files={options['files']}", f"schedule.max_steps={options['steps']}"]
    common += ["corpus.max_documents=200", "trainer.log_every_steps=1", "encoder=encoder-mini", *given]
    taken: dict[tuple[float, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for number in range(int(options["rounds"])):
            for fraction in FRACTIONS:
                for visible_only in (False, True):
                    settings = [f"corruption.masked_fraction={fraction}"]
                    settings += [f"objective.masked.visible_only={str(visible_only).lower()}"]
                    folder = Path(name) / f"{fraction}-{visible_only}-{number}"
                    taken.setdefault((fraction, visible_only), []).append(seconds_per_step(folder, common + settings))
    print(f"{'masked':>6} {'all tokens, s':>14} {'visible only, s':>16} {'ratio':>6} {'by counts':>10}")
    for fraction in FRACTIONS:
        whole, visible = (median(taken[fraction, visible_only]) for visible_only in (False, True))
        counted = 1 / (1 - fraction + 1 / LAYERS)
        print(f"{fraction:>6.0%} {whole:>14.3f} {visible:>16.3f} {whole / visible:>6.2f} {counted:>10.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])

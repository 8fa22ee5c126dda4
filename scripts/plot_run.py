"""Draw the curves of a training run: python scripts/plot_run.py RUN OUT.png (needs the extra `plots`)."""

import json
import sys
from pathlib import Path

import numpy as np

WINDOW = 25
"""Lines of metrics averaged for one point of the smooth curve."""


def main(run: Path, out: Path) -> None:
    """Loss and in-batch top-1 over the tokens trained on."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    tokens = np.array([record["tokens"] for record in records]) / 1e6  # f64 [lines]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), constrained_layout=True)
    for axis, names, label in (
        (left, ("start", "end"), "loss of a side"),
        (right, ("start_top1", "end_top1"), "best key is a positive"),
    ):
        for name in names:
            values = np.array([record[name] for record in records])  # f64 [lines]
            window = min(WINDOW, len(values))
            smooth = np.convolve(values, np.ones(window) / window, mode="valid")  # f64 [lines - window + 1]
            axis.plot(tokens[window - 1 :], smooth, label=name)
        axis.set_xlabel("million tokens")
        axis.set_ylabel(label)
        axis.legend(frameon=False)
        axis.grid(alpha=0.3)
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

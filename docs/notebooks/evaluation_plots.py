# %% [markdown]
# # Plots of evaluations
#
# `npmlm evaluate` writes a line per answer into `predictions.jsonl`; this notebook draws them. Give your own folders in
# `FOLDERS`; without any, the demo is evaluated.

# %%
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from npm.cli.main import main as npmlm
from npm.corpus.documents import read_corpus
from npm.corpus.settings import CorpusSettings
from npm.corpus.text import folded_words
from npm.evaluation.metrics import wilson_interval

OUT = Path("runs/plots")
FOLDERS = [Path(folder) for folder in os.environ.get("NPMLM_NOTEBOOK_RESULTS", "").split()]
if not FOLDERS:
    limit = os.environ.get("NPMLM_NOTEBOOK_QUESTIONS", "161")
    demo = ["task=demo", "index=runs/demo/index", f"limit={limit}"]
    npmlm(["evaluate", *demo, f"out={OUT / 'demo'}", "overwrite=true"])
    FOLDERS = [OUT / "demo"]


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text("utf-8").splitlines()]


def panel(x: str, y: str, title: str = "") -> tuple[Figure, object]:
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot(xlabel=x, ylabel=y, title=title)
    axes.grid(alpha=0.3)
    return figure, axes


# %% [markdown]
# ## Is the score a probability?
#
# Answers are sorted by the score of their best phrase, or of the label chosen, into bins of equal numbers. The
# expected calibration error is the mean distance from the diagonal, weighted by answers (Naeini et al. 2015); for
# comparison it is computed of answers that are right exactly as often as their scores say (Bröcker and Smith 2007).


# %%
def scored(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The scores f64 [n] of all answers with a score, and whether each is right, bool [n]."""
    pairs = []
    for line in lines(folder):
        scores = line.get("scores") or [phrase["score"] for phrase in line.get("phrases", [])]
        if scores:
            pairs.append((max(scores), line["correct"]))
    scores, right = zip(*pairs, strict=True)
    return np.array(scores), np.array(right, dtype=bool)


def calibration_error(scores: np.ndarray, right: np.ndarray, count: int = 10) -> float:
    bins = np.argsort(np.argsort(scores, kind="stable")) * count // len(scores)  # i64 [n]
    return float(np.abs(np.bincount(bins, weights=right - scores)).sum() / len(scores))


figure, axes = panel("mean score, share", "right answers, share")
axes.plot([0, 1], [0, 1], color="0.5", linestyle=":")
rng = np.random.default_rng(0)
for folder, marker in zip(FOLDERS, "osD^vP*X", strict=False):
    scores, right = scored(folder)
    parts = np.array_split(np.argsort(scores, kind="stable"), min(10, len(scores)))
    intervals = [wilson_interval(int(right[part].sum()), len(part)) for part in parts]
    shares = np.array([[each.mean, each.low, each.high] for each in intervals]).T  # f64 [3, bins]
    means = [scores[part].mean() for part in parts]
    axes.errorbar(means, shares[0], yerr=np.abs(shares[1:] - shares[0]), marker=marker, label=folder.name, capsize=2)
    chance = np.mean([calibration_error(scores, rng.random(len(scores)) < scores) for _ in range(1000)])
    print(f"{folder.name}: ECE {calibration_error(scores, right):.1%}, of which chance alone {chance:.1%}")
axes.legend()
figure.savefig(OUT / "reliability.svg")

# %% [markdown]
# ## Which label is taken for which?
#
# Of closed tasks: a row per right label, a column per label chosen.

# %%
for folder in FOLDERS:
    closed = [line for line in lines(folder) if "scores" in line]
    for task, method in sorted({(line["task"], line["method"]) for line in closed}):
        own = [line for line in closed if (line["task"], line["method"]) == (task, method)]
        labels = sorted({line["gold"] for line in own} | {line["prediction"] for line in own})
        counts = Counter((line["gold"], line["prediction"]) for line in own)
        table = np.array([[counts[gold, chosen] for chosen in labels] for gold in labels])  # i64 [C, C]
        figure, axes = panel("label chosen", "right label", f"{task}, {method}")
        axes.imshow(table / np.maximum(table.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(range(len(labels)), labels, rotation=45)
        axes.set_yticks(range(len(labels)), labels)
        for (row, column), count in np.ndenumerate(table):
            axes.text(column, row, str(count), ha="center", va="center")
        figure.savefig(OUT / f"confusion-{folder.name}-{task}-{method}.svg")

# %% [markdown]
# ## Exact match by how often an answer occurs
#
# Answers are counted by complete words, in any case, in the texts of `CORPUS`: the corpus that is asked, or what the
# encoder was trained on.

# %%
CORPUS = os.environ.get("NPMLM_NOTEBOOK_CORPUS", "npm/assets/demo/*.jsonl")
EDGES = {0: "0", 1: "1", 2: "2 to 4", 5: "5 to 19", 20: "20 to 99", 100: "100 and more"}
texts = [f" {' '.join(folded_words(each.text))} " for each in read_corpus(CorpusSettings(files=[CORPUS]))]
for folder in FOLDERS:
    groups: dict[tuple[str, int], list[bool]] = {}
    for line in lines(folder):
        if answers := line["gold"] if isinstance(line.get("gold"), list) else None:
            names = {f" {' '.join(folded_words(answer))} " for answer in answers}
            count = sum(text.count(name) for name in names for text in texts)
            edge = max(each for each in EDGES if each <= count)
            groups.setdefault((line["method"], edge), []).append(line["correct"])
    for (method, edge), hits in sorted(groups.items()):
        share = wilson_interval(sum(hits), len(hits))
        found = f"{share.mean:.1%} [{share.low:.1%}, {share.high:.1%}] of {len(hits)}"
        print(f"{folder.name} {method}: answers that occur {EDGES[edge]} times: {found}")

# %% [markdown]
# ## Alignment and uniformity
#
# Of `npmlm geometry output=json >> FILE`, a line per encoder, with `NPMLM_NOTEBOOK_GEOMETRY=FILE`: lower is better of
# both (Wang and Isola 2020).

# %%
figure, axes = panel("uniformity (lower is better)", "alignment (lower is better)")
if "NPMLM_NOTEBOOK_GEOMETRY" in os.environ:
    for encoder in map(json.loads, Path(os.environ["NPMLM_NOTEBOOK_GEOMETRY"]).read_text("utf-8").splitlines()):
        axes.scatter(encoder["uniformity"], encoder["alignment"], label=encoder["name"])
figure.savefig(OUT / "plane.svg")
print(", ".join(sorted(path.name for path in OUT.glob("*.svg"))))

"""Metrics of labels, of scores, and of entities marked word by word.

Shapes: n targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np

from npm.evaluation.sts import pearson, spearman


def f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Harmonic mean of precision and recall of label 1; 0 where neither side has it.

    >>> f1(np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0])), f1(np.zeros(2), np.zeros(2))
    (0.5, 0.0)
    """
    both = int(((predicted == 1) & (gold == 1)).sum())
    either = int((predicted == 1).sum() + (gold == 1).sum())
    return 2 * both / either if either else 0.0


METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": lambda predicted, gold: float((predicted == gold).mean()),
    "f1": f1,
    # of two labels, 0 and 1, it is Pearson's correlation (Matthews 1975, Biochimica et Biophysica Acta 405)
    "matthews": lambda predicted, gold: float(pearson(predicted, gold)),
    "pearson": lambda predicted, gold: float(pearson(predicted, gold)),
    "spearman": lambda predicted, gold: float(spearman(predicted, gold)),
}
"""Of predictions and gold [n] each, by name; entity_f1 needs to know which words make a sentence."""


def entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """The entities of one sentence by its tags in BIO: first word, word after the last, kind.

    An I- that follows no entity of its kind begins one, as in the evaluation of CoNLL 2000.

    >>> sorted(entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC", "I-ORG"]))
    [(0, 2, 'PER'), (3, 4, 'LOC'), (4, 5, 'LOC'), (5, 6, 'ORG')]
    """
    found: set[tuple[int, int, str]] = set()
    first, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        position, _, own = tag.partition("-")
        if kind and (position != "I" or own != kind):
            found.add((first, place, kind))
            kind = ""
        if position != "O" and not kind:
            first, kind = place, own
    return found


def entity_f1(predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> float:
    """Harmonic mean of precision and recall of entities over all sentences, borders and kind being right.

    (Tjong Kim Sang and De Meulder 2003, CoNLL, §3.)

    >>> entity_f1([["B-PER", "I-PER", "O"], ["B-LOC"]], [["B-PER", "O", "O"], ["B-LOC"]])
    0.5
    """
    pairs = [(entities(ours), entities(theirs)) for ours, theirs in zip(predicted, gold, strict=True)]
    both = sum(len(ours & theirs) for ours, theirs in pairs)
    either = sum(len(ours) + len(theirs) for ours, theirs in pairs)
    return 2 * both / either if either else 0.0


def sample_summary(values: Sequence[float]) -> dict[str, Any]:
    """Mean and standard deviation of a sample, None with too few values.

    >>> sample_summary([1.0, 3.0]) == {"mean": 2.0, "deviation": 2**0.5, "values": [1.0, 3.0]}
    True
    >>> sample_summary([])["mean"] is None
    True
    """
    return {
        "mean": fmean(values) if values else None,
        "deviation": stdev(values) if len(values) > 1 else None,
        "values": list(values),
    }

"""Training of the maps of queries on questions with known answers.

The loss of a question is −log of the share of its right candidates in the evidence of all; Lee et
al. 2021 (arXiv 2012.12624, §4.3) train the query encoder of an index by it. Here W and b of one map for the start query
and one for the end query are learned, and vectors of the corpus stay as they are:

    mean loss + λ (Σ W² + Σ b² / mean |q|²), minimized by L-BFGS from W = b = 0.

If the encoder has a joint pass and `hybrid` uses it, its queries are learned, else those of stored vectors.

Shapes: e examples, m candidates of one, b its blocks, n blocks of all examples, t keys of a block, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from npm.tuning.examples import Example

STEPS = 8
PENALTY = 0.1
"""λ."""


class Lesson:
    """Examples as a loss of maps."""

    def __init__(self, examples: Sequence[Example], scale: float) -> None:
        """`scale` is that of the encoder's full vectors. Queries are those of the joint pass if the examples have one.

        All examples have one, or none has.
        """
        self.examples, self.scale = examples, scale
        self.is_joint = any(len(example.joint_queries) for example in examples)
        queries = [example.joint_queries if self.is_joint else example.queries for example in examples]
        self.queries = torch.from_numpy(np.concatenate(queries))  # f32 [n, 2, d]
        self._sizes = [len(each) for each in queries]
        self._fixed: list[torch.Tensor] = []  # e of f32 [m], what no map changes
        with torch.no_grad():
            for example, before in zip(examples, self.queries.split(self._sizes), strict=True):
                self._fixed.append(torch.from_numpy(example.logits) - self._scores(example, before))

    def loss(self, maps: torch.Tensor) -> torch.Tensor:
        """The mean loss with the maps f32 [2, d, d + 1], a scalar."""
        # as npm.indexing.adaptation.mapped does
        turned = torch.einsum("nsd,sed->nse", self.queries, maps[..., :-1])  # f32 [n, 2, d]
        moved = (self.queries + turned + maps[..., -1]).split(self._sizes)  # e of f32 [b, 2, d]
        loss = torch.zeros(())  # []
        for example, fixed, after in zip(self.examples, self._fixed, moved, strict=True):
            loss = loss + right_loss(fixed + self._scores(example, after), torch.from_numpy(example.is_right))
        return loss / len(self.examples)

    def _scores(self, example: Example, queries: torch.Tensor) -> torch.Tensor:
        return scores(example, queries, scale=self.scale, joint=self.is_joint)


def learned_maps(lesson: Lesson, *, penalty: float = PENALTY, on_step: Callable[[float], None]) -> np.ndarray:
    """The maps f32 [2, d, d + 1] that a lesson teaches; `on_step` is called with the loss at each evaluation."""
    dimensions, square = lesson.queries.shape[-1], float(lesson.queries.square().sum(-1).mean())
    maps = torch.zeros(2, dimensions, dimensions + 1, requires_grad=True)
    optimizer = torch.optim.LBFGS([maps], max_iter=STEPS, history_size=STEPS, line_search_fn="strong_wolfe")

    def objective() -> float:
        optimizer.zero_grad()
        loss = lesson.loss(maps)
        on_step(float(loss.detach()))
        squares = maps[..., :-1].square().sum() + maps[..., -1].square().sum() / square
        total = loss + penalty * squares
        total.backward()
        return float(total.detach())

    optimizer.step(objective)
    return np.array(maps.detach().numpy())


def scores(example: Example, queries: torch.Tensor, *, scale: float, joint: bool) -> torch.Tensor:
    """The part f32 [m] of the candidates' logits that the queries f32 [b, 2, d] of an example decide."""
    blocks = torch.from_numpy(example.blocks)  # i64 [m]
    if not joint:
        keys = torch.from_numpy(example.keys).float()  # f32 [m, 2, k]
        return example.factors[0] * torch.einsum("msd,msd->m", keys, queries[blocks])  # f32 [m]
    keys = torch.from_numpy(example.joint_keys).float()  # f32 [b, t, d]
    similarities = torch.einsum("bsd,btd->bst", queries, keys) * scale  # f32 [b, 2, t]
    is_key = torch.from_numpy(example.is_key)[:, None]  # bool [b, 1, t]
    shares = similarities - similarities.masked_fill(~is_key, -torch.inf).logsumexp(2, keepdim=True)  # f32 [b, 2, t]
    slots = torch.from_numpy(example.slots)  # i64 [m, 2]
    return example.factors[1] * (shares[blocks, 0, slots[:, 0]] + shares[blocks, 1, slots[:, 1]])  # f32 [m]


def right_loss(logits: torch.Tensor, is_right: torch.Tensor) -> torch.Tensor:
    """−log of the share of the right ones, bool [m], in the weights of all by their logits f32 [m].

    >>> round(float(right_loss(torch.log(torch.tensor([3.0, 1.0])), torch.tensor([False, True]))), 4)
    1.3863
    """
    return logits.logsumexp(0) - logits[is_right].logsumexp(0)

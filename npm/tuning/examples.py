"""Questions with known answers as `npmlm adapt` learns from them, and the training of the maps of their queries.

The loss of a question is −log of the share of its right candidates in the evidence of all; Lee et al. 2021
(arXiv 2012.12624, §4.3) train the query encoder of an index by it. Here W and b of one map for the start query and one
for the end query are learned, and vectors of the corpus stay as they are:

    mean loss + λ (Σ W² + Σ b² / mean |q|²), minimized by L-BFGS from W = b = 0.

If the encoder has a joint pass and `hybrid` uses it, its queries are learned, else those of stored vectors.

Shapes: m candidates of one question, chosen from r, b blocks it is answered from (one for all of the index), t keys of
the joint pass over a block, k dimensions of stored vectors, d of the encoder's, or of a map; e examples, n blocks of
all examples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from npm.core.errors import SettingError
from npm.corpus.text import is_title, normalized_text
from npm.indexing.phrase_index import select
from npm.reading.mask_reader import JointPass, MaskReader
from npm.retrieval.blocks import choose_blocks, passage_of, sentence_pooler
from npm.retrieval.queries import encode_queries, sentences_of
from npm.retrieval.settings import FillSettings, Retrieval

if TYPE_CHECKING:
    from npm.retrieval.filler import PhraseFiller
    from npm.retrieval.search import Search
    from npm.retrieval.spans import CandidateSpans
MAX_QUESTIONS_AT_ONCE = 16
CANDIDATES = 256
"""Best candidates of a question, next to those that are right among the first `MAX_CANDIDATES`."""
MAX_CANDIDATES = 1024


@dataclass(frozen=True, slots=True)
class CorrectedAnswer:
    """A text with one `<mask>`, and the phrases that are right."""

    text: str
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """The candidates of one question, and the vectors by which maps of its queries change their scores."""

    logits: np.ndarray  # f32 [m], logarithms of the weights
    is_right: np.ndarray  # bool [m]
    blocks: np.ndarray  # i64 [m], of the b
    queries: np.ndarray  # f32 [b, 2, k]
    keys: np.ndarray  # f16 [m, 2, k], stored vectors of the first and the last token
    factors: tuple[float, float]  # of an inner product with a stored vector, and of a similarity of the joint pass
    joint_queries: np.ndarray  # f32 [b, 2, d]; [0, 2, d] without a joint pass, as the next three
    joint_keys: np.ndarray  # f16 [b, t, d]
    is_key: np.ndarray  # bool [b, t]
    slots: np.ndarray  # i64 [m, 2], of the first and the last token among the t keys


def learning_reader(filler: PhraseFiller, settings: FillSettings) -> MaskReader | None:
    """The reader whose queries are learned; None where those of stored vectors are. Raises SettingError for a head."""
    reader = filler.reader(settings) if settings.retrieval is Retrieval.hybrid else None
    if reader is not None and not isinstance(reader, MaskReader):
        raise SettingError(f"adapt cannot learn for {reader.name}, which has no query vectors: set fill.reader=none")
    return reader


def examples_of(
    filler: PhraseFiller, questions: Sequence[CorrectedAnswer], settings: FillSettings
) -> Iterator[Example | None]:
    """The example of each question in turn; None if no candidate is right, all are, or no map changes their scores.

    `filler` is over an index without maps.
    """
    reader = learning_reader(filler, settings)
    index, encoder = filler.index, filler.encoder
    allowed, pooler = select(index, None, ()), sentence_pooler(index, settings)
    for first in range(0, len(questions), MAX_QUESTIONS_AT_ONCE):
        batch = questions[first : first + MAX_QUESTIONS_AT_ONCE]
        texts = sentences_of([question.text for question in batch], settings)
        vectors = encode_queries(encoder, texts, pooler=pooler, tokens_per_batch=settings.tokens_per_batch)
        plans = choose_blocks(index, texts, vectors, settings, allowed=allowed)
        passes: list[JointPass] = []
        if reader is not None:
            for text, plan in zip(texts, plans, strict=True):
                passes += reader.passes([(text, passage_of(index.store, block)) for block in plan.blocks.tolist()])
            plans = filler.read(texts, vectors, plans, settings)
        counts = [len(plan.joint) for plan in plans]
        of_question = list(itertools.pairwise(np.cumsum([0, *counts]).tolist()))
        found: list[Example | None] = [None] * len(batch)
        for number, search in filler.searched(vectors, plans, settings):
            if reader is not None and search.plan.is_everywhere:
                continue  # no block has its words: it is searched everywhere, without the joint pass that is learned
            queries = np.stack([vectors.start[number], vectors.end[number]])  # f32 [2, k]
            of_text = passes[slice(*of_question[number])]
            found[number] = _example(filler, batch[number], search, queries, of_text, settings)
        yield from found


def _example(
    filler: PhraseFiller,
    question: CorrectedAnswer,
    search: Search,
    queries: np.ndarray,
    passes: Sequence[JointPass],
    settings: FillSettings,
) -> Example | None:
    """The example of one question with the queries f32 [2, k] of its text alone."""
    candidates, weights = filler.weighed(question.text, search, settings)
    order = np.argsort(-weights, kind="stable")[:MAX_CANDIDATES]  # i64 [r]
    texts = filler.surfaces.texts(candidates.starts[order], candidates.lengths[order])
    answers = frozenset(map(normalized_text, question.answers))
    right = np.array([normalized_text(text) in answers for text in texts], dtype=bool)  # [r]
    chosen = order[right | (np.arange(len(order)) < CANDIDATES)]  # i64 [m]
    is_right = np.isin(chosen, order[right])  # bool [m]
    if not is_right.any() or is_right.all():
        return None
    candidates = candidates.where(chosen)
    rows = np.stack([candidates.start_rows, candidates.end_rows], axis=1)  # i64 [m, 2]; negative without a vector
    assert filler.index.vectors is not None, "an index that was opened from its folder knows its vectors"
    keys = filler.index.vectors.take(np.maximum(rows.ravel(), 0)).reshape(*rows.shape, -1)  # [m, 2, k]
    keys = keys.astype(np.float16) * (rows >= 0)[..., None]  # f16 [m, 2, k]
    # 0 everywhere, where there are no blocks
    blocks = np.searchsorted(search.plan.blocks, filler.index.store.block_of(candidates.starts))  # i64 [m]
    joint_queries, joint_keys, is_key, slots = _joint(filler, candidates, blocks, passes)
    return Example(
        logits=np.log(np.maximum(weights[chosen], np.finfo(np.float64).tiny)).astype(np.float32),
        is_right=is_right,
        blocks=blocks,
        queries=np.broadcast_to(queries, (blocks.max() + 1, *queries.shape)),
        keys=keys,
        factors=search.factors,
        joint_queries=joint_queries,
        joint_keys=joint_keys,
        is_key=is_key,
        slots=slots,
    )


def _joint(
    filler: PhraseFiller, candidates: CandidateSpans, blocks: np.ndarray, passes: Sequence[JointPass]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The fields of an Example about the joint pass, with the passes over the b blocks of one question."""
    width, dimensions = (
        max((len(each.keys) for each in passes), default=0),
        passes[0].queries.shape[-1] if passes else 0,
    )
    queries = np.zeros((len(passes), 2, dimensions), dtype=np.float32)  # [b, 2, d]
    keys = np.zeros((len(passes), width, dimensions), dtype=np.float16)  # [b, t, d]
    is_key = np.zeros((len(passes), width), dtype=bool)  # [b, t]
    for number, each in enumerate(passes):
        count = len(each.keys)
        queries[number], keys[number, :count], is_key[number, :count] = each.queries[0], each.keys, True
    if not passes:
        return queries, keys, is_key, np.zeros((len(blocks), 2), dtype=np.int64)
    store, last = filler.index.store, np.array([len(each.keys) - 1 for each in passes])  # i64 [b]
    of_block = store.block_of(candidates.starts)  # i64 [m]
    bounds = np.stack([store.block_offsets[of_block], store.block_offsets[of_block + 1]], axis=1).tolist()
    titles = np.array([np.count_nonzero(is_title(store.flags.slice(*own))) for own in bounds], dtype=np.int64)  # [m]
    firsts = candidates.starts - store.block_offsets[of_block] - titles  # i64 [m], within the block's text
    slots = 1 + np.stack([firsts, firsts + candidates.lengths - 1], axis=1)  # i64 [m, 2], after the text's first token
    return queries, keys, is_key, np.minimum(slots, last[blocks][:, None])


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

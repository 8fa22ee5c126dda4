"""Questions with known answers and joint reading: numbers worked by hand, equality with plain loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from npm.core.types import Spans, TokenFlag
from npm.corpus.questions import Question
from npm.masking.batches import MaskedBatch, QuestionBatch
from npm.masking.masker import NO_CONTEXT, Contexts
from npm.masking.rendering import MaskRenderer
from npm.models.settings import PoolerKind
from npm.objectives.encoded import EncodedRows, clean_copy_keys
from npm.objectives.reading import JointReading, reading_losses
from npm.objectives.settings import SpanSupervisionSettings
from npm.objectives.span_supervision import ReaderScores, SpanSupervision
from npm.training.questions import question_batch
from tests.helpers.groups import WORD, group
from tests.objectives.batches import FIRST_ID, LAST_ID, MASK_ID, PAD_ID, masked_copies_as

FRAME: Any = SimpleNamespace(
    prefix_ids=[FIRST_ID], suffix_ids=[LAST_ID], pad_id=PAD_ID, mask_id=MASK_ID, query_masks=2, max_input_tokens=64
)
"""What a batch is made with of an encoder."""


def passage(*token_ids: int) -> tuple[np.ndarray, np.ndarray]:
    """A passage without a title."""
    return np.array([], dtype=np.int64), np.array(token_ids, dtype=np.int64)


def question(
    before: list[int],
    after: list[int],
    block: list[int],
    *answers: list[int],
    title: tuple[int, ...] = (),
    rivals: Sequence[list[int]] = (),
) -> Question:
    """A question from token ids."""
    texts = [np.array(ids, dtype=np.int64) for ids in (before, after, title, block)]
    lists = [[np.array(ids, dtype=np.int64) for ids in given] for given in (rivals, answers)]
    return Question(*texts, passage(), [], *lists)


def terms_of(
    batch: QuestionBatch,
    states: torch.Tensor,
    *,
    distances: torch.Tensor | None = None,
    scale: float = 1.0,
    scores: ReaderScores | None = None,
    **settings: float,
) -> dict[str, float]:
    """The mean of each term of a batch whose rows are encoded as `states`.

    Its teacher says `distances`, its reader, if any, `scores`.
    """
    taught = torch.zeros(len(batch.start_slots)) if distances is None else distances
    teacher: Any = SimpleNamespace(pooler=PoolerKind.avg, distances=lambda *_: taught)
    reader: Any = scores and SimpleNamespace(scores=lambda _: scores)
    objective = SpanSupervision(SpanSupervisionSettings(**settings), scale, teacher, reader)
    encoded = cast(EncodedRows[QuestionBatch], SimpleNamespace(batch=batch, states=lambda: states))
    terms, counts = objective(encoded), objective.counts(batch)
    assert {name: term.count for name, term in terms.items()} == counts
    return {name: float(term.sum) / max(1, term.count) for name, term in terms.items()}


def one_question() -> tuple[QuestionBatch, torch.Tensor]:
    """A question with its block and a wrong one, and the states of its rows."""
    batch = question_batch([question([5], [], [6, 7], [7], rivals=[[6]])], [passage(8)], FRAME)
    assert batch.input_ids.tolist() == [
        [FIRST_ID, 5, MASK_ID, MASK_ID, LAST_ID, 6, 7, LAST_ID],
        [FIRST_ID, 5, MASK_ID, MASK_ID, LAST_ID, 8, LAST_ID, PAD_ID],
        [FIRST_ID, 6, 7, LAST_ID, *[PAD_ID] * 4],
        [FIRST_ID, 8, LAST_ID, *[PAD_ID] * 5],
        [FIRST_ID, 5, MASK_ID, MASK_ID, LAST_ID, *[PAD_ID] * 3],
        [FIRST_ID, 5, LAST_ID, *[PAD_ID] * 5],
    ]
    states = torch.zeros(6, 8, 1)
    states[0, :, 0] = torch.tensor([1.0, 0, 1, 2, 0, 3, 4, 0])  # "not here" 1, start query 1, end query 2, keys 3 and 4
    states[1, :, 0] = torch.tensor([2.0, 0, 1, 3, 0, 1, 0, 0])  # "not here" 2, queries 1 and 3, key 1
    states[2, :, 0] = torch.tensor([9.0, 1, 2, 9, 0, 0, 0, 0])  # keys 1 and 2
    states[3, :, 0] = torch.tensor([-9.0, -1, -9, 0, 0, 0, 0, 0])  # key -1
    states[4, :, 0] = torch.tensor([9.0, 9, 3, -1, 9, 0, 0, 0])  # queries 3 and -1
    states[5, :, 0] = torch.tensor([1.0, 1, 1, 0, 0, 0, 0, 0])  # cosines 1 and -1 with the blocks
    return batch, states


def test_the_terms_of_one_question_worked_by_hand() -> None:
    found = terms_of(*one_question(), distances=torch.tensor([0.25]), distill_weight=1.0, rival_weight=2.0)
    # logits of the joint pass and of the index, for start and end
    pairs = [((3.0, 4.0), (3.0, 6.0, -3.0)), ((6.0, 8.0), (-1.0, -2.0, 1.0))]
    expected = {
        "answer_start": math.log(math.exp(1) + 2 * math.exp(3) + math.exp(4)) - 4,  # 6 counts twice
        "answer_end": math.log(math.exp(2) + 2 * math.exp(6) + math.exp(8)) - 8,
        "absent": (log_sum([2, 1]) - 2 + log_sum([6, 3]) - 6) / 2,
        "query_alone": (log_sum([3, 6, -3]) - 6 + log_sum([-1, -2, 1]) + 2) / 2,
        "query_read": (log_sum([1, 2, -1]) - 2 + log_sum([2, 4, -2]) - 4) / 2,
        "rank": math.log1p(math.exp(-40)),
        "teacher": 0.25,
        "distill": sum(divergence(*pair) for pair in pairs) / 2,
    }
    right = {"answer_start": 1, "answer_end": 1, "absent": 1, "query_alone": 0.5, "query_read": 1, "rank": 1}
    expected |= {f"{name}_top1": share for name, share in right.items()}
    assert found == pytest.approx(expected, abs=1e-5)


def test_what_a_reader_teaches_worked_by_hand() -> None:
    # starting at 6 or 7, ending there; log-odds of an answer in the right and in the wrong block
    scores = ReaderScores(torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log(), torch.tensor([2.0, 2.0 - math.log(3)]))
    found = terms_of(*one_question(), scores=scores, distill_weight=1.0)
    starts = 0.25 * (math.log(0.25) - 3) + 0.75 * (math.log(0.75) - 6) + log_sum([3, 6, -3])
    ends = 0.5 * (math.log(0.5) + 1) + 0.5 * (math.log(0.5) + 2) + log_sum([-1, -2, 1])
    assert found["distill"] == pytest.approx((starts + ends) / 2, abs=1e-5)
    # three to one for the right block, whose logit is 40 above the other's
    assert found["rank"] == pytest.approx(0.75 * math.log(0.75) + 0.25 * (math.log(0.25) + 40), abs=1e-5)


def occurrences(answers: list[np.ndarray], text: list[int]) -> list[tuple[int, int]]:
    """First and last position of each occurrence of any answer."""
    return [
        (at, at + len(answer) - 1)
        for answer in answers
        for at in range(len(text))
        if text[at : at + len(answer)] == answer.tolist()
    ]


def log_sum(values: Sequence[float]) -> float:
    return math.log(sum(map(math.exp, values)))


def divergence(p: Sequence[float], q: Sequence[float]) -> float:
    """KL of the softmax of the logits `p` and of the logits `q`; those of `q` beyond `p` have no part in `p`."""
    return sum(math.exp(a - log_sum(p)) * (a - log_sum(p) - b + log_sum(q)) for a, b in zip(p, q, strict=False))


@dataclass
class PlainBatch:
    """The terms of a batch, one question, one block and one key at a time."""

    questions: list[Question]
    wrong: list[tuple[np.ndarray, np.ndarray] | None]
    states: torch.Tensor
    scale: float
    joint_count: int

    def __post_init__(self) -> None:
        self.shown = [(number, each.title, each.block.tolist()) for number, each in enumerate(self.questions)]
        self.shown += [(number, each[0], each[1].tolist()) for number, each in enumerate(self.wrong) if each]
        self.readers = [each for each in self.shown if each[0] < self.joint_count]
        first = len(self.readers)
        self.clean = [
            [self.states[first + number, 1 + len(title) + at] for at in range(len(text))]
            for number, (_, title, text) in enumerate(self.shown)
        ]

    def score(self, a: torch.Tensor, b: torch.Tensor) -> float:
        return self.scale * float(a @ b)

    def alone(self, number: int, side: int) -> torch.Tensor:
        """The start or end query of a question alone."""
        row = len(self.readers) + len(self.shown) + number
        return self.states[row, 1 + len(self.questions[number].before) + side]

    def read(self, row: int, side: int) -> tuple[torch.Tensor, float, list[float]]:
        """Start or end query of a joint pass, and the logits of "not here" and of the passage's tokens."""
        number, title, text = self.readers[row]
        each = self.questions[number]
        query = self.states[row, 1 + len(each.before) + side]
        key = 1 + len(each.before) + 2 + len(each.after) + 1 + len(title)
        logits = [self.score(query, self.states[row, key + at]) for at in range(len(text))]
        return query, self.score(query, self.states[row, 0]), logits

    def stored(self, number: int, side: int, query: torch.Tensor) -> tuple[list[float], list[float]]:
        """Logits of the positives, and of all that a question is compared with, those of its own block first."""
        near, every = [], []
        for other in (number, *(other for other in range(len(self.shown)) if other != number)):
            hits = {edge[side] for edge in occurrences(self.questions[number].answers, self.shown[other][2])}
            for at, vector in enumerate(self.clean[other]):
                if other == number and at in hits:
                    near.append(self.score(query, vector))
                if other == number or at not in hits:
                    every.append(self.score(query, vector))
        return near, every

    def joint_terms(self, rival_weight: float) -> dict[str, float]:
        """The sums of `answer_start`, `answer_end`, `absent`, `query_read` and the self-taught `distill`."""
        sums = dict.fromkeys(("answer_start", "answer_end", "absent", "query_read", "distill"), 0.0)
        for row, (number, _, text) in enumerate(self.readers):
            each = self.questions[number]
            for side, name in enumerate(("answer_start", "answer_end")):
                query, absent, logits = self.read(row, side)
                edges = {edge[side] for edge in occurrences(each.answers, text)}
                hard = {edge[side] for edge in occurrences(each.rivals, text)} - edges
                weighted = [logit + math.log(rival_weight) * (at in hard) for at, logit in enumerate(logits)]
                if row >= self.joint_count:
                    assert not edges
                    sums["absent"] += (log_sum([absent, *weighted]) - absent) / 2
                    continue
                sums[name] += log_sum([absent, *weighted]) - log_sum([logits[at] for at in edges])
                near, every = self.stored(number, side, query)
                sums["query_read"] += (log_sum(every) - log_sum(near)) / 2
                every = self.stored(number, side, self.alone(number, side))[1]
                sums["distill"] += divergence(logits, every) / 2
        return sums

    def stored_terms(self, scores: ReaderScores | None) -> dict[str, float]:
        """The sums of `query_alone` and of the `distill` of a reader."""
        sums = dict.fromkeys(("query_alone", "distill"), 0.0)
        first = 0
        for number, each in enumerate(self.questions):
            for side in (0, 1):
                near, every = self.stored(number, side, self.alone(number, side))
                sums["query_alone"] += (log_sum(every) - log_sum(near)) / 2
                if scores is not None:
                    taught = scores.log_probabilities[side, first : first + len(each.block)].tolist()
                    sums["distill"] += divergence(taught, every) / 2
            first += len(each.block)
        return sums

    def rank(self, scores: ReaderScores | None) -> float:
        """The sum of `rank`."""
        total = 0.0
        for number, each in enumerate(self.questions):
            unmasked = self.states[len(self.states) - len(self.questions) + number]
            pooled = unmasked[: 2 + len(each.before) + len(each.after)].mean(0)
            cosines = {
                other: 20 * float(torch.cosine_similarity(pooled, row[: 2 + len(title) + len(text)].mean(0), dim=0))
                for other, (_, title, text) in enumerate(self.shown)
                if other == number or not occurrences(each.answers, text)
                for row in [self.states[len(self.readers) + other]]
            }
            here = {number: 0.0}
            if scores is not None:
                here = {at: float(scores.here[at]) for at, (asker, *_) in enumerate(self.shown) if asker == number}
            others = [other for other in cosines if other not in here]
            total += divergence(list(here.values()), [cosines[other] for other in (*here, *others)])
        return total

    def terms(self, rival_weight: float, scores: ReaderScores | None) -> dict[str, float]:
        """The means of all terms but the teacher's."""
        count = len(self.questions)
        joint = self.joint_terms(rival_weight)
        counts = dict.fromkeys(joint, self.joint_count) | {"absent": len(self.readers) - self.joint_count}
        means = {name: total / counts[name] for name, total in joint.items()}
        stored = {name: total / count for name, total in self.stored_terms(scores).items()}
        distill = means["distill"] if scores is None else stored["distill"]
        return means | stored | {"distill": distill, "rank": self.rank(scores) / count}


@pytest.mark.parametrize("with_reader", [False, True])
@pytest.mark.parametrize("joint_count", [4, 3, 1])
def test_all_terms_equal_plain_loops_with_titles_several_answers_and_answers_in_other_blocks(
    joint_count: int, with_reader: bool
) -> None:
    questions = [
        # one of its rivals begins with an answer
        question([11], [12, 13], [5, 6, 7, 5, 6], [5, 6], [7], title=(14, 15), rivals=[[6, 7], [7, 5]]),
        question([], [16], [8, 5, 6], [8]),  # its block contains an answer of the first question
        question([17, 18], [], [9, 9, 10], [9], title=(14,)),
        question([19], [], [10, 8], [10], rivals=[[8]]),
    ]
    wrong = [(np.array([14, 15]), np.array([10, 8])), None, (np.array([15]), np.array([5, 6, 8, 7])), passage(7, 8)]
    batch = question_batch(questions, wrong, FRAME, joint_fraction=joint_count / 4)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(*batch.input_ids.shape, 4, generator=generator)
    scores = ReaderScores(
        torch.cat([torch.randn(2, len(each.block), generator=generator).log_softmax(1) for each in questions], dim=1),
        torch.randn(7, generator=generator),
    )
    given = scores if with_reader else None
    found = terms_of(batch, states, scale=0.7, scores=given, distill_weight=1.0, rival_weight=3.0)
    expected = PlainBatch(questions, wrong, states, 0.7, joint_count).terms(3.0, given)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-4)


def test_the_joint_pass_is_not_trained_by_what_it_teaches() -> None:
    batch = question_batch([question([5], [], [6, 7], [7])], [None], FRAME)
    states = torch.randn(*batch.input_ids.shape, 4, requires_grad=True)
    teacher: Any = SimpleNamespace(pooler=PoolerKind.avg, distances=lambda *_: torch.zeros(1))
    objective = SpanSupervision(SpanSupervisionSettings(distill_weight=1.0), 1.0, teacher)
    objective(cast(EncodedRows[QuestionBatch], SimpleNamespace(batch=batch, states=lambda: states)))[
        "distill"
    ].sum.backward()
    assert states.grad is not None
    assert not states.grad[0].any()
    assert states.grad[1].any()
    assert states.grad[2].any()


TITLE = int(TokenFlag.TITLE)


def batch_that_reads(
    rows: list[list[int]], spans: list[tuple[int, int, int]], reads: list[int], *, titles: tuple[int, ...] = ()
) -> MaskedBatch:
    """Rows of token ids, spans (row, start, length), and which row each copy reads; the first of `titles` rows."""
    flags = [
        [TITLE if number in titles and not at else WORD for at in range(len(row))] for number, row in enumerate(rows)
    ]
    sequences = group(*rows, flags=flags)
    starts = np.array([sequences.offsets[row] + start for row, start, _ in spans], dtype=np.int64)  # i64 [n]
    lengths = np.array([length for _, _, length in spans], dtype=np.int64)  # i64 [n]
    renderer = MaskRenderer(mask_id=MASK_ID, pad_id=PAD_ID, prefix_ids=(FIRST_ID,), suffix_ids=(LAST_ID,))
    contexts = Contexts(np.array(reads), sequences.offsets[:-1], sequences.offsets[1:])
    return renderer.render(sequences, Spans(starts, lengths), contexts)


def plain_reading_loss(
    queries: torch.Tensor, batch: MaskedBatch, reads: list[list[int]], scale: float
) -> list[torch.Tensor]:
    """Start and end sums, one span and one key at a time; `reads` are the tokens that each copy reads."""
    sums = [torch.zeros((), dtype=queries.dtype) for _ in range(2)]
    for span, copy in enumerate(batch.span_sequences.tolist()):
        if not reads[copy]:
            continue
        tokens = [token for token in batch.span_token_ids[span].tolist() if token >= 0]
        size = int(batch.query_attention_mask[copy].sum())
        place = size - 1 - len(reads[copy])  # the last position is the suffix
        found = [at for at in range(len(reads[copy])) if reads[copy][at : at + len(tokens)] == tokens]
        for side, slot in enumerate((int(batch.start_slots[span]), int(batch.end_slots[span]))):
            keys = {-1: queries[copy, 0]} | {at: queries[copy, place + at] for at in range(len(reads[copy]))}
            logits = {at: scale * (queries[copy, slot] * key).sum() for at, key in keys.items()}
            right = [at + side * (len(tokens) - 1) for at in found] or [-1]
            every = torch.stack(list(logits.values())).exp().sum().log()
            sums[side] = sums[side] + every - torch.stack([logits[at] for at in right]).exp().sum().log()
    return sums


def test_the_loss_of_a_span_that_stands_in_the_block_and_of_one_that_does_not_worked_by_hand() -> None:
    # the copy of 5 6 with 5 masked: [CLS] M M 6 [SEP] 5 8 [SEP]; that of 5 8 with 8 masked reads 5 6, where no 8 is
    batch = batch_that_reads([[5, 6], [5, 8]], [(0, 0, 1), (1, 1, 1)], [1, 0])
    assert batch.query_input_ids.tolist() == [
        [FIRST_ID, MASK_ID, MASK_ID, 6, LAST_ID, 5, 8, LAST_ID],
        [FIRST_ID, 5, MASK_ID, MASK_ID, LAST_ID, 5, 6, LAST_ID],
    ]
    queries = torch.zeros(2, 8, 1)
    queries[0, 1], queries[0, 2] = 1.0, 2.0  # start and end query
    queries[0, 0], queries[0, 5], queries[0, 6] = 1.0, 3.0, 2.0  # "not here", 5, 8
    queries[1, 2], queries[1, 3] = 1.0, 1.0
    queries[1, 0], queries[1, 5], queries[1, 6] = 4.0, 1.0, 0.0
    terms = JointReading(1.0)(masked_copies_as(queries, batch))
    there = [math.log(math.exp(q) + math.exp(3 * q) + math.exp(2 * q)) - 3 * q for q in (1.0, 2.0)]
    absent = math.log(math.e**4 + math.e + 1) - 4
    assert terms["reading_start"].sum.item() == pytest.approx(there[0] + absent, abs=1e-5)
    assert terms["reading_end"].sum.item() == pytest.approx(there[1] + absent, abs=1e-5)
    assert terms["reading_start_top1"].sum.item() == 2
    assert {term.count for term in terms.values()} == {2}


@pytest.mark.parametrize("seed", range(5))
def test_values_and_gradients_equal_those_of_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(1, 5, size).tolist() for size in (7, 4, 9, 3)]
    spans = [(0, 1, 2), (0, 5, 1), (1, 0, 1), (2, 3, 3), (2, 7, 2), (3, 1, 1)]
    reads = [2, NO_CONTEXT, 0, 2]
    batch = batch_that_reads(rows, spans, reads, titles=(2,))
    queries = torch.from_numpy(rng.standard_normal((*batch.query_input_ids.shape, 6))).float().requires_grad_()
    terms = JointReading(0.5)(masked_copies_as(queries, batch))
    shown = [rows[read][read == 2 :] if read >= 0 else [] for read in reads]  # without the title of the third
    start, end = plain_reading_loss(queries, batch, shown, 0.5)
    assert terms["reading_start"].sum.item() == pytest.approx(start.item(), rel=1e-5)
    assert terms["reading_end"].sum.item() == pytest.approx(end.item(), rel=1e-5)
    assert terms["reading_end"].count == 5  # all but the span of the copy that reads nothing
    (wanted,) = torch.autograd.grad(start + end, queries)
    (got,) = torch.autograd.grad(terms["reading_start"].sum + terms["reading_end"].sum, queries)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def test_logits_are_those_of_float32_where_the_encoder_computes_in_bfloat16() -> None:
    batch = batch_that_reads([[5, 6], [5, 8]], [(0, 0, 1), (1, 1, 1)], [1, 0])
    queries = 4 * torch.randn(*batch.query_input_ids.shape, 8, generator=torch.Generator().manual_seed(0))
    expected = JointReading(1.0)(masked_copies_as(queries, batch))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = JointReading(1.0)(masked_copies_as(queries, batch))
    for name, term in terms.items():
        torch.testing.assert_close(term.sum, expected[name].sum, rtol=0, atol=0)


def test_the_key_for_not_here_is_never_an_edge_of_the_answer() -> None:
    """As where an encoder has no first special token: its first token may be that of the answer."""
    logits, own = torch.tensor([[3.0, 0.0, 1.0]]), torch.ones(1, 3, dtype=torch.bool)
    first = torch.tensor([True, False, False])
    sum_of_all = math.log(math.e**3 + 1 + math.e)
    for edges, loss in (([True, False, True], sum_of_all - 1), ([True, False, False], sum_of_all - 3)):
        found, _ = reading_losses(logits, torch.tensor([edges]), own, first)
        assert found.item() == pytest.approx(loss, abs=1e-5)


def test_titles_are_no_keys_of_the_clean_copies_and_none_of_the_read_blocks() -> None:
    batch = batch_that_reads([[7, 1, 2], [2, 3]], [(1, 0, 1)], [NO_CONTEXT, 0], titles=(0,))
    assert clean_copy_keys(batch)[1].tolist() == [FIRST_ID, 1, 2, LAST_ID, FIRST_ID, 2, 3, LAST_ID]
    assert batch.read_tokens is not None
    assert batch.query_input_ids[1][batch.read_tokens[1]].tolist() == [1, 2]


def test_a_batch_in_which_no_copy_reads_has_terms_that_count_nothing() -> None:
    batch = batch_that_reads([[1, 2], [2, 3]], [(1, 0, 1)], [NO_CONTEXT, NO_CONTEXT])
    queries = torch.ones(*batch.query_input_ids.shape, 2, requires_grad=True)
    objective = JointReading(1.0)
    terms = objective(masked_copies_as(queries, batch))
    assert set(objective.counts(batch).values()) == {0}
    assert {(term.sum.item(), term.count) for term in terms.values()} == {(0.0, 0)}

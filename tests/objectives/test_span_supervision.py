"""Questions with known answers and joint reading: numbers worked by hand, equality with plain loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from npm.core.types import MaskedBatch, QuestionBatch, Spans, TokenFlag
from npm.corpus.questions import Question
from npm.masking.masker import NO_CONTEXT, Contexts
from npm.masking.rendering import MaskRenderer
from npm.models.settings import PoolerKind
from npm.objectives.encoded import EncodedBatch, EncodedRows
from npm.objectives.reading import JointReading, reading_losses
from npm.objectives.settings import SpanSupervisionSettings
from npm.objectives.span_supervision import SpanSupervision
from npm.training.questions import question_batch
from tests.helpers.groups import WORD, group
from tests.objectives.batches import FIRST_ID, LAST_ID, MASK_ID, PAD_ID

FRAME: Any = SimpleNamespace(
    prefix_ids=[FIRST_ID], suffix_ids=[LAST_ID], pad_id=PAD_ID, mask_id=MASK_ID, query_masks=2, max_input_tokens=64
)
"""What a batch is made with of an encoder."""


def question(
    before: list[int],
    after: list[int],
    block: list[int],
    *answers: list[int],
    title: tuple[int, ...] = (),
    wrong: tuple[list[int], list[int]] = ([], []),
    negatives: Sequence[list[int]] = (),
    rivals: Sequence[list[int]] = (),
) -> Question:
    """A question from token ids."""
    texts = [np.array(ids, dtype=np.int64) for ids in (before, after, title, block, *wrong)]
    lists = [[np.array(ids, dtype=np.int64) for ids in given] for given in (negatives, rivals, answers)]
    return Question(*texts[:4], (texts[4], texts[5]), *lists)


def terms_of(
    batch: QuestionBatch,
    states: torch.Tensor,
    *,
    distances: torch.Tensor | None = None,
    scale: float = 1.0,
    **settings: float,
) -> dict[str, float]:
    """The mean of each term of a batch whose rows are encoded as `states`; its teacher says `distances`."""
    taught = torch.zeros(len(batch.start_slots)) if distances is None else distances
    teacher: Any = SimpleNamespace(pooler=PoolerKind.avg, distances=lambda *_: taught)
    objective = SpanSupervision(SpanSupervisionSettings(**settings), scale, teacher)
    encoded = cast(EncodedRows[QuestionBatch], SimpleNamespace(batch=batch, states=lambda: states))
    terms, counts = objective(encoded), objective.counts(batch)
    assert {name: term.count for name, term in terms.items()} == counts
    return {name: float(term.sum) / max(1, term.count) for name, term in terms.items()}


def test_the_terms_of_one_question_worked_by_hand() -> None:
    batch = question_batch([question([5], [], [6, 7], [7], negatives=[[8]], rivals=[[6]])], [0], FRAME)
    assert batch.input_ids.tolist() == [
        [FIRST_ID, 5, MASK_ID, MASK_ID, LAST_ID, 6, 7, LAST_ID],
        [FIRST_ID, 5, MASK_ID, MASK_ID, LAST_ID, 8, LAST_ID, PAD_ID],
        [FIRST_ID, 6, 7, LAST_ID, *[PAD_ID] * 4],
        [FIRST_ID, 5, MASK_ID, MASK_ID, LAST_ID, *[PAD_ID] * 3],
        [FIRST_ID, 5, LAST_ID, *[PAD_ID] * 5],
    ]
    states = torch.zeros(5, 8, 1)
    states[0, :, 0] = torch.tensor([1.0, 0, 1, 2, 0, 3, 4, 0])  # "not here" 1, start query 1, end query 2, keys 3 and 4
    states[1, :, 0] = torch.tensor([2.0, 0, 1, 3, 0, 1, 0, 0])  # "not here" 2, queries 1 and 3, key 1
    states[2, :, 0] = torch.tensor([9.0, 1, 2, 9, 0, 0, 0, 0])  # keys 1 and 2
    states[3, :, 0] = torch.tensor([9.0, 9, 3, -1, 9, 0, 0, 0])  # queries 3 and -1
    found = terms_of(batch, states, distances=torch.tensor([0.25]), distill_weight=1.0, rival_weight=2.0)
    # logits of the joint pass and of the index, for start and end
    pairs = [((3.0, 4.0), (3.0, 6.0)), ((6.0, 8.0), (-1.0, -2.0))]
    expected = {
        "answer_start": math.log(math.exp(1) + 2 * math.exp(3) + math.exp(4)) - 4,  # 6 counts twice
        "answer_end": math.log(math.exp(2) + 2 * math.exp(6) + math.exp(8)) - 8,
        "absent": (log_sum([2, 1]) - 2 + log_sum([6, 3]) - 6) / 2,
        "query_alone": (log_sum([3, 6]) - 6 + log_sum([-1, -2]) + 2) / 2,
        "query_read": (log_sum([1, 2]) - 2 + log_sum([2, 4]) - 4) / 2,
        "rank": 0.0,  # there is no other block
        "teacher": 0.25,
        "distill": sum(divergence(*pair) for pair in pairs) / 2,
    }
    right = {"answer_start": 1, "answer_end": 1, "absent": 1, "query_alone": 0.5, "query_read": 1, "rank": 1}
    expected |= {f"{name}_top1": share for name, share in right.items()}
    assert found == pytest.approx(expected, abs=1e-5)


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
    """KL of the softmax of the logits `p` and of the logits `q`."""
    return sum(math.exp(a - log_sum(p)) * (a - log_sum(p) - b + log_sum(q)) for a, b in zip(p, q, strict=True))


def shown_passages(
    questions: list[Question], reads: list[int | None]
) -> tuple[list[tuple[int, np.ndarray, list[int]]], list[tuple[np.ndarray, list[int]]]]:
    """What is read with which question, and the blocks of the batch, as titles and texts."""
    readers = [(number, each.title, each.block.tolist()) for number, each in enumerate(questions)]
    blocks = [(each.title, each.block.tolist()) for each in questions]
    for number, which in enumerate(reads):
        each = questions[number]
        if which is not None and which < len(each.negatives):
            readers.append((number, each.title, each.negatives[which].tolist()))
        elif which is not None:
            readers.append((number, each.wrong[0], each.wrong[1].tolist()))
            blocks.append((each.wrong[0], each.wrong[1].tolist()))
    return readers, blocks


def plain_terms(
    questions: list[Question], reads: list[int | None], states: torch.Tensor, scale: float, rival_weight: float
) -> dict[str, float]:
    """The means of all terms but the teacher's, one question, one block and one key at a time."""
    count = len(questions)
    readers, titled = shown_passages(questions, reads)
    sums = dict.fromkeys(("answer_start", "answer_end", "absent", "query_alone", "query_read", "rank", "distill"), 0.0)
    clean = [
        [states[len(readers) + number, 1 + len(title) + at] for at in range(len(block))]
        for number, (title, block) in enumerate(titled)
    ]
    asked_alone = len(readers) + len(titled)

    def score(a: torch.Tensor, b: torch.Tensor) -> float:
        return scale * float(a @ b)

    for row, (number, title, text) in enumerate(readers):
        each = questions[number]
        key = 1 + len(each.before) + 2 + len(each.after) + 1 + len(title)
        for side, name in enumerate(("answer_start", "answer_end")):
            query = states[row, 1 + len(each.before) + side]
            logits = [score(query, states[row, key + at]) for at in range(len(text))]
            absent = score(query, states[row, 0])
            edges = {edge[side] for edge in occurrences(each.answers, text)}
            hard = {edge[side] for edge in occurrences(each.rivals, text)} - edges
            weighted = [logit + math.log(rival_weight) * (at in hard) for at, logit in enumerate(logits)]
            if row >= count:
                assert not edges
                sums["absent"] += (log_sum([absent, *weighted]) - absent) / 2
                continue
            sums[name] += log_sum([absent, *weighted]) - log_sum([logits[at] for at in edges])
            alone = states[asked_alone + number, 1 + len(each.before) + side]
            for term, asking in (("query_alone", alone), ("query_read", query)):
                near, all_of_them = [], []
                for other, (_, other_text) in enumerate(titled):
                    hits = {edge[side] for edge in occurrences(each.answers, other_text)}
                    for at, vector in enumerate(clean[other]):
                        if other == number and at in hits:
                            near.append(score(asking, vector))
                        if other == number or at not in hits:
                            all_of_them.append(score(asking, vector))
                sums[term] += (log_sum(all_of_them) - log_sum(near)) / 2
            stored = [score(alone, vector) for vector in clean[number]]
            sums["distill"] += divergence(logits, stored) / 2
    for number, each in enumerate(questions):
        unmasked = states[asked_alone + count + number, : 2 + len(each.before) + len(each.after)].mean(0)
        cosines = {
            other: 20 * float(torch.cosine_similarity(unmasked, states[len(readers) + other, :size].mean(0), dim=0))
            for other, (title, block) in enumerate(titled)
            if other == number or not occurrences(each.answers, block)
            for size in [2 + len(title) + len(block)]
        }
        sums["rank"] += log_sum(list(cosines.values())) - cosines[number]
    return {name: total / (len(readers) - count if name == "absent" else count) for name, total in sums.items()}


def test_all_terms_equal_plain_loops_with_titles_several_answers_and_answers_in_other_blocks() -> None:
    questions = [
        # one of its rivals begins with an answer
        question(
            [11], [12, 13], [5, 6, 7, 5, 6], [5, 6], [7], title=(14, 15), negatives=[[10, 8]], rivals=[[6, 7], [7, 5]]
        ),
        question([], [16], [8, 5, 6], [8]),  # its block contains an answer of the first question
        question([17, 18], [], [9, 9, 10], [9], title=(14,), negatives=[[7]], wrong=([15], [5, 6, 8, 7])),
        question([19], [], [10, 8], [10], wrong=([], [7, 8]), rivals=[[8]]),
    ]
    reads = [0, None, 1, 0]
    batch = question_batch(questions, reads, FRAME)
    states = torch.randn(*batch.input_ids.shape, 4, generator=torch.Generator().manual_seed(0))
    found = terms_of(batch, states, scale=0.7, distill_weight=1.0, rival_weight=3.0)
    expected = plain_terms(questions, reads, states, 0.7, 3.0)
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


def encoded_as(queries: torch.Tensor, batch: MaskedBatch) -> EncodedBatch:
    """A batch whose masked copies are encoded as `queries` [Q, Lq, d]."""
    return EncodedBatch(lambda input_ids, attention_mask: queries, batch, with_clean_copies=False)


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
    terms = JointReading(1.0)(encoded_as(queries, batch))
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
    terms = JointReading(0.5)(encoded_as(queries, batch))
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
    expected = JointReading(1.0)(encoded_as(queries, batch))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = JointReading(1.0)(encoded_as(queries, batch))
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
    vectors = torch.arange(2 * 8, dtype=torch.float32).reshape(2, 8, 1)
    encoded = EncodedBatch(lambda input_ids, attention_mask: vectors[:, : input_ids.shape[1]], batch)
    assert encoded.key_token_ids.tolist() == [FIRST_ID, 1, 2, LAST_ID, FIRST_ID, 2, 3, LAST_ID]
    assert batch.read_tokens is not None
    assert batch.query_input_ids[1][batch.read_tokens[1]].tolist() == [1, 2]


def test_a_batch_in_which_no_copy_reads_has_terms_that_count_nothing() -> None:
    batch = batch_that_reads([[1, 2], [2, 3]], [(1, 0, 1)], [NO_CONTEXT, NO_CONTEXT])
    queries = torch.ones(*batch.query_input_ids.shape, 2, requires_grad=True)
    objective = JointReading(1.0)
    terms = objective(encoded_as(queries, batch))
    assert set(objective.counts(batch).values()) == {0}
    assert {(term.sum.item(), term.count) for term in terms.values()} == {(0.0, 0)}

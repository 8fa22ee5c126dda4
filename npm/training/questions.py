"""Questions with known answers as a source of batches, alone or in turn with another source.

Shapes: N questions of all ranks at a micro-step, n of this rank, R rows, L padded length, a answers and rivals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from npm.core.errors import CorpusError, SettingError
from npm.corpus.questions import (
    Question,
    QuestionTable,
    SupervisionSettings,
    first_occurrence,
    occurrences,
    question_table,
)
from npm.masking.batches import BatchSource, PassageBatch, QuestionBatch, View
from npm.masking.rendering import PASSAGES, QUESTIONS, VIEW_NUMBERS, padded_rows
from npm.models.encoder import Encoder
from npm.objectives.ranks import rank, world_size

Titled = tuple[np.ndarray, np.ndarray]
"""Token ids i64 [.] of a passage's title with a full stop, and i64 [.] of its text."""
NEAR_ROWS = 24
"""Rows before and after a question's, and as many at random, among whose passages a wrong one is looked for."""


def question_batch(
    questions: Sequence[Question], wrong: Sequence[Titled | None], encoder: Encoder, *, joint_fraction: float = 1.0
) -> QuestionBatch:
    """Questions as one batch on the CPU, with a passage without an answer for each, if any.

    `joint_fraction` of them, at least one, are read jointly with their passages.
    """
    suffix = np.array(encoder.suffix_ids, dtype=np.int64)
    masks = np.full(encoder.query_masks, encoder.mask_id, dtype=np.int64)
    asked = [np.concatenate([each.before, masks, each.after]) for each in questions]  # i64 [.] each
    right: list[Titled] = [(each.title, each.block) for each in questions]
    wrong_blocks = [(number, passage) for number, passage in enumerate(wrong) if passage is not None]
    joint_count = max(1, round(joint_fraction * len(questions)))
    read = [each for each in [*enumerate(right), *wrong_blocks] if each[0] < joint_count]
    # as texts are read with blocks by an index: question, suffix, title and block (npm/retrieval/blocks.py)
    rows = [(np.concatenate([asked[number], suffix, title]), passage) for number, (title, passage) in read]
    rows += right + [passage for _, passage in wrong_blocks] + [(ids, suffix[:0]) for ids in asked]
    rows += [(np.concatenate([each.before, each.after]), suffix[:0]) for each in questions]
    offsets = np.cumsum([0, *(len(head) + len(passage) for head, passage in rows)])  # i64 [R + 1]
    around = {"prefix_ids": tuple(encoder.prefix_ids), "suffix_ids": tuple(encoder.suffix_ids)}
    token_ids = np.concatenate([ids for pair in rows for ids in pair])  # i64 [.] of all rows
    input_ids, attention_mask = padded_rows(token_ids, offsets, pad_id=encoder.pad_id, **around)
    marks = np.concatenate([np.repeat([0, 1], [len(head), len(passage)]) for head, passage in rows])  # i64 [.]
    unmarked = {name: (0,) * len(ids) for name, ids in around.items()}
    is_block, _ = padded_rows(marks, offsets, pad_id=0, **unmarked)  # i64 [R, L]
    start_slots = torch.tensor([len(encoder.prefix_ids) + len(each.before) for each in questions])  # i64 [n]
    phrases = [(number, answer, True) for number, each in enumerate(questions) for answer in each.answers]
    phrases += [(number, rival, False) for number, each in enumerate(questions) for rival in each.rivals]
    phrase_ids = torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(phrase) for _, phrase, _ in phrases], batch_first=True, padding_value=-1
    )  # i64 [a, longest]
    return QuestionBatch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        block_tokens=is_block.bool(),
        start_slots=start_slots,
        end_slots=start_slots + encoder.query_masks - 1,
        joint_count=joint_count,
        readers=torch.tensor([number for number, _ in read]),
        wrong_questions=torch.tensor([number for number, _ in wrong_blocks], dtype=torch.int64),
        phrase_token_ids=phrase_ids,
        phrase_questions=torch.tensor([number for number, _, _ in phrases]),
        is_answer=torch.tensor([is_answer for _, _, is_answer in phrases]),
    )


def passage_batch(reads: Sequence[tuple[Question, np.ndarray, np.ndarray]], encoder: Encoder) -> PassageBatch:
    """Questions, each read with the title and the passage given for it, as one batch on the CPU, sorted by length.

    The edges of a passage are those of the answers' occurrences in it.
    """
    prefix, suffix = (np.array(ids, dtype=np.int64) for ids in (encoder.prefix_ids, encoder.suffix_ids))
    masks = np.full(encoder.query_masks, encoder.mask_id, dtype=np.int64)
    rows = []
    for question, title, passage in reads:
        head = np.concatenate([prefix, question.before, masks, question.after, suffix, title])  # i64 [.]
        slots = len(prefix) + len(question.before) + np.array([0, len(masks) - 1])  # i64 [2]
        rows.append((np.concatenate([head, passage, suffix]), slots, len(head), len(passage), question.answers))
    rows.sort(key=lambda row: len(row[0]))  # rows of one length attend together
    lengths = [len(ids) for ids, *_ in rows]
    firsts = np.cumsum([0, *lengths[:-1]])  # i64 [B]
    is_key = np.zeros(sum(lengths), dtype=bool)  # [N]
    edges = np.zeros((2, sum(lengths)), dtype=bool)  # [2, N]
    is_key[firsts] = True
    for first, (ids, _, start, size, answers) in zip(firsts.tolist(), rows, strict=True):
        is_key[first + start : first + start + size] = True
        found = [(place, place + len(each) - 1) for each in answers for place in occurrences(each, ids[start:][:size])]
        for side in (0, 1):
            edges[side, [first + start + bounds[side] for bounds in found] or [first]] = True
    return PassageBatch(
        input_ids=torch.from_numpy(np.concatenate([ids for ids, *_ in rows])),
        lengths=tuple(lengths),
        mask_slots=torch.from_numpy(np.array([slots for _, slots, *_ in rows]) + firsts[:, None]),
        is_key=torch.from_numpy(is_key),
        edges=torch.from_numpy(edges),
    )


@dataclass
class QuestionSource:
    """Rows drawn at random for each micro-step, all of a global batch different; each rank takes its part."""

    table: QuestionTable
    encoder: Encoder
    settings: SupervisionSettings
    seed: int
    rank: int = 0
    world_size: int = 1
    view: str = QUESTIONS
    """QUESTIONS or PASSAGES."""

    def __post_init__(self) -> None:
        """Raises CorpusError if there are too few rows for one micro-step."""
        self.questions_per_step = self.settings.questions_per_device_batch * self.world_size
        self.micro_steps_per_epoch = len(self.table) // self.questions_per_step
        if self.micro_steps_per_epoch == 0:
            raise CorpusError(
                f"questions must be at least {self.questions_per_step} for a batch, got {len(self.table)}: give more,"
                " or reduce supervision.questions_per_device_batch"
            )

    def views(self, micro_step: int) -> dict[str, View]:
        """This rank's questions at `micro_step`."""
        rng = np.random.default_rng([self.seed, micro_step, VIEW_NUMBERS[self.view]])
        size = self.settings.questions_per_device_batch
        rows = rng.choice(
            len(self.table), self.questions_per_step, replace=False, p=self.table.probabilities
        )  # i64 [N]
        # whether a passage without an answer is read, and which
        draws = rng.random((self.questions_per_step, 2))  # f64 [N, 2]
        own = slice(self.rank * size, (self.rank + 1) * size)
        chosen = [(row, self.table[row]) for row in rows[own].tolist()]
        is_wrong = (draws[own, 0] < self.settings.negative_fraction).tolist()  # [n]
        which = draws[own, 1].tolist()  # [n]
        wrong_passages = [
            self.wrong_passage(row, question, draw) if wrong else None
            for (row, question), wrong, draw in zip(chosen, is_wrong, which, strict=True)
        ]
        questions = [question for _, question in chosen]
        if self.view == PASSAGES:
            reads = [
                (each, *(passage or (each.title, each.block)))
                for each, passage in zip(questions, wrong_passages, strict=True)
            ]
            return {PASSAGES: passage_batch(reads, self.encoder)}
        joint = self.settings.joint_fraction
        return {QUESTIONS: question_batch(questions, wrong_passages, self.encoder, joint_fraction=joint)}

    def wrong_passage(self, row: int, question: Question, draw: float) -> Titled | None:
        """A passage without an answer: one of the row's by `draw` from [0, 1), else a similar one.

        That is, of some rows near to this one in its file and some at random, the passage that shares the rarest tokens
        with the question; None where all of them have an answer.
        """
        if given := question.without_answer:
            return given[int(draw * len(given))]
        rng = np.random.default_rng([row, int(draw * (1 << 32))])
        same_file = np.flatnonzero(self.table.files == self.table.files[row])  # i64 [rows of the file]
        place = int(np.searchsorted(same_file, row))
        near = same_file[max(0, place - NEAR_ROWS) : place + NEAR_ROWS]  # i64 [.]
        candidates = np.append(near, rng.choice(same_file, NEAR_ROWS))  # i64 [c]
        asked = np.unique(np.append(question.before, question.after))  # i64 [.]
        weights = self.table.token_weights[asked]  # f64 [.]
        best: Titled | None = None
        most = -1.0
        for number in np.unique(candidates).tolist():
            other = self.table[number]
            shared = float(weights[np.isin(asked, other.block)].sum())
            if shared > most and all(first_occurrence(each, other.block) is None for each in question.answers):
                best, most = (other.title, other.block), shared
        return best


class AlternatingSource:
    """Questions at an even fraction of the micro-steps, another source at the others."""

    def __init__(self, questions: BatchSource, other: BatchSource, *, question_fraction: float) -> None:
        self.questions, self.other, self.question_fraction = questions, other, question_fraction
        steps = (
            questions.micro_steps_per_epoch / question_fraction,
            other.micro_steps_per_epoch / (1 - question_fraction),
        )
        self.micro_steps_per_epoch = int(max(steps))

    def views(self, micro_step: int) -> dict[str, View]:
        """The views of the source at this micro-step; each source counts only its own micro-steps."""
        shown = int(micro_step * self.question_fraction)  # questions before this micro-step
        if int((micro_step + 1) * self.question_fraction) > shown:
            return self.questions.views(shown)
        return self.other.views(micro_step - shown)


def question_source(
    files: Sequence[str],
    encoder: Encoder,
    settings: SupervisionSettings,
    *,
    view: str,
    title_tokens: int,
    seed: int,
) -> tuple[QuestionSource, str]:
    """This rank's part of the source of `files`, and a note about it. Raises as `question_table` does."""
    special_tokens = len(encoder.prefix_ids) + 2 * len(encoder.suffix_ids) + encoder.query_masks
    longest = settings.max_block_tokens + settings.max_question_tokens + title_tokens + 1 + special_tokens
    if longest > encoder.max_input_tokens:
        raise SettingError(
            f"a question and a passage may have {longest} tokens with title and special tokens, and the encoder takes"
            f" {encoder.max_input_tokens}: reduce supervision.max_block_tokens or supervision.max_question_tokens"
        )
    table = question_table(files, encoder.tokenizer, settings, title_tokens=title_tokens)
    source = QuestionSource(table, encoder, settings, seed, rank(), world_size(), view)
    note = f"{len(table):,} questions of {len(table.token_ids):,} tokens, {source.questions_per_step} a micro-step"
    return source, "; ".join([note, *(f"{count:,} rows skipped {why}" for why, count in table.skipped.items())])

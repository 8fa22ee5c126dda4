"""A frozen reader's distribution over the tokens of passages, for vectors that never see a question and its passage.

For a question read with a passage, with start query q, the passage's tokens R and the first token c of the pass,

    p(k) = softmax_{k ∈ R} s(q, k)
    here = log Σ_{k ∈ R} exp s(q, k) − s(q, c)

where s is the reader's scaled inner product; `here`, the log-odds of the passage having an answer, is the mean of those
of start and end. Passes are put together from a batch's questions and passages, which the batch itself need not read.

Shapes: n questions, w wrong passages, L padded length, t tokens of one passage, T tokens of the n right passages, N
tokens of all passes, d dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from npm.core.errors import SettingError
from npm.masking.batches import QuestionBatch
from npm.models.encoder import Encoder
from npm.models.settings import Precision
from npm.objectives.block_teacher import FrozenModel, check_alike


class ReaderScores(NamedTuple):
    """Judgement of a reader on the passages of a batch."""

    log_probabilities: torch.Tensor  # f32 [2, T], of beginning and of ending the answer, right passages only
    here: torch.Tensor  # f32 [n + w], log-odds of each passage having an answer


class ReaderTeacher:
    """A reader that was trained with `objective.reader_weight`, and cuts texts as the encoder that it teaches."""

    def __init__(self, encoder: Encoder, reader: Encoder) -> None:
        """Raises SettingError unless the reader has the tokenizer, masks and input length of the encoder."""
        setting = "objective.span_supervision.reader"
        check_alike(encoder, reader, "tokenizer_fingerprint", "query_masks", "max_input_tokens", setting=setting)
        if not reader.reads_jointly:
            raise SettingError(f"{setting} must be a reader of experiment=reader, got {reader.name}")
        self.fingerprint = reader.fingerprint
        self._prefix_tokens = len(reader.prefix_ids)
        self._scale = reader.similarity_scale
        self._model = FrozenModel(reader.model)

    def scores(self, batch: QuestionBatch) -> ReaderScores:
        """Scores of each question with its right passage, and with its wrong one where the batch has one."""
        count, first_block, prefix = len(batch.start_slots), batch.block_rows.start, self._prefix_tokens
        questions = [*range(count), *batch.wrong_questions.tolist()]
        asked_rows = [batch.block_rows.stop + question for question in questions]
        sizes = batch.attention_mask.sum(1).tolist()
        parts, lengths = [], []
        for number, asked in enumerate(asked_rows):
            block = first_block + number
            parts += [batch.input_ids[asked, : sizes[asked]], batch.input_ids[block, prefix : sizes[block]]]
            lengths.append(sizes[asked] + sizes[block] - prefix)
        states = self._model.packed_states(torch.cat(parts), lengths).float()  # f32 [N, d]
        log_probabilities, here = [], []
        for number, (question, own) in enumerate(zip(questions, states.split(lengths), strict=True)):
            slots = torch.stack([batch.start_slots[question], batch.end_slots[question]])  # i64 [2]
            is_key = batch.block_tokens[first_block + number, prefix : sizes[first_block + number]]  # bool [.]
            with torch.autocast(states.device.type, enabled=False):
                keys = own[sizes[asked_rows[number]] :][is_key]  # f32 [t, d]
                logits = own[slots] @ torch.cat([own[:1], keys]).T * self._scale  # f32 [2, 1 + t]
            here.append((logits[:, 1:].logsumexp(1) - logits[:, 0]).mean())
            if number < count:
                log_probabilities.append(logits[:, 1:].log_softmax(1))  # f32 [2, t]
        return ReaderScores(torch.cat(log_probabilities, dim=1), torch.stack(here))


def load_reader_teacher(name: str, encoder: Encoder) -> ReaderTeacher | None:
    """The reader in a folder or of a name; None without one."""
    if not name:
        return None
    return ReaderTeacher(encoder, Encoder.load(name, device=str(encoder.device), dtype=Precision.float32))

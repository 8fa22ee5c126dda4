"""Frozen teachers: of block vectors, of tokens where the student sees masks, and of readers' judgements.

Block vectors like those of a teacher, so that phrases are learned without losing the space of sentences:

    L = (1/B) Σ_b (1 − cos(p(S(x_b)), p(T(x_b)))) + (w/B) Σ_b mean_t (1 − cos(S(x_b)_t, T(x_b)_t))

with x_b the clean copies of a batch, S the encoder that is trained, T the teacher, p what pools the token vectors of a
sequence: their mean, or the first of them; t its tokens, special ones and titles included, and w the weight that holds
each token vector near the teacher's (the features of Romero et al. 2015, arXiv 1412.6550, §2.2, of the last layer).

Contrast of tokens (TaCL, Su et al. 2022, arXiv 2111.04198, §2): the student sees a masked copy x̃ of a sequence x, the
teacher the clean one. A masked position i is to be nearer to the teacher's vector there than to its vectors at the
other positions of the same sequence:

    loss_i = −log ( exp(cos(S(x̃)_i, T(x)_i) / τ) / Σ_j exp(cos(S(x̃)_i, T(x)_j) / τ) ),

with the sum over all tokens of x, special ones included. Selected positions count whether a mask, a random token or
the token itself is there.

A frozen reader's distribution over the tokens of passages, for vectors that never see a question and its passage: for
a question read with a passage, with start query q, the passage's tokens R and the first token c of the pass,

    p(k) = softmax_{k ∈ R} s(q, k)
    here = log Σ_{k ∈ R} exp s(q, k) − s(q, c)

where s is the reader's scaled inner product; `here`, the log-odds of the passage having an answer, is the mean of those
of start and end. Passes are put together from a batch's questions and passages, which the batch itself need not read.

Shapes: B clean copies or sequences, L padded length, n masked positions; n questions, w wrong passages, t tokens of one
passage, T tokens of the n right passages, N tokens of all passes; d dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from npm.core.errors import SettingError
from npm.masking.batches import MaskedBatch, QuestionBatch
from npm.models.encoder import Encoder
from npm.models.sentences import Pooler, pool
from npm.models.settings import PoolerKind, Precision
from npm.objectives.combine import Term, classification_terms
from npm.objectives.encoded import EncodedBatch, Passes


def check_alike(encoder: Encoder, teacher: Encoder, *names: str, setting: str) -> None:
    """Raise SettingError, naming `setting`, unless a teacher has the same attributes `names` as the encoder."""
    for name in names:
        expected, got = getattr(encoder, name), getattr(teacher, name)
        if expected != got:
            raise SettingError(
                f"{setting} must have the {name.replace('_', ' ')} of {encoder.name}, {expected}, got {got}"
            )


class FrozenModel:
    """A frozen copy of a model in its current state, in evaluation mode; the original may continue training.

    It is held outside of `torch.nn.Module`: neither the optimizer nor a checkpoint of the objective contains
    it, and a resumed run makes it again from the encoder that it started from.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def token_vectors(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Last hidden states [B, L, d] of token ids i64 [B, L], on their device, all rows in one pass."""
        model = self.model.to(input_ids.device)
        vectors: torch.Tensor = model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return vectors  # [B, L, d]

    @torch.no_grad()
    def packed_states(self, input_ids: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Last hidden states [N, d] of concatenated rows, token ids i64 [N], on their device."""
        return Passes(self.model.to(input_ids.device)).packed_states(input_ids, lengths)


class BlockTeacher(nn.Module):
    """Term `block_teacher`, a sum over clean copies; it reads the pass that makes the keys of the phrase loss."""

    view = "phrases"
    reads_clean_copies = True

    def __init__(self, encoder: Encoder, teacher: Encoder, *, token_weight: float = 0.0) -> None:
        """`teacher` may be `encoder` itself, in its current state; `token_weight` is that of its token vectors.

        Raises SettingError unless both read the same tokens and their vectors are as long.
        """
        super().__init__()
        setting = "objective.block_teacher.encoder"
        check_alike(encoder, teacher, "tokenizer_fingerprint", "dimensions", setting=setting)
        self.pooler = teacher.block_pooler or PoolerKind.avg
        self.fingerprint = teacher.fingerprint
        self._token_weight = token_weight
        self._teacher = FrozenModel(teacher.model)

    @property
    def saved_pooler(self) -> Pooler:
        """The pooler that is saved with the encoder."""
        return Pooler(self.pooler, 0)

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Clean copies of this rank."""
        return {"block_teacher": len(batch.key_input_ids)}

    def forward(self, encoded: EncodedBatch) -> dict[str, Term]:
        """The term of one batch."""
        ids, mask = encoded.batch.key_input_ids, encoded.batch.key_attention_mask  # i64 [B, L] each
        distances = self.distances(ids, mask, encoded.clean_vectors)  # f32 [B]
        return {"block_teacher": Term(distances.sum(), len(distances))}

    def distances(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Distances f32 [B] of `states` [B, L, d] to those of the teacher for the same ids i64 [B, L].

        1 − cosine of the pooled vectors and, `token_weight` times, its mean over the tokens.
        """
        taught = self._teacher.token_vectors(input_ids, attention_mask).float()  # f32 [B, L, d]
        learned, wanted = (pool(self.pooler, each, attention_mask) for each in (states, taught))  # f32 [B, d] each
        distances = 1 - nn.functional.cosine_similarity(learned, wanted, dim=1)  # f32 [B]
        if not self._token_weight:
            return distances
        of_tokens = 1 - nn.functional.cosine_similarity(states, taught, dim=2)  # f32 [B, L]
        of_tokens = (of_tokens * attention_mask).sum(1) / attention_mask.sum(1)  # f32 [B]
        return distances + self._token_weight * of_tokens


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


class TokenContrast(nn.Module):
    """Terms `token_contrast` and, of weight 0, `token_contrast_top1`: positions whose nearest one is right."""

    view = "tokens"
    reads_clean_copies = False
    """The student need not run on the clean copies; the teacher does."""

    def __init__(self, teacher: nn.Module, *, temperature: float = 0.01) -> None:
        """The teacher is a frozen copy of `teacher` in its current state."""
        super().__init__()
        self.temperature = temperature
        self._teacher = FrozenModel(teacher)

    @property
    def teacher(self) -> nn.Module:
        """The frozen model."""
        return self._teacher.model

    def counts(self, batch: MaskedBatch) -> dict[str, int]:
        """Masked positions of this rank. Raises SettingError where masked and clean positions do not coincide."""
        shapes = tuple(batch.query_input_ids.shape), tuple(batch.key_input_ids.shape)
        if shapes[0] != shapes[1] or bool((batch.start_slots != batch.end_slots).any()):
            raise SettingError(
                "objective.token_contrast_weight needs each sequence masked once, in place and by single masks, got"
                f" copies of shape {shapes[0]} for {shapes[1]}: change corruption"
            )
        return dict.fromkeys(("token_contrast", "token_contrast_top1"), len(batch.span_sequences))

    def forward(self, encoded: EncodedBatch) -> dict[str, Term]:
        """The terms of one batch."""
        batch = encoded.batch
        students = encoded.query_vectors  # [B, L, d]
        teachers = self._teacher.token_vectors(batch.key_input_ids, batch.key_attention_mask)  # [B, L, d]
        with torch.autocast(students.device.type, enabled=False):  # a temperature of 0.01 needs float32
            students = nn.functional.normalize(students.float(), dim=-1)  # f32 [B, L, d]
            teachers = nn.functional.normalize(teachers.float(), dim=-1)  # f32 [B, L, d]
            cosines = torch.bmm(students, teachers.transpose(1, 2))  # f32 [B, L, L]
            logits = cosines[batch.span_sequences, batch.start_slots] / self.temperature  # f32 [n, L]
        compared = batch.key_attention_mask[batch.span_sequences].bool()  # bool [n, L]
        logits = logits.masked_fill(~compared, -torch.inf)
        return classification_terms("token_contrast", logits, batch.start_slots)

"""Questions with known answers: the phrase of the right block, and the right block itself.

For n questions with start queries q_i of the question alone and q_i' of the question read with its block, with K_i the
keys of the block's tokens in the block's own pass and K_i' those in the joint pass, S⁺_i the tokens that begin an
occurrence of an answer of i, c the first token of the joint pass, s(a, b) = scale × a·b, v(·) pooled vectors, and w_ik
the weight of rivals where k ∉ S⁺_i begins a phrase that could be taken for an answer of i, else 1:

    answer_start  −log Σ_{k ∈ K_i' ∩ S⁺_i} exp s(q_i', k) + log Σ_{k ∈ K_i' ∪ {c}} w_ik exp s(q_i', k)
    absent        the same over a passage without an answer, where c is the only positive
    query_alone   −log Σ_{k ∈ K_i ∩ S⁺_i} exp s(q_i, k) + log Σ_{k ∈ K_i ∪ ⋃_j (K_j ∖ S⁺_i)} exp s(q_i, k)
    query_read    the same with q_i'
    rank          KL(t_i ‖ softmax_j ρ cos(v(question i), v(block j))) over i and the blocks j without an answer of i
    teacher       1 − cos(v(block i), v_teacher(block i)), as in `npm.objectives.block_teacher`
    distill       KL(p_i ‖ softmax_k s(q_i, k)) over the keys of `query_alone`

The blocks j are those of all questions, and the wrong block that some have. p_i is a distribution over K_i only, so
that the tokens of other blocks are taught to have none: the reader's (`ReaderTeacher`) or, without a reader,
softmax_{k ∈ K_i'} s(q_i', k), without gradient. t_i is all on i or, with a reader, the softmax of `here` over i
and its wrong block; other blocks would cost a pass each, and hardly any of them could hold an answer.

Each term is a mean over questions: `answer_start`, `answer_end`, `absent`, `query_read` and the self-taught `distill`
over the k that are read jointly, the others over all. `absent`, `query_alone`, `query_read` and `distill` are also
means over start and end, and `answer_end` is `answer_start` with end queries and last tokens. Joint reading is that of
`npm.objectives.reading`; rivals are the other names or numbers of the block (Lee et al. 2021, arXiv 2012.12624, §3.2
has both `query_alone` with in-batch negatives and, over one passage, `distill`, its equation 9).

Shapes: n questions of this rank, k that are read jointly, r their joint passes, N blocks of all ranks, w wrong blocks,
a answers and rivals, T tokens of the joint passes of this rank with their first tokens, K tokens of the blocks of all
ranks, t tokens of one passage, R rows, L padded length, d dimensions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn

from npm.core.errors import SettingError
from npm.masking.batches import QuestionBatch
from npm.models.encoder import Encoder
from npm.models.sentences import Pooler, pool
from npm.models.settings import Precision
from npm.objectives.block_teacher import BlockTeacher, check_alike
from npm.objectives.combine import Term
from npm.objectives.encoded import EncodedRows, FrozenModel
from npm.objectives.nonparametric import Keys, choice_losses, phrase_edges
from npm.objectives.ranks import gather_rows, rank, row_counts
from npm.objectives.reading import reading_losses
from npm.objectives.sentence import contrast_logits
from npm.objectives.settings import SpanSupervisionSettings

SIDES = ("start", "end")
RANK_SCALE = 20.0
"""Factor of the cosines that rank passages."""
WITH_TOP1 = ("answer_start", "answer_end", "absent", "query_alone", "query_read", "rank")


class ReaderScores(NamedTuple):
    """Judgement of a reader on the passages of a batch."""

    log_probabilities: torch.Tensor  # f32 [2, T], of beginning and of ending the answer at T tokens of right passages
    here: torch.Tensor  # f32 [n + w], log-odds of each passage having an answer


class ReaderTeacher:
    """A frozen reader that was trained with `objective.reader_weight`, and cuts texts as the encoder that it teaches.

    For a question read with a passage, with start query q, the passage's tokens R and the first token c of the pass,

        p(k) = softmax_{k ∈ R} s(q, k)
        here = log Σ_{k ∈ R} exp s(q, k) − s(q, c)

    where s is the reader's scaled inner product; `here`, the log-odds of the passage having an answer, is the mean of
    those of start and end. Passes are put together from a batch's questions and passages, which the batch itself need
    not read.
    """

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
        states = self._model.packed_states(torch.cat(parts), lengths).float()  # f32 [tokens of all passes, d]
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


class SpanSupervision(nn.Module):
    """The terms of the module; `…_top1` of weight 0 counts right first choices."""

    view = "questions"
    reads_clean_copies = False

    def __init__(
        self,
        settings: SpanSupervisionSettings,
        scale: float,
        teacher: BlockTeacher,
        reader: ReaderTeacher | None = None,
    ) -> None:
        """`scale` is the similarity scale of the phrase loss."""
        super().__init__()
        self.settings, self._scale, self._teacher, self.reader = settings, scale, teacher, reader
        self.pooler = teacher.pooler
        self._weights = {"answer_start": 0.5, "answer_end": 0.5}
        self._weights |= {
            "absent": settings.absent_weight,
            "query_alone": settings.alone_weight,
            "query_read": settings.read_weight,
            "rank": settings.rank_weight,
            "teacher": settings.teacher_weight,
        }
        if settings.distill_weight:
            self._weights["distill"] = settings.distill_weight

    @property
    def saved_pooler(self) -> Pooler:
        """The pooler that is saved with the encoder."""
        return self._teacher.saved_pooler

    def counts(self, batch: QuestionBatch) -> dict[str, int]:
        """Questions of this rank that a term is over; for `absent` those that read a block without an answer."""
        names = (*self._weights, *(f"{name}_top1" for name in WITH_TOP1))
        counts = dict.fromkeys(names, len(batch.start_slots))
        joint = ["answer_start", "answer_end", "query_read", *["distill"] * (self.reader is None)]
        counts |= {name: batch.joint_count for name in names if name.removesuffix("_top1") in joint}
        absent = len(batch.readers) - batch.joint_count
        return counts | {name: absent for name in names if name.startswith("absent")}

    def forward(self, encoded: EncodedRows[QuestionBatch]) -> dict[str, Term]:
        """The terms of one batch; keys and blocks of all ranks are compared with, with gradient."""
        batch, states = encoded.batch, encoded.states().float()  # f32 [R, L, d]
        rows = slice(batch.block_rows.start, batch.block_rows.start + len(batch.start_slots))  # of the right blocks
        longest = int(batch.attention_mask[rows].sum(1).max())
        read = (
            each[rows, :longest] for each in (batch.input_ids, batch.attention_mask, states)
        )  # [n, longest, …] each
        teacher_distances = self._teacher.distances(*read)  # f32 [n]
        with torch.autocast(states.device.type, enabled=False):  # bfloat16 logits would be off by 0.1 and more
            sums = self._sums(batch, states) | {"teacher": teacher_distances.sum()}
        counts = self.counts(batch)
        return {name: Term(sums[name], count, self._weights.get(name, 0.0)) for name, count in counts.items()}

    def _sums(self, batch: QuestionBatch, states: torch.Tensor) -> dict[str, torch.Tensor]:
        """The sum of each term but `teacher` over the questions of this rank."""
        count, joint_count, reading_count = len(batch.start_slots), batch.joint_count, len(batch.readers)
        reading = slice(0, reading_count)
        is_key = batch.block_tokens[reading].clone()  # bool [r, L]
        is_key[:, 0] = True
        passes, places = is_key.nonzero(as_tuple=True)  # i64 [T] each
        joint = Keys(states[reading][is_key], batch.input_ids[reading][is_key], passes)
        own_pass = passes == torch.arange(reading_count, device=passes.device)[:, None]  # bool [r, T]
        answers, answer_questions = batch.is_answer, batch.phrase_questions[batch.is_answer]  # bool [a], i64 [answers]
        rival_questions = batch.phrase_questions[~answers]  # i64 [rivals]
        blocks, first_block, block_count = _block_keys(batch, states)
        numbers = first_block + torch.arange(
            count, device=passes.device
        )  # i64 [n], own blocks among those of all ranks
        own_block = blocks.sequences == numbers[:, None]  # bool [n, K]
        taught = None if self.reader is None else self.reader.scores(batch)
        joint_edges = phrase_edges(batch.phrase_token_ids, joint)  # bool [a, T] each
        block_edges = phrase_edges(batch.phrase_token_ids[answers], blocks)  # bool [answers, K] each
        alone_rows = torch.arange(count, device=passes.device) + batch.block_rows.stop  # i64 [n]
        nothing = states.new_zeros(())
        sums = dict.fromkeys(["absent", "query_alone", "query_read", "distill"], nothing)
        sums |= {f"{name}_top1": nothing for name in WITH_TOP1}
        for number, (side, slots, in_passes, in_blocks) in enumerate(
            zip(SIDES, (batch.start_slots, batch.end_slots), joint_edges, block_edges, strict=True)
        ):
            alone = states[alone_rows, slots]  # f32 [n, d]
            read = states[torch.arange(reading_count, device=passes.device), slots[batch.readers]]  # f32 [r, d]
            logits = read @ joint.vectors.T * self._scale  # f32 [r, T]
            wanted = _of_questions(in_passes[answers], answer_questions, count)[batch.readers]  # bool [r, T]
            rivals = _of_questions(in_passes[~answers], rival_questions, count)[batch.readers]  # bool [r, T]
            log_weights = (rivals & ~wanted) * math.log(self.settings.rival_weight)  # f32 [r, T]
            losses, right = reading_losses(logits, wanted, own_pass, places == 0, log_weights)  # [r] each
            sums[f"answer_{side}"], sums[f"answer_{side}_top1"] = losses[:joint_count].sum(), right[:joint_count].sum()
            sums["absent"] = sums["absent"] + losses[joint_count:].sum() / 2
            sums["absent_top1"] = sums["absent_top1"] + right[joint_count:].sum() / 2
            found = _of_questions(in_blocks, answer_questions, count)  # bool [n, K]
            # an occurrence in the block of another question may answer too: it is neither positive nor negative
            compared = own_block | ~found  # bool [n, K]
            for name, queries in (("query_alone", alone), ("query_read", read[:joint_count])):
                asked = slice(0, len(queries))
                to_blocks = queries @ blocks.vectors.T * self._scale  # f32 [n or k, K]
                positive = (found & own_block)[asked]  # bool [n or k, K]
                losses, right = choice_losses(to_blocks, positive, compared[asked])  # [n or k] each
                sums[name] = sums[name] + losses.sum() / 2
                sums[f"{name}_top1"] = sums[f"{name}_top1"] + right.sum() / 2
                if name == "query_alone" and self.settings.distill_weight:
                    if taught is None:
                        in_pass = own_pass[:joint_count] & (places > 0)  # bool [k, T]
                        asked, log_p = slice(0, joint_count), _log_shares(logits[:joint_count].detach(), in_pass)
                    else:
                        log_p = taught.log_probabilities[number]
                    divergence = _divergence(log_p, own_block[asked], to_blocks[asked], compared[asked])
                    sums["distill"] = sums["distill"] + divergence / 2
            if side == "start":
                here = None if taught is None else taught.here
                sums |= self._rank(batch, states, found, numbers, blocks.sequences, block_count, here)
        return sums

    def _rank(
        self,
        batch: QuestionBatch,
        states: torch.Tensor,
        found: torch.Tensor,
        numbers: torch.Tensor,
        block_of_key: torch.Tensor,
        block_count: int,
        here: torch.Tensor | None,
    ) -> dict[str, torch.Tensor]:
        """The sums of `rank`; `found` bool [n, K] are the occurrences of answers, whose blocks are not negatives.

        `here` f32 [n + w] are the log-odds of an answer in each block for its question.
        """
        pooled = pool(self.pooler, states, batch.attention_mask)  # f32 [R, d]
        count = len(numbers)
        logits = contrast_logits(pooled[-count:], pooled[batch.block_rows], temperature=1 / RANK_SCALE)  # f32 [n, N]
        has_answer = torch.zeros_like(logits).index_add_(1, block_of_key, found.to(logits)) > 0  # bool [n, N]
        own = torch.arange(block_count, device=numbers.device) == numbers[:, None]  # bool [n, N]
        odds = torch.where(own, 0.0, -torch.inf)  # f32 [n, N]
        if here is not None:
            questions = torch.cat([torch.arange(count, device=numbers.device), batch.wrong_questions])  # i64 [n + w]
            odds[questions, numbers[0] + torch.arange(len(here), device=numbers.device)] = here
        judged, compared = odds > -torch.inf, own | ~has_answer  # bool [n, N] each
        _, right = choice_losses(logits, own, compared)  # bool [n]
        loss = _divergence(_log_shares(odds, judged), judged, logits, compared)
        return {"rank": loss, "rank_top1": right.sum()}


def _block_keys(batch: QuestionBatch, states: torch.Tensor) -> tuple[Keys, int, int]:
    """The tokens of the blocks of all ranks, the index of this rank's first block, and the number of all blocks."""
    rows = batch.block_rows
    is_key = batch.block_tokens[rows]  # bool [n + w, L]
    block_counts = row_counts(is_key)
    first_block = sum(block_counts[: rank()])
    vectors, ids = states[rows][is_key], batch.input_ids[rows][is_key]  # f32 [k, d], i64 [k]
    counts = row_counts(ids)
    sequences = is_key.nonzero()[:, 0] + first_block  # i64 [k]
    keys = Keys(*(gather_rows(part, counts) for part in (vectors, ids, sequences)))  # of all ranks: K rows
    return keys, first_block, sum(block_counts)


def _of_questions(edges: torch.Tensor, questions: torch.Tensor, count: int) -> torch.Tensor:
    """Edges of any phrase of each question, bool [n, T], from those of each, bool [a, T], and its question i64 [a]."""
    sums = torch.zeros(count, edges.shape[1], device=edges.device)  # f32 [n, T]
    return sums.index_add_(0, questions, edges.float()) > 0


def _log_shares(logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Log-softmax of each row of logits f32 [n, K] over its chosen keys, bool [n, K]: f32 [chosen keys of all rows]."""
    return logits.masked_fill(~chosen, -torch.inf).log_softmax(1)[chosen]


def _divergence(
    log_p: torch.Tensor, taught: torch.Tensor, logits: torch.Tensor, compared: torch.Tensor
) -> torch.Tensor:
    """Σ_i KL(p_i ‖ softmax of the logits f32 [n, K] over the compared keys); p_i is 0 but at taught keys, bool [n, K].

    `log_p` f32 [taught keys of all rows] are in the order of the keys.
    """
    log_q = logits.masked_fill(~compared, -torch.inf).log_softmax(1)[taught]  # f32 [taught keys of all rows]
    return (log_p.exp() * (log_p - log_q)).sum()

"""Training batches: views of masked, corrupted or labelled text, as tensors that objectives read.

Shapes: B padded sequences, L padded length, n spans or targets.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    import torch


class View:
    """Part of a training batch that one or more objectives read: base of dataclasses with tensors."""

    __slots__ = ()
    attention_mask: torch.Tensor

    @property
    def token_count(self) -> int:
        """Tokens of training text that this rank sees in it, by default those of all rows, special ones included."""
        return int(self.attention_mask.sum())

    def to(self, device: torch.device | str) -> Self:
        """The same view with its tensors on `device`."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        moved = {name: value.to(device) for name, value in values.items() if hasattr(value, "to")}
        return replace(self, **moved)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class MaskedBatch(View):
    """The masked copies (queries), the clean copies (keys), and the positions of each span's masks.

    With mask pairs, `start_slots` and `end_slots` are the two masks of a span; where a span has one mask only they
    are equal. `span_token_ids` is padded with -1. Q is B, or a multiple of it where every sequence is shown several
    times with different masks; the clean copies are then there only once.
    """

    query_input_ids: torch.Tensor  # i64 [Q, Lq]
    query_attention_mask: torch.Tensor  # i64 [Q, Lq]
    key_input_ids: torch.Tensor  # i64 [B, Lk]
    key_attention_mask: torch.Tensor  # i64 [B, Lk]
    span_sequences: torch.Tensor  # i64 [n], which of the Q masked copies a span is in
    start_slots: torch.Tensor  # i64 [n], position in [0, Lq) of the start query
    end_slots: torch.Tensor  # i64 [n], position in [0, Lq) of the end query
    span_token_ids: torch.Tensor  # i64 [n, max_span_tokens], the masked tokens, padded with -1
    pad_id: int  # token id where attention is 0
    key_titles: torch.Tensor | None = None  # bool [B, Lk], tokens of titles, which are not keys; None: there are none
    key_identities: torch.Tensor | None = None  # i64 [B, Lk], what keys are compared by with spans; None: key_input_ids
    read_tokens: torch.Tensor | None = None  # bool [Q, Lq], of the blocks that masked copies read; None: none reads

    @property
    def token_count(self) -> int:
        """Tokens of the clean copies, special tokens included."""
        return int(self.key_attention_mask.sum())


@dataclass(frozen=True, slots=True)
class SentenceBatch(View):
    """Sentences to distinguish: N anchors, then their N positives, then their N hard negatives if there are any."""

    input_ids: torch.Tensor  # i64 [2N or 3N, L]
    attention_mask: torch.Tensor  # i64 [2N or 3N, L]
    pair_count: int  # N
    pad_id: int  # token id where attention is 0


@dataclass(frozen=True, slots=True)
class DenoisingBatch(View):
    """Corrupted texts and their targets, for an encoder-decoder."""

    input_ids: torch.Tensor  # i64 [B, Li]
    attention_mask: torch.Tensor  # i64 [B, Li]
    target_ids: torch.Tensor  # i64 [B, Lt], padded with -100
    denoisers: torch.Tensor  # i64 [B], number of the denoiser that corrupted each text
    text_token_count: int  # tokens of the texts before they were corrupted

    @property
    def token_count(self) -> int:
        """Tokens of the texts."""
        return self.text_token_count


@dataclass(frozen=True, slots=True)
class LabeledBatch(View):
    """Texts, pairs of texts, or sentences of words, and what each of them, or each word, is labeled with."""

    input_ids: torch.Tensor  # i64 [B, L]
    attention_mask: torch.Tensor  # i64 [B, L]
    token_type_ids: torch.Tensor | None  # i64 [B, L], 1 on the second text of a pair; None: the encoder has none
    rows: torch.Tensor  # i64 [n], the row of each target
    slots: torch.Tensor  # i64 [n], position in [0, L) of the vector that it is predicted from
    targets: torch.Tensor  # i64 [n] numbers of labels, or f32 [n] scores


@dataclass(frozen=True, slots=True)
class QuestionBatch(View):
    """Questions with one mask and the blocks that answer them, as R = r + 3n + w rows, in this order.

    The first k of n questions, each read with its block, and r - k of them read with their wrong block, in which no
    answer occurs; the n blocks, and w wrong ones; the n questions; the n questions without their mask.
    """

    input_ids: torch.Tensor  # i64 [R, L]
    attention_mask: torch.Tensor  # i64 [R, L]
    block_tokens: torch.Tensor  # bool [R, L], tokens of blocks, titles excluded: the keys
    start_slots: torch.Tensor  # i64 [n], position in [0, L) of the start query
    end_slots: torch.Tensor  # i64 [n], position in [0, L) of the end query
    joint_count: int  # k
    readers: torch.Tensor  # i64 [r], the question of each row that reads a block
    wrong_questions: torch.Tensor  # i64 [w], the question of each wrong block, ascending
    phrase_token_ids: torch.Tensor  # i64 [a, longest], padded with -1: answers, and rivals of answers
    phrase_questions: torch.Tensor  # i64 [a], the question of each phrase
    is_answer: torch.Tensor  # bool [a]

    @property
    def block_rows(self) -> slice:
        """The rows of the n + w blocks."""
        return slice(len(self.readers), len(self.input_ids) - 2 * len(self.start_slots))


@dataclass(frozen=True, slots=True)
class PassageBatch(View):
    """Questions, each read with one passage, as concatenated rows without padding: N tokens of B rows."""

    input_ids: torch.Tensor  # i64 [N]
    lengths: tuple[int, ...]  # of the B rows
    mask_slots: torch.Tensor  # i64 [B, 2], positions in [0, N) of the start and the end query
    is_key: torch.Tensor  # bool [N], tokens of the passage, title excluded, and the first token of each row
    edges: torch.Tensor  # bool [2, N], tokens that begin, and that end, an answer; the first token of a row without one

    @property
    def token_count(self) -> int:
        """Tokens of all rows, special tokens included."""
        return len(self.input_ids)


class BatchSource(Protocol):
    """Training text of one kind, as views of batches."""

    micro_steps_per_epoch: int
    """Micro-steps after which all of it was seen once."""

    def views(self, micro_step: int) -> dict[str, View]:
        """Its views on this rank at `micro_step`, by name."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """The views of one micro-step on one rank, by the name under which objectives ask for them."""

    views: dict[str, View]
    token_count: int
    """Tokens of training text in it; several views of the same text count once."""

    def to(self, device: torch.device | str) -> TrainingBatch:
        """The same batch on `device`."""
        return replace(self, views={name: view.to(device) for name, view in self.views.items()})

"""What a training batch shows of some groups of sequences: masked by a masker, rendered by a renderer.

A group's masks depend on the generator given for it alone, so they are the same whatever it shares a batch with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from npm.masking.contexts import Contexts, Question, draw_contexts, merge_contexts
from npm.masking.masker import Masker
from npm.masking.renderers import Renderer, merge_groups
from npm.types import MaskedBatch, Sequences, Spans, View

PHRASES, TOKENS, DENOISING, SENTENCES = "phrases", "tokens", "denoising", "sentences"
"""Names of the views; an objective says which of them it reads."""
VIEW_NUMBERS = {PHRASES: 0, TOKENS: 1, DENOISING: 2, SENTENCES: 3}
"""Different views of one group draw from different generators."""


def reads_blocks(views: set[str]) -> bool:
    """Whether any of `views` is made from blocks; masked tokens beside sentences alone are made from those."""
    return SENTENCES not in views or not views <= {SENTENCES, TOKENS}


class ViewMaker(Protocol):
    """Makes one view of the groups that share a device batch."""

    def view(self, groups: Sequence[Sequences], rngs: Sequence[np.random.Generator]) -> View:
        """The view, on the CPU; `rngs` holds one generator for each group."""


@dataclass(frozen=True, slots=True)
class PhraseViews:
    """Masked copies for the phrase loss, and the clean copies that they are compared with."""

    masker: Masker
    renderer: Renderer
    context_fraction: float = 0.0
    """Share of the masked copies that are questions, as in `draw_contexts`."""
    question: Question = Question.whole

    def view(self, groups: Sequence[Sequences], rngs: Sequence[np.random.Generator]) -> MaskedBatch:
        """The groups masked one by one and merged."""
        masked = [self._masked(group, rng) for group, rng in zip(groups, rngs, strict=True)]
        merged = merge_groups([(sequences, spans) for sequences, spans, _ in masked])
        if not self.context_fraction:
            return self.renderer.render(*merged)
        return self.renderer.render(*merged, merge_contexts([(sequences, own) for sequences, _, own in masked]))

    def _masked(self, sequences: Sequences, rng: np.random.Generator) -> tuple[Sequences, Spans, Contexts]:
        """A group, its masked spans, and which of its masked copies are questions."""
        spans = self.masker.select(sequences, rng)
        # a group with too little to mask still serves as keys
        spans = spans if spans is not None else Spans(np.zeros(0, np.int64), np.zeros(0, np.int64))
        contexts = draw_contexts(
            sequences, spans, context_fraction=self.context_fraction, question=self.question, rng=rng
        )
        return sequences, spans, contexts

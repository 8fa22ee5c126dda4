"""The parametric masked language model as a filler: the single token with the best logit that is a word.

Shapes: q texts, c tokens that may answer, V vocabulary, k phrases an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from npm.corpus.text import CONTRACTION_TAILS, STOP_WORDS, words_of
from npm.evaluation.parametric import EXAMPLES_PER_CALL, mask_takes_space, masked_logits, model_facts, word_tokens
from npm.retrieval.queries import encode_masks, query_notes
from npm.types import MASK_TEXT, Answer, Phrase

if TYPE_CHECKING:
    from npm.evaluation.examples import Example
    from npm.evaluation.results import Progress
    from npm.evaluation.task import Task
    from npm.models.encoder import Encoder
    from npm.models.masked_head import MaskedHead

PHRASES_PER_ANSWER = 5


@dataclass(frozen=True, slots=True)
class WordTokens:
    """The tokens of a vocabulary that are words by themselves, in one place of a text."""

    token_ids: np.ndarray  # i64 [c], ascending
    surfaces: tuple[str, ...]  # [c]
    places_of: dict[str, list[int]]  # case-folded word → where in the two above

    @classmethod
    def of(cls, encoder: Encoder, *, after_space: bool) -> WordTokens:
        """Tokens whose text, with or without a space before it, the tokenizer turns into that one token.

        It has a letter or digit and is no stop-word, as no phrase of an index is one.
        """
        special = set(encoder.tokenizer.all_special_ids)
        known = [token for token in range(len(encoder.tokenizer)) if token not in special]
        decoded = encoder.tokenizer.backend_tokenizer.decode_batch([[token] for token in known])
        written = [(token, text.strip()) for token, text in zip(known, decoded, strict=True)]
        written = [(token, text) for token, text in written if _may_answer(text)]
        again = word_tokens(encoder, [text for _, text in written], after_space=after_space)
        kept = [pair for pair, ids in zip(written, again, strict=True) if ids == [pair[0]]]
        places_of: dict[str, list[int]] = {}
        for place, (_, text) in enumerate(kept):
            for word in words_of(text)[:1]:
                places_of.setdefault(word, []).append(place)
        token_ids = np.array([token for token, _ in kept], dtype=np.int64)  # [c]
        return cls(token_ids, tuple(text for _, text in kept), places_of)


class ParametricPhrases:
    """Fills the mask with the likeliest tokens; their scores are probabilities over the whole vocabulary.

    Words of the question are no answers, as they are none of `PhraseFiller` by default.
    """

    def __init__(
        self, name: str, encoder: Encoder, head: MaskedHead, *, phrase_count: int = PHRASES_PER_ANSWER
    ) -> None:
        self.name = name
        self._encoder = encoder
        self._head = head
        self._phrase_count = phrase_count
        self._candidates = lru_cache(2)(lambda after_space: WordTokens.of(encoder, after_space=after_space))
        self._facts: dict[str, Any] = {}

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[Answer]:  # noqa: ARG002
        """One answer an example, its phrases best first."""
        answers: list[Answer] = []
        for first in range(0, len(examples), EXAMPLES_PER_CALL):
            answers += self.fill([example.text for example in examples[first : first + EXAMPLES_PER_CALL]])
            progress(len(answers), len(examples))
        self._facts = {
            **model_facts(self._encoder, self._head),
            "answers": "one token that is a word",
            "cut_texts": sum(answer.cut for answer in answers),
        }
        return answers

    def fill(self, texts: Sequence[str]) -> list[Answer]:
        """The answer to each of q texts that passed `check_query`."""
        masks = encode_masks(self._encoder, texts, masks_per_text=1)
        phrases: list[tuple[Phrase, ...]] = []
        for rows, logits in masked_logits(self._head, masks.vectors[:, 0]):  # f32 [rows, V]
            totals = logits.logsumexp(1)  # f32 [rows]
            for text, own, total in zip(texts[rows], logits, totals, strict=True):
                phrases.append(self._best(text, own - total))
        room = self._encoder.max_input_tokens
        return [
            Answer(text, found, cut, query_notes(text, cut=cut, max_input_tokens=room))
            for text, found, cut in zip(texts, phrases, masks.cut.tolist(), strict=True)
        ]

    def facts(self) -> dict[str, Any]:
        """What the answers of the last call depend on."""
        return self._facts

    def _best(self, text: str, log_probabilities: torch.Tensor) -> tuple[Phrase, ...]:
        """The best words for `text` by the log probabilities f32 [V] of all tokens."""
        candidates = self._candidates(mask_takes_space(self._encoder, text))
        scores = log_probabilities[torch.from_numpy(candidates.token_ids).to(log_probabilities.device)]  # f32 [c]
        asked = set(words_of(text.replace(MASK_TEXT, " ")))
        barred = [place for word in asked for place in candidates.places_of.get(word, ())]
        scores[barred] = -torch.inf
        found = scores.topk(min(self._phrase_count, len(scores) - len(barred)))
        return tuple(
            Phrase(candidates.surfaces[place], score, 0, ())
            for place, score in zip(found.indices.tolist(), found.values.double().exp().tolist(), strict=True)
        )


def _may_answer(text: str) -> bool:
    """Whether a token's text is a word and not a stop-word."""
    folded = text.casefold()
    is_word = any(char.isalnum() for char in text) and len(text.split()) == 1
    return is_word and folded not in STOP_WORDS and folded not in CONTRACTION_TAILS

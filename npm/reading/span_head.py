"""Any extractive reader of `transformers`: a linear head over the tokens of question and passage in one pass.

Its logits of the first token are those of "not here" (SQuAD 2; a model of SQuAD 1 never learned them). A statement is
asked with "what" in the place of its mask.

Shapes: T tokens of a passage as this reader cuts it, w windows, L tokens of a window.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from npm.core.types import MASK_TEXT
from npm.corpus.text import without_mask
from npm.models.loading import load_span_head
from npm.models.names import encoder_label, locate_encoder
from npm.models.settings import Precision
from npm.models.stored import StoredModel
from npm.reading.confidence import Confidence
from npm.reading.reader import Passage, TokenScores, merged, normalized

MAX_WINDOW_TOKENS, MAX_QUESTION_TOKENS = 384, 64
"""Tokens of a window with its question, and of the question, as in the code of Devlin et al. 2019."""


class SpanHeadReader(StoredModel):
    """A model of `AutoModelForQuestionAnswering` with its own tokenizer."""

    confidence: Confidence | None = None
    _tokenizing = threading.Lock()  # each call sets the truncation of the tokenizer that all threads use
    FINGERPRINTED_KEYS = ("model_type", "num_attention_heads", "hidden_act", "layer_norm_eps")

    @classmethod
    def load(cls, name: str, *, device: str = "auto", dtype: Precision | str = Precision.auto) -> SpanHeadReader:
        """Load from a folder or the hub. Raises EncoderError for a model without a head for answers."""
        return cls(*load_span_head(locate_encoder(name)), name=encoder_label(name)).placed(device, dtype)

    def read(self, pairs: Sequence[tuple[str, Passage]]) -> Iterator[list[TokenScores]]:
        """As `Reader.read`."""
        for text, passage in pairs:
            title = f"{passage.title}. " if passage.title else ""
            yield [self._scores(asked, title, passage.text) for asked in asked_questions(text)]

    def _scores(self, question: str, title: str, text: str) -> TokenScores:
        import torch

        tokenizer: Any = self.tokenizer
        longest = min(self.max_input_tokens - 2, MAX_WINDOW_TOKENS)  # RoBERTa's first position is 2
        with self._tokenizing:
            asked = tokenizer(question, add_special_tokens=False, truncation=True, max_length=MAX_QUESTION_TOKENS)
            room = longest - len(asked["input_ids"]) - tokenizer.num_special_tokens_to_add(pair=True)
            found = tokenizer(
                tokenizer.decode(asked["input_ids"]),
                title + text,
                truncation="only_second",
                max_length=longest,
                stride=max(0, room // 2),
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                padding=True,
                return_tensors="pt",
            )
        names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in found]
        with torch.inference_mode():
            output: Any = self.model(**{name: found[name].to(self.device) for name in names})
        logits = torch.stack([output.start_logits, output.end_logits]).double().cpu().numpy()  # f64 [2, w, L]
        offsets = found["offset_mapping"].numpy()  # i64 [w, L, 2]
        in_passage = np.array([[part == 1 for part in found.sequence_ids(n)] for n in range(len(offsets))])  # [w, L]
        in_passage &= offsets[..., 1] > offsets[..., 0]  # tokens of a character's second half have no width
        bounds, numbers = np.unique(offsets[in_passage], axis=0, return_inverse=True)  # i64 [T, 2], i64 [.]
        splits = np.cumsum(in_passage.sum(1))[:-1]
        parts = [(own, logits[:, n, in_passage[n]], logits[:, n, 0]) for n, own in enumerate(np.split(numbers, splits))]
        merged_logits, not_here = merged(parts, len(bounds))  # f64 [2, T], f64 [2]
        is_text = bounds[:, 0] >= len(title)  # bool [T]
        unknown = float((found["input_ids"].numpy()[in_passage] == tokenizer.unk_token_id).mean())
        return TokenScores(bounds[is_text] - len(title), *normalized(merged_logits[:, is_text], not_here), unknown)


def asked_questions(text: str) -> list[str]:
    """The question for each mask of a text.

    >>> asked_questions("Who governs Iceland? <mask>."), asked_questions("Iceland is governed by <mask>.")
    (['Who governs Iceland?'], ['Iceland is governed by what?'])
    """
    if (question := without_mask(text)) != text:
        return [question]
    pieces = text.split(MASK_TEXT)
    return [
        f"{'something'.join(pieces[:number])}what{'something'.join(pieces[number:])}".rstrip(" .!?") + "?"
        for number in range(1, len(pieces))
    ]

"""Reranking of the first phrases of an answer by the agreement of the filled text with the phrase's sentence.

A phrase v of score s replaces the mask, and the sentence of the text that holds it is compared with the
sentence x of the corpus in which v occurs best, by the cosine of their sentence vectors and by the similarity of v to
itself in the two sentences, which is that of its first tokens and that of its last:

    s' = s · e^(w (cos(text with v, x) + 0.02 (sim of first tokens + sim of last tokens)) + u name(v)) / Z,

Z such that the sum of the scores of the reranked phrases stays the same; name(v) is 1 for a phrase that is written as
names and numbers are, else 0. A phrase after them, which is not reranked, counts as one with the least evidence of
those that are, so that the first phrases are the same for any k.

The vectors of the mask know what kind of phrase is wanted, and each block has been read; they are worst at telling
which of the phrases of one block the sentence is about (docs/results/quality.md).

Shapes: n phrases, P phrases in sentences, S sequences, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from npm.core.types import MASK_TEXT, Phrase
from npm.corpus.text import STOP_WORDS, sentence_around
from npm.models.batches import encode_sequences
from npm.retrieval.settings import FillSettings, Retrieval

if TYPE_CHECKING:
    from npm.models.encoder import Encoder
    from npm.models.settings import PoolerKind

RERANKED_PHRASES = 10
TOKEN_SHARE = 0.02
"""Factor of the similarity of a phrase's ends, next to the cosine of its sentences, which is 1 at most.
Chosen with encoder-mini, of which the ends of one phrase in two sentences have a similarity of about 70 together."""
SHORT_WORD_CHARS = 3
"""Maximum letters of lower-case words within names: Miguel de Cervantes, Ludwig van Beethoven."""


@dataclass(frozen=True, slots=True)
class PhraseInSentence:
    """A phrase, and the sentence that it is part of."""

    sentence: str
    start: int  # in code points
    end: int

    def ends(self, offsets: np.ndarray) -> tuple[int, int]:
        """The phrase's first and last token among the sentence's T, with `offsets` i64 [T, 2] in code points."""
        first = np.searchsorted(offsets[:, 1], self.start, side="right")
        last = np.searchsorted(offsets[:, 0], self.end, side="left") - 1
        return int(first), int(max(first, last))  # the next token where the tokenizer skips the phrase


def rerank_pooler(settings: FillSettings, encoder: Encoder) -> PoolerKind | None:
    """Pooler of the sentences that phrases are reranked by; None: they are not reranked."""
    if settings.retrieval is not Retrieval.hybrid or settings.rerank_weight == 0:
        return None
    return encoder.block_pooler


def rerank(
    encoder: Encoder,
    pooler: PoolerKind,
    found: Sequence[tuple[str, tuple[Phrase, ...]]],
    settings: FillSettings,
) -> list[tuple[Phrase, ...]]:
    """The phrases `found` for each text with one mask, the first ones reranked, each with an occurrence at least."""
    firsts = [phrases[:RERANKED_PHRASES] for _, phrases in found]
    asked = [
        filled_sentence(text, phrase.phrase) for (text, _), own in zip(found, firsts, strict=True) for phrase in own
    ]
    stored = [own_sentence(phrase) for own in firsts for phrase in own]
    if not asked:
        return [phrases for _, phrases in found]
    whole = encoder.cut_to(None)
    pooled, ends = phrase_vectors(whole, pooler, asked + stored, tokens_per_batch=settings.tokens_per_batch)
    ours, theirs = slice(None, len(asked)), slice(len(asked), None)
    cosines = np.einsum("pd,pd->p", pooled[ours], pooled[theirs], dtype=np.float64)  # f64 [P]
    products = np.einsum("ped,ped->p", ends[ours], ends[theirs], dtype=np.float64)  # f64 [P], of both ends
    similarities = cosines + TOKEN_SHARE * (products * whole.similarity_scale)
    is_named = np.array([is_name(phrase.phrase) for own in firsts for phrase in own], dtype=float)  # f64 [P]
    evidence = settings.rerank_weight * similarities + settings.name_weight * is_named  # f64 [P]
    reranked: list[tuple[Phrase, ...]] = []
    for (_, phrases), own in zip(found, np.split(evidence, np.cumsum([len(first) for first in firsts])), strict=False):
        scores = reranked_scores(np.array([phrase.score for phrase in phrases]), own)  # f64 [all phrases]
        again = (replace(phrase, score=score) for phrase, score in zip(phrases, scores.tolist(), strict=True))
        reranked.append(tuple(sorted(again, key=lambda phrase: -phrase.score)))
    return reranked


def filled_sentence(text: str, phrase: str) -> PhraseInSentence:
    """The sentence of `text` that holds its one mask, with `phrase` in place of the mask.

    >>> filled_sentence("It is old. Iceland is governed from <mask>. Why?", "Reykjavík")
    PhraseInSentence(sentence='Iceland is governed from Reykjavík.', start=25, end=34)
    """
    start = text.index(MASK_TEXT)
    filled = text.replace(MASK_TEXT, phrase)
    first, stop = sentence_around(filled, start, start + len(phrase))
    return PhraseInSentence(filled[first:stop], start - first, start - first + len(phrase))


def own_sentence(phrase: Phrase) -> PhraseInSentence:
    """The sentence of the corpus in which a phrase occurs best."""
    before, inside, after = phrase.occurrences[0].parts
    return PhraseInSentence(before + inside + after, len(before), len(before + inside))


def is_name(phrase: str) -> bool:
    """Return True for a phrase written as a name or number: only stop-words and short words in lower case, not all.

    By its letters alone, so that a word that begins a sentence is one, and every phrase of most scripts without case.

    >>> [is_name(phrase) for phrase in ("Bank of America", "1 May 1912", "de Vries", "river", "tin", "Komodo dragon")]
    [True, True, True, False, False, False]
    """
    words = phrase.split()
    lower = [word for word in words if word[:1].islower()]
    return len(lower) < len(words) and all(word in STOP_WORDS or len(word) <= SHORT_WORD_CHARS for word in lower)


def reranked_scores(scores: np.ndarray, evidence: np.ndarray) -> np.ndarray:
    """s e^x / Z for scores f64 [m], which fall, and the evidence x f64 [n ≤ m] of the first; the sum of those n stays.

    The others' x is the least of the n. Logarithms are summed, since products may overflow or underflow.

    >>> import numpy as np
    >>> reranked_scores(np.array([0.4, 0.2]), np.log([1, 4])).round(6).tolist()
    [0.2, 0.4]
    >>> reranked_scores(np.array([0.4, 0.2, 0.1]), np.log([1, 4])).round(6).tolist()
    [0.2, 0.4, 0.05]
    """
    first = scores[: len(evidence)]  # f64 [n]
    if not first.any():
        return scores
    all_evidence = np.pad(evidence, (0, len(scores) - len(first)), constant_values=evidence.min())  # f64 [m]
    with np.errstate(divide="ignore"):  # a score of 0 stays one
        logs = np.log(scores) + all_evidence  # f64 [m]
    weights = np.exp(logs - logs[: len(first)].max())  # f64 [m]
    return first.sum() * weights / weights[: len(first)].sum()


def phrase_vectors(
    encoder: Encoder, pooler: PoolerKind, phrases: Sequence[PhraseInSentence], *, tokens_per_batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """For P phrases in sentences the sentence's vector f32 [P, d], of length 1, and those f32 [P, 2, d] of their ends.

    A sentence is encoded once for all of its phrases; one that is longer than the encoder takes as far
    as its phrase.
    """
    prefix = len(encoder.prefix_ids)
    room = encoder.max_input_tokens - prefix - len(encoder.suffix_ids)
    sentences = list(dict.fromkeys(phrase.sentence for phrase in phrases))
    encoded = encoder.tokenizer(
        sentences,
        add_special_tokens=False,
        split_special_tokens=True,
        return_offsets_mapping=True,
        return_attention_mask=False,
        verbose=False,
    )
    tokens = dict(zip(sentences, zip(encoded["input_ids"], encoded["offset_mapping"], strict=True), strict=True))
    numbers: dict[tuple[str, int], int] = {}  # of each sequence, by its sentence and the first token of that
    places: list[tuple[int, np.ndarray]] = []  # of each phrase: its sequence, and its ends i64 [2] there
    for phrase in phrases:
        ends = np.array(phrase.ends(np.array(tokens[phrase.sentence][1], dtype=np.int64).reshape(-1, 2)))  # i64 [2]
        cut = max(0, int(ends[1]) + 1 - room)
        places.append((numbers.setdefault((phrase.sentence, cut), len(numbers)), np.maximum(ends - cut, 0) + prefix))
    sequences = [
        np.array([*encoder.prefix_ids, *tokens[sentence][0][cut : cut + room], *encoder.suffix_ids], dtype=np.int64)
        for sentence, cut in numbers
    ]  # S of i64 [tokens]
    slots = [np.arange(len(sequence)) for sequence in sequences]
    found = encode_sequences(encoder, sequences, slots, pooler, tokens_per_batch=tokens_per_batch)
    assert found.pooled is not None, "a pooler was given"
    vectors = np.zeros((len(phrases), 2, encoder.dimensions), dtype=np.float32)  # [P, 2, d], 0s without any token
    for number, (sequence, ends) in enumerate(places):
        if len(own := found.vectors[sequence]):  # f32 [tokens, d]
            vectors[number] = own[np.minimum(ends, len(own) - 1)]
    return found.pooled[[sequence for sequence, _ in places]], vectors

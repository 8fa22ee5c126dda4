"""The parametric masked language model as a classifier: which label's words does it predict at the mask.

    log P(w | x) = Σ_j log P(w_j | x with n masks, at mask j)      a word w of n tokens
    log P(l | x) = log (1/|l|) Σ_{w ∈ l} P(w | x)                  a label l of |l| words

With calibration by the prompt, log P(l | x) − log P(l | x₀) where x₀ is the prompt without the example: the pointwise
mutual information of label and example in the domain of the prompt (Holtzman et al. 2021, arXiv 2104.08315, §3). With
calibration by the corpus, P(w | x) is divided by its geometric mean over prompts made of the reference corpus, and its
logarithm by the standard deviation there with `corpus_scaled`.

Open tasks are answered with the likeliest tokens that are words, or with one token per token of the gold answer.

Shapes: q texts, t vectors, W words, w words of n tokens, c tokens that may answer, d dimensions, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from npm.core.errors import SettingError
from npm.core.types import MASK_TEXT, Answer, Phrase, Progress
from npm.corpus.text import CONTRACTION_TAILS, STOP_WORDS, words_of
from npm.evaluation.methods.nonparametric import corpus_prompts, label_shares, scored_batches
from npm.evaluation.methods.occurrences import WordScores
from npm.evaluation.methods.registry import Method, Predictions, Resources, answered
from npm.evaluation.prompts import plain_token_ids
from npm.evaluation.results import model_facts
from npm.evaluation.tasks import BY_CORPUS, Calibration, Example, LabelPrediction, Task, Verbalizer, load_verbalizer
from npm.models.batches import encode_sequences, mask_strips, masked_inputs
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead
from npm.models.stored import StoredModel
from npm.retrieval.queries import encode_masks, query_notes

LOGITS_AT_ONCE = 1 << 23  # logits held at once, 32 MiB of float32; bounds memory for any number of texts
EXAMPLES_PER_CALL = 256
TOKENS_PER_BATCH = 8192
ANSWERS_KEPT = 32  # batches of texts whose word logs are cached: 8192 examples, 10 MB for 150 words
TOO_LONG = "the shortest gold answer has more tokens than the language model takes"
WordLogs = Callable[[tuple[str, ...], tuple[str, ...]], tuple[np.ndarray, np.ndarray]]
"""Maps q texts and W words to log P(word | text) f64 [q, W], and whether a text was cut, bool [q]."""


def prompted_labels(
    name: str,
    word_logs: WordLogs,
    *,
    facts: dict[str, Any],
    verbalizer: Verbalizer,
    calibration: Calibration = "none",
    prompts: Sequence[str] = (),
    examples_per_call: int = EXAMPLES_PER_CALL,
) -> Method:
    """Chooses the label whose words a language model finds likeliest in the mask's place: a closed method.

    `verbalizer` has the words of a task's labels, `facts` identify the model; calibration by the corpus needs its
    `prompts`. To predict raises SettingError for a word that the tokenizer cannot write.
    """
    words = tuple(word for own in verbalizer.words for word in own)
    edges = np.cumsum([0, *map(len, verbalizer.words)]).tolist()
    numbers = [np.arange(first, stop) for first, stop in pairwise(edges)]

    def answer(task: Task, examples: Sequence[Example], progress: Progress) -> Predictions:
        cut_counts: list[int] = []  # of the prompts that calibrate, and of each batch

        def word_scores(texts: Sequence[str]) -> WordScores:
            logs, cut = word_logs(tuple(texts), words)  # f64 [q, W], bool [q]
            cut_counts.append(int(cut.sum()))
            once = np.ones(len(words), dtype=np.int64)  # [W], no word is counted more often than another
            return replace(WordScores.empty(len(texts), once), log_sums=logs)

        batches = scored_batches(
            task,
            examples,
            word_scores,
            numbers,
            progress,
            mean="words",
            calibration=calibration,
            prompts=prompts,
            at_once=examples_per_call,
        )
        rows = [row for _, logs in batches for row in label_shares(logs).tolist()]
        found = {
            **facts,
            "verbalizer": verbalizer.facts,
            "calibration": calibration,
            "words_per_label": [len(own) for own in verbalizer.words],
            "cut_texts": sum(cut_counts[calibration != "none" :]),
        }
        return Predictions([LabelPrediction(tuple(row)) for row in rows], found)

    return Method(name, answer)


def closed_method(name: str, task: Task, resources: Resources) -> Method:
    """One of the `mlm` methods, which differ in calibration; `fuzzy` ones take the task's list of words."""
    encoder, head = resources.language_model
    scoring = resources.scoring(task)
    calibration: Calibration = "prompt" if name.endswith("-pmi") else "none"
    if name == "mlm-fuzzy-corpus":  # scaled where the retrieval methods are
        is_scaled = scoring.calibration == "corpus_scaled"
        calibration = "corpus_scaled" if is_scaled else "corpus"
    cached = lru_cache(ANSWERS_KEPT)(partial(word_log_probabilities, encoder, head))
    word_logs: WordLogs = resources.shared.setdefault("mlm", cached)  # methods ask for the same texts and words
    verbalizer = load_verbalizer(task, scoring.verbalizer if "fuzzy" in name else "label_words")
    check_words(word_logs, task, verbalizer, calibration)
    return prompted_labels(
        name,
        word_logs,
        facts=language_model_facts(encoder, head),
        verbalizer=verbalizer,
        calibration=calibration,
        prompts=corpus_prompts(task, resources.index(task)[0]) if calibration in BY_CORPUS else (),
    )


def check_words(word_logs: WordLogs, task: Task, verbalizer: Verbalizer, calibration: Calibration) -> None:
    """Fail fast on words or prompts outside the vocabulary. Raises UserError."""
    prompt = task.prompt.render(dict.fromkeys(task.prompt.fields, "x"))
    words = tuple(word for own in verbalizer.words for word in own)
    word_logs((task.prompt.empty() if calibration == "prompt" else prompt,), words)


def open_method(name: str, _: Task, resources: Resources) -> Method:
    """Method `mlm` or `mlm-n`."""
    phrases = (ParametricPhrases if name == "mlm" else GoldLengthPhrases)(*resources.language_model)
    return Method(name, phrases.predict)


def language_model_facts(encoder: Encoder, head: MaskedHead) -> dict[str, Any]:
    """Name and fingerprints of a masked language model, and the number format of its encoder."""
    digest = hashlib.sha256()
    for name, tensor in sorted(head.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return {"encoder": model_facts(encoder), "head": digest.hexdigest(), "dtype": encoder.dtype_name}


def word_log_probabilities(
    encoder: Encoder, head: MaskedHead, texts: Sequence[str], words: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """log P(word | text) f64 [q, W], and whether a text was cut for any of them, bool [q]."""
    sums = np.empty((len(texts), len(words)))  # f64 [q, W]
    cut = np.zeros(len(texts), dtype=bool)  # [q]
    spaced = np.array([mask_takes_space(encoder, text) for text in texts], dtype=bool)  # [q]
    for after_space in (False, True):
        chosen = np.flatnonzero(spaced == after_space)  # i64 [q of this kind]
        if not len(chosen):
            continue
        asked = [texts[number] for number in chosen.tolist()]
        tokens = word_tokens(encoder, words, after_space=after_space)
        for word, ids in zip(words, tokens, strict=True):
            check_word(encoder, word, ids)
        counts = np.array([len(ids) for ids in tokens])  # i64 [W]
        for count in np.unique(counts).tolist():
            places = np.flatnonzero(counts == count)  # i64 [w]
            pieces = np.array([tokens[place] for place in places], dtype=np.int64)  # i64 [w, n]
            masks = encode_masks(encoder, asked, masks_per_text=count)
            sums[np.ix_(chosen, places)] = _piece_sums(head, masks.vectors, pieces)
            cut[chosen] |= masks.cut
    return sums, cut


def mask_takes_space(encoder: Encoder, text: str) -> bool:
    """Return True if the mask of `text` represents a word and the space before it, as RoBERTa's does."""
    before = text.partition(MASK_TEXT)[0]
    return mask_strips(encoder)[0] and before[-1:].isspace()


def word_tokens(encoder: Encoder, words: Sequence[str], *, after_space: bool) -> list[list[int]]:
    """The token ids of each word as it would replace a mask."""
    return plain_token_ids(encoder, [f" {word}" if after_space else word for word in words])


def check_word(model: StoredModel, word: str, ids: Sequence[int]) -> None:
    """Raise SettingError unless the tokens `ids` of `word` are known ones."""
    unknown = model.tokenizer.unk_token_id  # that of GPT-2 is its end of a text, which no word has
    if not ids or (unknown in ids and unknown != model.tokenizer.eos_token_id):
        raise SettingError(
            f"{model.name} has unknown tokens in {word!r}: take it out of the verbalizer, or choose another model"
        )


def _piece_sums(head: MaskedHead, vectors: np.ndarray, pieces: np.ndarray) -> np.ndarray:
    """Σ_j log P(piece j at mask j), f64 [q, w], of vectors f32 [q, n, d] at masks and pieces i64 [w, n]."""
    sums = np.zeros((len(vectors), len(pieces)))  # f64 [q, w]
    for place in range(pieces.shape[1]):
        wanted = torch.from_numpy(pieces[:, place]).to(head.bias.device)  # i64 [w]
        for rows, logits in masked_logits(head, vectors[:, place]):
            chosen = logits[:, wanted] - logits.logsumexp(1, keepdim=True)  # f32 [rows, w]
            sums[rows] += chosen.double().cpu().numpy()
    return sums


def masked_logits(head: MaskedHead, vectors: np.ndarray) -> Iterator[tuple[slice, torch.Tensor]]:
    """Logits f32 [rows, V] of vectors f32 [t, d] at masks, some rows at a time."""
    rows_at_once = max(1, LOGITS_AT_ONCE // len(head.bias))
    for first in range(0, len(vectors), rows_at_once):
        rows = slice(first, min(first + rows_at_once, len(vectors)))
        with torch.inference_mode():
            logits = head(torch.from_numpy(vectors[rows]).to(head.bias.device))  # f32 [rows, V]
        yield rows, logits


PHRASES_PER_ANSWER = 5


def word_candidates(encoder: Encoder, *, after_space: bool) -> tuple[np.ndarray, list[str], dict[str, list[int]]]:
    """Tokens whose text, with or without a space before it, the tokenizer turns into that one token.

    It has a letter or digit and is no stop-word, as no phrase of an index is one. Their ids i64 [c], their texts, and
    where in both the tokens of a case-folded word are.
    """
    special = set(encoder.tokenizer.all_special_ids)
    known = [token for token in range(len(encoder.tokenizer)) if token not in special]
    decoded = encoder.tokenizer.backend_tokenizer.decode_batch([[token] for token in known])
    words = [
        (token, word)
        for token, word in zip(known, map(str.strip, decoded), strict=True)
        if any(char.isalnum() for char in word)
        and len(word.split()) == 1
        and word.casefold() not in STOP_WORDS | CONTRACTION_TAILS
    ]
    again = word_tokens(encoder, [word for _, word in words], after_space=after_space)
    kept = [pair for pair, ids in zip(words, again, strict=True) if ids == [pair[0]]]
    places_of: dict[str, list[int]] = {}
    for place, (_, word) in enumerate(kept):
        for plain in words_of(word)[:1]:
            places_of.setdefault(plain, []).append(place)
    return np.array([token for token, _ in kept], dtype=np.int64), [word for _, word in kept], places_of


class ParametricPhrases:
    """Fills the mask with the likeliest tokens; their scores are probabilities over the full vocabulary.

    Words of the question are no answers, as they are none of `PhraseFiller` by default.
    """

    def __init__(self, encoder: Encoder, head: MaskedHead, *, phrase_count: int = PHRASES_PER_ANSWER) -> None:
        self._encoder = encoder
        self._head = head
        self._phrase_count = phrase_count
        self._candidates = lru_cache(2)(partial(word_candidates, encoder))

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> Predictions:
        """The likeliest words of every example."""

        def fill(own: list[Example]) -> list[Answer]:
            return self.fill([example.text for example in own])

        facts = {"answers": "one token that is a word", **language_model_facts(self._encoder, self._head)}
        return _filled(task, examples, [(fill, [*range(len(examples))])], facts, progress)

    def fill(self, texts: Sequence[str]) -> list[Answer]:
        """The answer to each of q texts that passed `check_query`."""
        masks = encode_masks(self._encoder, texts, masks_per_text=1)
        phrases: list[tuple[Phrase, ...]] = []
        for rows, logits in masked_logits(self._head, masks.vectors[:, 0]):  # f32 [rows, V]
            totals = logits.logsumexp(1)  # f32 [rows]
            for text, own, total in zip(texts[rows], logits, totals, strict=True):
                phrases.append(self._best(text, own - total))
        return _answers(self._encoder, texts, phrases, masks.cut)

    def _best(self, text: str, log_probabilities: torch.Tensor) -> tuple[Phrase, ...]:
        """The best words for `text` by the log probabilities f32 [V] of all tokens."""
        token_ids, words, places_of = self._candidates(after_space=mask_takes_space(self._encoder, text))
        scores = log_probabilities[torch.from_numpy(token_ids).to(log_probabilities.device)]  # f32 [c]
        asked = set(words_of(text.replace(MASK_TEXT, " ")))
        barred = [place for word in asked for place in places_of.get(word, ())]
        scores[barred] = -torch.inf
        found = scores.topk(min(self._phrase_count, len(scores) - len(barred)))
        return tuple(
            Phrase(words[place], score, 0, ())
            for place, score in zip(found.indices.tolist(), found.values.double().exp().tolist(), strict=True)
        )


class GoldLengthPhrases:
    """Fills one mask per token of the shortest gold answer, from left to right: an upper bound for such models.

    No other method knows that number. The score of an answer is the probability of its tokens, each given those to its
    left.
    """

    def __init__(self, encoder: Encoder, head: MaskedHead) -> None:
        self._encoder = encoder
        self._head = head

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> Predictions:
        """The likeliest tokens of every example, as many as its shortest gold answer has."""
        encoder, by_count = self._encoder, dict[int, list[int]]()
        for number, example in enumerate(examples):
            space = mask_takes_space(encoder, example.text)
            tokens = word_tokens(encoder, [answer.strip() for answer in example.answers], after_space=space)
            by_count.setdefault(max(1, min(map(len, tokens))), []).append(number)
        room = encoder.max_input_tokens - len(encoder.prefix_ids) - len(encoder.suffix_ids)

        def fill(count: int, own: list[Example]) -> list[Answer]:
            texts = [example.text for example in own]
            return self.fill(texts, count) if count <= room else [Answer(each, (), notes=(TOO_LONG,)) for each in texts]

        answers = "as many tokens as the shortest gold answer has: an upper bound"
        facts = {"answers": answers, **language_model_facts(encoder, self._head)}
        parts = [(partial(fill, count), own) for count, own in sorted(by_count.items())]
        note = "it is told how many tokens the gold answer has: an upper bound"
        return replace(_filled(task, examples, parts, facts, progress), notes=[note])

    def fill(self, texts: Sequence[str], count: int) -> list[Answer]:
        """The answer of `count` tokens to each of q texts that passed `check_query`."""
        inputs = masked_inputs(self._encoder, texts, count)
        barred = torch.tensor(self._encoder.tokenizer.all_special_ids, device=self._head.bias.device)  # i64 [specials]
        scores = np.zeros(len(texts))  # f64 [q]
        for place in range(count):
            slots = [at + place for at in inputs.slots]
            vectors = encode_sequences(
                self._encoder, inputs.sequences, slots, tokens_per_batch=TOKENS_PER_BATCH
            ).vectors
            for rows, logits in masked_logits(self._head, np.concatenate(vectors)):  # f32 [rows, V]
                best = logits.log_softmax(1).index_fill(1, barred, -torch.inf).max(1)  # [rows] each
                scores[rows] += best.values.double().cpu().numpy()
                for number, token in enumerate(best.indices.tolist(), start=rows.start):
                    inputs.sequences[number][slots[number]] = token
        slotted = zip(inputs.sequences, inputs.slots, strict=True)
        filled = [ids[at[0] : at[0] + count].tolist() for ids, at in slotted]  # [q] of `count` tokens each
        lines = self._encoder.tokenizer.backend_tokenizer.decode_batch(filled)
        pairs = zip(lines, np.exp(scores).tolist(), strict=True)
        return _answers(
            self._encoder, texts, [(Phrase(line.strip(), score, 0, ()),) for line, score in pairs], inputs.cut
        )


Fill = Callable[[list[Example]], list[Answer]]


def _filled(
    task: Task,
    examples: Sequence[Example],
    parts: Sequence[tuple[Fill, list[int]]],
    facts: Mapping[str, Any],
    progress: Progress,
) -> Predictions:
    """The answers to all examples, each by the function of its part, with `facts` and the number of texts cut."""
    answers = answered(task, examples, parts, lambda fill, own: fill(own), progress, at_once=EXAMPLES_PER_CALL)
    return Predictions(answers, {**facts, "cut_texts": sum(answer.cut for answer in answers)})


def _answers(
    encoder: Encoder, texts: Sequence[str], phrases: Sequence[tuple[Phrase, ...]], cut: np.ndarray
) -> list[Answer]:
    """An answer of each text, with its notes; `cut` bool [q]."""
    room = encoder.max_input_tokens
    return [
        Answer(text, found, is_cut, query_notes(text, cut=is_cut, max_input_tokens=room))
        for text, found, is_cut in zip(texts, phrases, cut.tolist(), strict=True)
    ]

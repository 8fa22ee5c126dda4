"""Scores of labels from the evidence of their words, calibrated by the empty template or the reference corpus.

Shapes: q examples, W words of all labels, L labels, w words of one label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from npm.core.errors import SettingError, named
from npm.core.types import MASK_TEXT
from npm.corpus.text import sentence_bounds
from npm.evaluation.methods.occurrences import WordOccurrences, WordScores
from npm.evaluation.tasks import BY_CORPUS, Calibration, Example, LabelMean, Task, Verbalizer

if TYPE_CHECKING:
    from npm.core.types import Progress
    from npm.indexing.phrase_index import PhraseIndex


WORDS_NAMED = 12  # words that a message lists at most
VECTORLESS = (
    "function words, such as no, and marks have none unless the index is built with vectors.pruning=word_boundaries: "
    "choose other words"
)
PROMPT_COUNT = 256
SHORTEST_CHARS, LONGEST_CHARS = 30, 250  # key of a sentence that represents an example
SEED = 0


class LabelWords:
    """The words of each label with their occurrences in a corpus; words with equal occurrences count once."""

    def __init__(
        self,
        task: Task,
        verbalizer: Verbalizer,
        occurrences: WordOccurrences,
        settings_key: str = "zero_shot.closed",
    ) -> None:
        """`settings_key` is the group of the verb's settings for messages about a task's file.

        Raises SettingError if a label has no word with a vector, or two labels have words of the same tokens."""
        self.numbers: list[np.ndarray] = []  # indices of the words that count for each label, L times i64 [w]
        self.notes: list[str] = []
        self.counts: dict[str, dict[str, int]] = {}  # occurrences with vectors, by label and word
        words = occurrences.words
        place, also = "", ""
        if task.digest:
            place, also = f"task {task.name}, verbalizer {verbalizer.name}: ", f" or {settings_key}.verbalizer"
        counts, totals = occurrences.counts.tolist(), occurrences.total_counts.tolist()
        owners: dict[tuple[bytes, bytes] | int, tuple[str, int]] = {}  # occurrences → label and word they count for
        for name, own in zip((label.name for label in task.labels), verbalizer.words, strict=True):
            numbers, kept = [words.index(word) for word in own], []
            absent = [f"{words[number]} ({totals[number]})" for number in numbers if not counts[number]]
            shown = f"in the corpus, by their counts: {named(absent, most=WORDS_NAMED)}"
            if len(absent) == len(numbers):
                raise SettingError(
                    f"{place}no word of the label {name!r} has a vector {shown}; "
                    f"{VECTORLESS if any(totals[number] for number in numbers) else 'choose words that occur'}, in "
                    f"labels{also}",
                    code="label_unknown",
                )
            for number in numbers:
                here = slice(*occurrences.offsets[number : number + 2].tolist())
                places = occurrences.starts[here].tobytes(), occurrences.lengths[here].tobytes()
                owner, counted = owners.setdefault(places if counts[number] else number, (name, number))
                both = f"{words[counted]!r} and {words[number]!r}"
                if owner != name:
                    raise SettingError(f"{place}{both} of {owner!r} and {name!r} are the same tokens: take one out")
                if counted == number:
                    kept.append(number)
                else:
                    self.notes.append(f"{both} of the label {name!r} occur at the same positions: they count once")
            self.numbers.append(np.array(kept, dtype=np.int64))
            self.counts[name] = {words[number]: counts[number] for number in kept}
            if absent:
                self.notes.append(
                    f"{len(absent)} of the {len(numbers)} words of the label {name!r} have no vector {shown}"
                )


def label_logs(numbers: Sequence[np.ndarray], scores: WordScores, mean: LabelMean) -> np.ndarray:
    """log of the evidence of each label's words `numbers`, f64 [q, L]; -inf without any.

    With E_v the evidence of word v over its n_v occurrences: `sum` is Σ E_v, `occurrences` is Σ E_v / Σ n_v, `words`
    is the mean of E_v / n_v over the words that have occurrences.
    """
    columns = []
    for own in numbers:
        held = own[scores.counts[own] > 0]  # i64 [w]
        logs, counts = scores.log_sums[:, held], scores.counts[held]  # f64 [q, w], i64 [w]
        divisor = {"words": len(held), "occurrences": counts.sum(), "sum": 1}[mean]
        each = logs - np.log(counts) if mean == "words" else logs  # f64 [q, w]
        columns.append(np.logaddexp.reduce(each, axis=1) - np.log(divisor))
    return np.stack(columns, axis=1)  # [q, L]


def scored_batches(
    task: Task,
    examples: Sequence[Example],
    word_scores: Callable[[Sequence[str]], WordScores],
    numbers: Sequence[np.ndarray],
    progress: Progress,
    *,
    mean: LabelMean,
    calibration: Calibration,
    prompts: Sequence[str] = (),
    at_once: int,
    settings_key: str = "zero_shot.closed",
) -> Iterator[tuple[WordScores, np.ndarray]]:
    """Evidence of words, and calibrated logs of labels f64 [q, L], of `at_once` examples at a time.

    `word_scores` maps texts to the evidence of words; calibration by the corpus needs its `prompts`. Raises
    SettingError if a label has no evidence at the empty template that calibrates.
    """
    prior, at_prompts = np.zeros(len(numbers)), None  # f64 [L]
    if calibration == "prompt":
        (prior,) = label_logs(numbers, word_scores([task.prompt.empty()]), mean)  # f64 [L]
        if np.isneginf(prior).any():
            absent = ", ".join(task.labels[label].name for label in np.flatnonzero(np.isneginf(prior)))
            raise SettingError(
                f"{settings_key}.calibration: {task.name} has no evidence for {absent} at the empty template: "
                f"set {settings_key}.retrieval=exact, a larger k, or {settings_key}.calibration=none"
            )
    elif calibration in BY_CORPUS:
        at_prompts = word_scores(prompts).log_sums  # f64 [prompts, W]
    for first in range(0, len(examples), at_once):
        batch = examples[first : first + at_once]
        scores = word_scores([example.text for example in batch])
        if at_prompts is not None:
            held = scores.counts > 0  # bool [W]
            logs = scores.log_sums.copy()  # f64 [q, W]
            scaled = calibration == "corpus_scaled"
            relative = relative_logs(logs[:, held], at_prompts[:, held], scaled=scaled)  # f64 [q, held words]
            logs[:, held] = relative + np.log(scores.counts[held])
            scores = replace(scores, log_sums=logs)
        yield scores, label_logs(numbers, scores, mean) - prior
        progress(f"task {task.name}", first + len(batch), len(examples))


def label_shares(logs: np.ndarray) -> np.ndarray:
    """e^x over the sum of its row, f64 [q, L]; equal shares where no label has evidence.

    >>> label_shares(np.log([[1.0, 3.0]])).round(6).tolist()
    [[0.25, 0.75]]
    >>> label_shares(np.full((1, 2), -np.inf)).tolist()
    [[0.5, 0.5]]
    """
    tops = logs.max(axis=1, keepdims=True)  # f64 [q, 1]
    weights = np.where(np.isneginf(tops), 1.0, np.exp(logs - np.where(np.isneginf(tops), 0.0, tops)))  # f64 [q, L]
    return weights / weights.sum(axis=1, keepdims=True)


def corpus_prompts(task: Task, index: PhraseIndex, settings_key: str = "zero_shot.closed") -> list[str]:
    """`PROMPT_COUNT` prompts, fewer where the corpus has fewer: each field of the template is a sentence.

    The sentences of one prompt follow each other in one block, except those omitted as too short, too long or with a
    mask; blocks are drawn without replacement among those of documents that are not deleted. Raises SettingError if
    the index has no text, or no such sentences.
    """
    template = task.prompt
    live = np.arange(index.store.block_count) if index.live_blocks is None else np.flatnonzero(index.live_blocks)
    rng = np.random.default_rng(SEED)
    prompts: list[str] = []
    blocks = rng.permutation(live).tolist() if index.store.start_chars is not None else []  # i64 [live blocks]
    for block in blocks:
        if len(prompts) == PROMPT_COUNT:
            break
        text = index.store.block_text(block)
        found = (" ".join(text[first:last].split()) for first, last in sentence_bounds(text).tolist())
        sentences = [each for each in found if SHORTEST_CHARS <= len(each) <= LONGEST_CHARS and MASK_TEXT not in each]
        positions = len(sentences) - len(template.fields) + 1
        if positions >= 1:
            first = int(rng.integers(positions))
            prompts.append(template.render(dict(zip(template.fields, sentences[first:], strict=False)), answers=("x",)))
    if not prompts:
        is_file = settings_key and task.digest
        remedy = f"set {settings_key}.calibration to prompt or none" if is_file else "choose an index with such texts"
        raise SettingError(
            f"index={index.folder} has no sentences of {SHORTEST_CHARS} to {LONGEST_CHARS} characters to calibrate "
            f"{task.name} with: {remedy}"
        )
    return prompts


def relative_logs(logs: np.ndarray, at_prompts: np.ndarray, *, scaled: bool) -> np.ndarray:
    """Fit of each word to a text beyond its fit to texts in general, f64 [q, W], of `logs` f64 [q, W].

    The mean of `at_prompts` f64 [prompts, W] is subtracted from each column; `scaled` divides by the standard deviation
    too, where there is one.

    >>> relative_logs(np.array([[3.0, 1.0]]), np.array([[0.0, 1.0], [4.0, 1.0]]), scaled=True).tolist()
    [[0.5, 0.0]]
    """
    relative = logs - at_prompts.mean(axis=0)  # f64 [q, W]
    if not scaled:
        return relative
    spreads = at_prompts.std(axis=0)  # f64 [W]
    return relative / np.where(spreads > 0, spreads, 1.0)

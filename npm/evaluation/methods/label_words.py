"""Scores of labels from scores of their words, and their calibration by prompts made of the reference corpus.

Shapes: q examples, W words of all labels, L labels, w words of one label.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npm.core.errors import SettingError, named
from npm.corpus.text import sentence_bounds
from npm.evaluation.tasks import LabelMean

if TYPE_CHECKING:
    from npm.evaluation.methods.occurrences import WordOccurrences, WordScores
    from npm.evaluation.tasks import Task, Verbalizer
    from npm.indexing.phrase_index import PhraseIndex


PROMPT_COUNT = 256
SHORTEST_CHARS, LONGEST_CHARS = 30, 250
"""Of a sentence that stands for an example."""
SEED = 0
WORDS_NAMED = 12
"""Words that a message lists at most."""


class LabelWords:
    """The words of each label with their occurrences in a corpus; words with equal occurrences count once."""

    def __init__(self, task: Task, verbalizer: Verbalizer, occurrences: WordOccurrences) -> None:
        """Raises SettingError if a label has no word with a vector, or two labels have words of the same tokens."""
        self.words = occurrences.words
        self.names = [label.name for label in task.labels]
        self.numbers: list[np.ndarray] = []
        """Indices of the words that count for each label, L times i64 [w]."""
        self.notes: list[str] = []
        self.counts: dict[str, dict[str, int]] = {}
        """Occurrences with vectors, by label and word."""
        place = f"task {task.name}, verbalizer {verbalizer.name}"
        number_of = {word: number for number, word in enumerate(self.words)}
        counts, totals = occurrences.counts.tolist(), occurrences.total_counts.tolist()
        owners: dict[tuple[bytes, bytes] | int, tuple[str, int]] = {}  # occurrences → label and word they count for
        for name, words in zip(self.names, verbalizer.words, strict=True):
            numbers, kept = [number_of[word] for word in words], []
            shown = [f"{self.words[n]} ({totals[n]})" for n in numbers if not counts[n]]
            if len(shown) == len(numbers):
                raise SettingError(
                    f"{place}: no word of the label {name!r} has a vector in the corpus, by their counts: "
                    f"{named(shown, most=WORDS_NAMED)}; set zero_shot.closed.verbalizer"
                )
            for number in numbers:
                here = slice(*occurrences.offsets[number : number + 2].tolist())
                places = occurrences.starts[here].tobytes(), occurrences.lengths[here].tobytes()
                owner, counted = owners.setdefault(places if counts[number] else number, (name, number))
                if owner != name:
                    raise SettingError(
                        f"{place}: {self.words[counted]!r} of the label {owner!r} and "
                        f"{self.words[number]!r} of {name!r} are the same tokens: take one out"
                    )
                if counted == number:
                    kept.append(number)
                else:
                    same = f"{self.words[counted]!r} and {self.words[number]!r} of the label {name!r}"
                    self.notes.append(f"the words {same} occur at the same positions of the corpus: they count once")
            self.numbers.append(np.array(kept, dtype=np.int64))
            self.counts[name] = {self.words[number]: counts[number] for number in kept}
            if shown:
                missing = f"{len(shown)} of the {len(numbers)} words of the label {name!r} have no vector in the corpus"
                self.notes.append(f"{missing}, by their counts: {named(shown, most=WORDS_NAMED)}")

    def logs(self, scores: WordScores, mean: LabelMean) -> np.ndarray:
        """log of each label's evidence, f64 [q, L]; -inf without any.

        With E_v the evidence of word v over its n_v occurrences: `sum` is Σ E_v, `occurrences` is Σ E_v / Σ n_v,
        `words` is the mean of E_v / n_v over the words that have occurrences.
        """
        columns = []
        for numbers in self.numbers:
            held = numbers[scores.counts[numbers] > 0]  # i64 [w]
            logs = scores.log_sums[:, held]  # f64 [q, w]
            if mean is LabelMean.words:
                columns.append(np.logaddexp.reduce(logs - np.log(scores.counts[held]), axis=1) - np.log(len(held)))
            else:
                count = scores.counts[held].sum() if mean is LabelMean.occurrences else 1
                columns.append(np.logaddexp.reduce(logs, axis=1) - np.log(count))
        return np.stack(columns, axis=1)  # [q, L]


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


def corpus_prompts(task: Task, index: PhraseIndex) -> list[str]:
    """`PROMPT_COUNT` prompts, fewer where the corpus has fewer: each field of the template is a sentence.

    The sentences of one prompt follow each other in one block, but for those omitted as too short or too long; blocks
    are drawn without replacement among those of documents that are not deleted. Raises SettingError if the index has no
    text, or no such sentences.
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
        sentences = [sentence for sentence in found if SHORTEST_CHARS <= len(sentence) <= LONGEST_CHARS]
        positions = len(sentences) - len(template.fields) + 1
        if positions >= 1:
            first = int(rng.integers(positions))
            prompts.append(template.render(dict(zip(template.fields, sentences[first:], strict=False)), answers=("x",)))
    if not prompts:
        raise SettingError(
            f"index={index.folder} has no sentences of {SHORTEST_CHARS} to {LONGEST_CHARS} characters to calibrate "
            f"{task.name} with: set zero_shot.closed.calibration to prompt or none"
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

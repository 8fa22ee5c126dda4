"""Calibration of label words by prompts made of the reference corpus.

Shapes: q examples, W words of all labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npm.core.errors import SettingError
from npm.core.types import MASK_TEXT
from npm.corpus.text import sentence_bounds
from npm.evaluation.tasks import Task

if TYPE_CHECKING:
    from npm.indexing.phrase_index import PhraseIndex


PROMPT_COUNT = 256
SHORTEST_CHARS, LONGEST_CHARS = 30, 250
"""Key of a sentence that represents an example."""
SEED = 0


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

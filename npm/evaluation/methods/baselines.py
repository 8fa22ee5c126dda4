"""Baselines that read nothing: the largest class, a label or span at random, the most frequent answer.

Shapes: m candidate spans of one block, k blocks of an example.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from npm.core.types import MASK_TEXT, Answer, Phrase, Progress
from npm.corpus.text import words_of
from npm.evaluation.methods.occurrences import name_blocks
from npm.evaluation.methods.registry import NO_DOCUMENT, Method, Predictions, Resources, admissible_parts, answered
from npm.evaluation.metrics import open_answer
from npm.evaluation.results import filler_facts
from npm.evaluation.tasks import Example, LabelPrediction, Task
from npm.indexing.phrase_index import PhraseIndex
from npm.retrieval.answers import SurfaceReader, says_nothing_new
from npm.retrieval.filler import PhraseFiller

NO_BLOCK = "no block that may be looked in holds an answer"
ORACLE_EXAMPLES = 64  # examples whose answers are looked up in one pass over the tokens of the index


def closed_method(name: str, _: Task, resources: Resources) -> Method:
    """Method `majority` or `random`."""
    return majority_label() if name == "majority" else random_label(resources.settings.seed)


def open_method(name: str, task: Task, resources: Resources) -> Method:
    """Method `majority`, `random` or `oracle-blocks`."""
    if name == "majority":
        return frequent_answer(resources.examples(task, "dev"))
    filler = PhraseFiller(*resources.index(task), resources.fill_settings(task))
    return oracle_blocks(filler) if name == "oracle-blocks" else random_span(filler, resources.settings.seed)


def example_rng(seed: int, example: Example) -> np.random.Generator:
    """A generator for one example, independent of the other examples."""
    return np.random.default_rng([seed, zlib.crc32(example.id.encode())])


def majority_label() -> Method:
    """Always the most frequent label of the examples asked: a control for their shares."""

    def answer(task: Task, examples: Sequence[Example], _: Progress) -> Predictions:
        counts = np.bincount([example.label for example in examples], minlength=len(task.labels))  # i64 [labels]
        shares = tuple((counts / max(1, counts.sum())).tolist())
        facts = {"chosen_on": "the examples that are reported", "label_counts": counts.tolist()}
        return Predictions([LabelPrediction(shares)] * len(examples), facts)

    return Method("majority", answer)


def random_label(seed: int) -> Method:
    """A label at random, all equally likely, drawn by seed and id of the example."""

    def answer(task: Task, examples: Sequence[Example], _: Progress) -> Predictions:
        one_hot = np.eye(len(task.labels)).tolist()  # f64 [labels, labels]
        drawn = (example_rng(seed, example).integers(len(task.labels)) for example in examples)
        return Predictions([LabelPrediction(tuple(one_hot[label])) for label in drawn], {"seed": seed})

    return Method("random", answer)


def frequent_answer(development: Sequence[Example]) -> Method:
    """Always the answer that is right most often in the example's group of the development examples.

    The most frequent of all where the group is new. Answers are counted once an example, as normalized; of equally
    frequent ones the first in the file wins. Its score is the share of the examples for which it is right.
    """
    counts: dict[str, Counter[str]] = {}
    written: dict[str, str] = {}
    for example in development:
        for text in example.answers:
            written.setdefault(open_answer(text), text)
        counts.setdefault(example.group, Counter()).update(dict.fromkeys(map(open_answer, example.answers)).keys())
    sizes = Counter(example.group for example in development)

    def best(own: Counter[str], size: int) -> tuple[Phrase, ...]:
        return tuple(Phrase(written[plain], count / size, 0, ()) for plain, count in own.most_common(1))

    by_group = {group: best(own, sizes[group]) for group, own in counts.items()}
    overall = best(sum(counts.values(), Counter()), len(development))

    def answer(_: Task, examples: Sequence[Example], __: Progress) -> Predictions:
        facts = {"chosen_on": "the development examples", "development_examples": len(development)}
        return Predictions([Answer(example.text, by_group.get(example.group, overall)) for example in examples], facts)

    return Method("majority", answer)


def random_span(filler: PhraseFiller, seed: int) -> Method:
    """A random phrase of the block that BM25 ranks first: a control for passage retrieval.

    Spans are the possible answers of the filler in that block: both ends have a vector, and by default words of the
    question alone are no answer. All positions in the block are equally likely; one is drawn by seed and id, none where
    no block shares a word with the text.
    """
    index, finder = filler.index, filler.span_finder(filler.settings)
    reader = SurfaceReader(index.store)
    new_words_only = filler.settings.scoring.exclude_query_phrases

    def drawn(example: Example, allowed_blocks: np.ndarray | None) -> tuple[Phrase, ...]:
        best, _ = index.lexicon.best_blocks(example.text, 1, allowed=allowed_blocks)
        if not len(best):
            return ()
        edges = index.store.block_offsets[int(best[0]) :][:2]  # i64 [2]
        candidates = finder.find(index.rows.rows_within(edges[:1], edges[1:]), None)  # m spans
        texts = reader.texts(candidates.starts, candidates.lengths)
        asked = frozenset(words_of(example.text.replace(MASK_TEXT, " ")))
        allowed = [place for place, text in enumerate(texts) if not (new_words_only and says_nothing_new(text, asked))]
        if not allowed:
            return ()
        place = allowed[int(example_rng(seed, example).integers(len(allowed)))]
        chosen = candidates.where(np.array([place]))
        return (Phrase(texts[place], 1 / len(allowed), 1, reader.occurrences(chosen.starts, chosen.lengths)),)

    def answer(task: Task, examples: Sequence[Example], progress: Progress) -> Predictions:
        def of_part(part: PhraseIndex, own: list[Example]) -> list[Answer]:
            return [Answer(example.text, drawn(example, part.live_blocks)) for example in own]

        parts = admissible_parts(index, examples, filler.settings)
        answers = answered(task, examples, parts, of_part, progress)
        facts = {"seed": seed, **filler_facts(filler, replace(filler.settings, reader="none"))}
        return Predictions(answers, facts, are_shares=not filler.settings.scoring.reference)

    return Method("random", answer)


def oracle_blocks(filler: PhraseFiller) -> Method:
    """Fills the mask from blocks that contain an answer, by stored vectors alone: the upper bound of block retrieval.

    The remaining errors are phrases ranked wrongly, or answers missing from the corpus.
    """
    shown = max(1, filler.settings.occurrences)

    def of_part(part: PhraseIndex, own: list[Example]) -> list[Answer]:
        return [
            filler.fill(example.text, occurrences=shown, blocks=blocks)
            if len(blocks)
            else Answer(example.text, (), notes=(NO_BLOCK,))
            for example, blocks in zip(own, blocks_with_answer(filler, part, own), strict=True)
        ]

    def answer(task: Task, examples: Sequence[Example], progress: Progress) -> Predictions:
        parts = admissible_parts(filler.index, examples, filler.settings)
        answers = answered(task, examples, parts, of_part, progress, at_once=ORACLE_EXAMPLES)
        without_block = sum(bool({NO_BLOCK, NO_DOCUMENT} & {*each.notes}) for each in answers)
        facts = {**filler_facts(filler), "counts": {"without_block": without_block}}
        return Predictions(answers, facts, are_shares=not filler.settings.scoring.reference)

    return Method("oracle-blocks", answer)


def blocks_with_answer(filler: PhraseFiller, part: PhraseIndex, examples: Sequence[Example]) -> list[np.ndarray]:
    """The blocks i64 [k] of `part` that each example is answered from, ascending.

    Of those that hold an answer the fill.bm25_blocks best by BM25, then the first in the corpus of those that share no
    word with the text.
    """
    names = list(dict.fromkeys(name for example in examples for name in example.answers))
    held = dict(zip(names, name_blocks(part, filler.encoder, names), strict=True))
    chosen = []
    for example in examples:
        holding = np.unique(np.concatenate([held[name] for name in example.answers]))  # i64 [holding]
        scores = part.lexicon.scores(example.text)[holding]  # f32 [holding]
        best = np.argsort(-scores, kind="stable")[: filler.settings.bm25_blocks]  # i64 [k]
        chosen.append(np.sort(holding[best]))
    return chosen

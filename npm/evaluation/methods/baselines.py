"""Baselines that read nothing: the largest class, a label or span at random, the most frequent answer.

Shapes: m candidate spans of one block.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.errors import SettingError
from npm.core.types import MASK_TEXT, Answer, Phrase, Progress
from npm.corpus.text import words_of
from npm.evaluation.coverage import NO_DOCUMENT, admissible_parts, answered
from npm.evaluation.methods.occurrences import name_blocks
from npm.evaluation.metrics import open_answer
from npm.evaluation.results import filler_facts
from npm.evaluation.tasks import Example, LabelPrediction, Task
from npm.retrieval.answers import SurfaceReader, says_nothing_new
from npm.retrieval.filler import PhraseFiller

if TYPE_CHECKING:
    from npm.evaluation.methods.registry import Resources
    from npm.indexing.bm25 import BlockLexicon
    from npm.indexing.phrase_index import PhraseIndex


NO_BLOCK = "no block that may be looked in holds an answer"


def closed_method(
    name: str, _: Task, resources: Resources, __: Callable[[], Sequence[Example]]
) -> MajorityLabel | RandomLabel:
    """Method `majority` or `random`."""
    return MajorityLabel() if name == "majority" else RandomLabel(seed=resources.settings.seed)


def open_method(
    name: str, task: Task, resources: Resources, development: Callable[[], Sequence[Example]]
) -> FrequentAnswer | RandomSpanOfBestBlock | OracleBlocks:
    """Method `majority`, `random` or `oracle-blocks`."""
    if name == "majority":
        return FrequentAnswer(development())
    filler = PhraseFiller(*resources.index(task), resources.fill_settings(task))
    return OracleBlocks(filler) if name == "oracle-blocks" else RandomSpanOfBestBlock(filler, resources.settings.seed)


def lexicon_of(index: PhraseIndex) -> BlockLexicon:
    """The lexicon of an index. Raises SettingError if the index has no text."""
    if index.lexicon is None:
        raise SettingError(f"index={index.folder} has no text, which a baseline needs: leave this method out")
    return index.lexicon


class MajorityLabel:
    """Always the most frequent label of the examples asked: a control for their shares."""

    name = "majority"

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[LabelPrediction]:
        """The same prediction for all: the labels' shares among `examples`."""
        counts = np.bincount([example.label for example in examples], minlength=len(task.labels))  # i64 [labels]
        shares = tuple((counts / max(1, counts.sum())).tolist())
        self.facts = {"chosen_on": "the examples that are reported", "label_counts": counts.tolist()}
        progress(f"task {task.name}", len(examples), len(examples))
        return [LabelPrediction(shares)] * len(examples)


class RandomLabel:
    """A label at random, all equally likely."""

    name = "random"

    def __init__(self, *, seed: int) -> None:
        self.facts: dict[str, Any] = {"seed": seed}
        self._seed = seed

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[LabelPrediction]:
        """One label per example, drawn by seed and id, independent of the other examples."""
        one_hot = np.eye(len(task.labels))  # f64 [labels, labels]
        drawn = [int(example_rng(self._seed, example).integers(len(task.labels))) for example in examples]
        progress(f"task {task.name}", len(examples), len(examples))
        return [LabelPrediction(tuple(one_hot[label].tolist())) for label in drawn]


class FrequentAnswer:
    """Always the answer that is right most often in the example's group of the development examples."""

    name = "majority"

    def __init__(self, development: Sequence[Example]) -> None:
        """Answers are counted once an example, as normalized; of equally frequent ones the first in the file wins."""
        counts: dict[str, Counter[str]] = {}
        sizes: Counter[str] = Counter()
        written: dict[str, str] = {}
        for example in development:
            plain_answers = dict.fromkeys(open_answer(answer) for answer in example.answers)
            counts.setdefault(example.group, Counter()).update(plain_answers.keys())
            sizes[example.group] += 1
            for answer in example.answers:
                written.setdefault(open_answer(answer), answer)
        self._best = {group: _most_frequent(own, sizes[group], written) for group, own in counts.items()}
        self._overall = _most_frequent(sum(counts.values(), Counter()), len(development), written)
        self.facts = {"chosen_on": "the development examples", "development_examples": len(development)}

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[Answer]:
        """The most frequent answer of each example's group; of all groups where the group is new."""
        progress(f"task {task.name}", len(examples), len(examples))
        return [Answer(example.text, self._best.get(example.group, self._overall)) for example in examples]


class RandomSpanOfBestBlock:
    """A random phrase of the block that BM25 ranks first: a control for passage retrieval.

    Spans are the possible answers of the filler in that block: both ends have a vector, and by default words of the
    question alone are no answer. All positions in the block are equally likely.
    """

    name = "random"

    def __init__(self, filler: PhraseFiller, seed: int) -> None:
        """Raises SettingError if the index has no text."""
        self._lexicon = lexicon_of(filler.index)
        self._filler = filler
        self._finder = filler.span_finder(filler.settings)
        self._reader = SurfaceReader(filler.index.store, filler.encoder.tokenizer)
        self.facts = {"seed": seed, **filler_facts(filler)}
        self._seed = seed

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[Answer]:
        """One phrase an example, drawn by seed and id; none where no block shares a word with the text."""
        parts = admissible_parts(self._filler.index, examples, self._filler.settings)

        def drawn(part: PhraseIndex, own: list[Example]) -> list[Answer]:
            return [Answer(example.text, self._drawn(example, part.live_blocks)) for example in own]

        return answered(task, examples, parts, drawn, progress)

    def _drawn(self, example: Example, allowed_blocks: np.ndarray | None) -> tuple[Phrase, ...]:
        """A phrase of the best of the blocks in the mask bool [blocks], or of all."""
        best, _ = self._lexicon.best_blocks(example.text, 1, allowed=allowed_blocks)
        if not len(best):
            return ()
        edges = self._filler.index.store.block_offsets[int(best[0]) :][:2]  # i64 [2]
        candidates = self._finder.find(self._filler.index.rows.rows_within(edges[:1], edges[1:]), None)  # m spans
        texts = self._reader.texts(candidates.starts, candidates.lengths)
        asked = frozenset(words_of(example.text.replace(MASK_TEXT, " ")))
        new_words_only = self._filler.settings.scoring.exclude_query_phrases
        allowed = [place for place, text in enumerate(texts) if not (new_words_only and says_nothing_new(text, asked))]
        if not allowed:
            return ()
        place = allowed[int(example_rng(self._seed, example).integers(len(allowed)))]
        chosen = candidates.where(np.array([place]))
        places = self._reader.occurrences(chosen.starts, chosen.lengths)
        return (Phrase(texts[place], 1 / len(allowed), 1, places),)


class OracleBlocks:
    """Fills the mask from blocks that contain an answer: an upper bound for block retrieval.

    The remaining errors are phrases ranked wrongly, or answers missing from the corpus. Shapes: n examples, k blocks
    of an example.
    """

    name = "oracle-blocks"

    def __init__(self, filler: PhraseFiller) -> None:
        """Raises SettingError if the index has no text."""
        self._lexicon = lexicon_of(filler.index)
        self._filler = filler
        self.facts: dict[str, Any] = {}

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[Answer]:
        """One answer per example, without phrases where no block contains a right one."""
        answers: list[Answer] = []
        shown = max(1, self._filler.settings.occurrences)
        for example, blocks in zip(examples, self.blocks(examples), strict=True):
            if blocks is not None and len(blocks):
                answers.append(self._filler.fill(example.text, occurrences=shown, blocks=blocks))
            else:
                answers.append(Answer(example.text, (), notes=(NO_DOCUMENT if blocks is None else NO_BLOCK,)))
            progress(f"task {task.name}", len(answers), len(examples))
        without_block = sum(bool({NO_BLOCK, NO_DOCUMENT} & {*answer.notes}) for answer in answers)
        self.facts = {**filler_facts(self._filler), "counts": {"without_block": without_block}}
        return answers

    def blocks(self, examples: Sequence[Example]) -> list[np.ndarray | None]:
        """The blocks i64 [k] that each of n examples is answered from, ascending; None where no document may answer.

        Of those that hold an answer, within the filters of the filler and the example's own, the fill.bm25_blocks best
        by BM25, then the first in the corpus of those that share no word with the text.
        """
        settings = self._filler.settings
        chosen: list[np.ndarray | None] = [None] * len(examples)
        for index, places in admissible_parts(self._filler.index, examples, settings):
            if index is None:
                continue
            names = list(dict.fromkeys(name for place in places for name in examples[place].answers))
            held = dict(zip(names, name_blocks(index, self._filler.encoder, names), strict=True))
            for place in places:
                holding = np.unique(np.concatenate([held[name] for name in examples[place].answers]))  # i64 [holding]
                scores = self._lexicon.scores(examples[place].text)[holding]  # f32 [holding]
                best = np.argsort(-scores, kind="stable")[: settings.bm25_blocks]  # i64 [k]
                chosen[place] = np.sort(holding[best])  # i64 [k]
        return chosen


def _most_frequent(counts: Counter[str], example_count: int, written: dict[str, str]) -> tuple[Phrase, ...]:
    """The answer with the highest count, its score the share of examples for which it is right; none without any."""
    if not counts:
        return ()
    plain, count = counts.most_common(1)[0]
    return (Phrase(written[plain], count / example_count, 0, ()),)


def example_rng(seed: int, example: Example) -> np.random.Generator:
    """A generator for one example, independent of the other examples."""
    return np.random.default_rng([seed, zlib.crc32(example.id.encode())])

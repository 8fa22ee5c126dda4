"""Labels by retrieval: a label is as likely as the occurrences of its words in a corpus fit the masked position.

Methods `npm` (a mask pair, or one mask where the encoder was trained so), `npm-single` and `mlm-knn` (one mask, one
query) differ in how they ask, and in the index.

Shapes: q examples, W words of all labels, L labels, w words of one label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from enum import Enum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.errors import SettingError, unknown
from npm.core.types import Answer, Progress
from npm.evaluation.results import filler_facts, model_facts
from npm.evaluation.tasks.document_conditions import NO_DOCUMENT, examples_by_condition
from npm.evaluation.tasks.prompts import empty_prompt
from npm.evaluation.tasks.task import (
    BY_CORPUS,
    Calibration,
    ClosedRetrieval,
    ClosedScoring,
    Evidence,
    Example,
    LabelMean,
    LabelPrediction,
    ResolvedScoring,
    Task,
    resolved_scoring,
)
from npm.evaluation.zero_shot.calibration import corpus_prompts, relative_logs
from npm.evaluation.zero_shot.occurrences import WordHits, WordOccurrences, WordScorer, WordScores, find_occurrences
from npm.evaluation.zero_shot.verbalizers import LabelWords, label_logs, label_shares
from npm.indexing.phrase_index import NoDocumentError
from npm.retrieval.answers import SurfaceReader
from npm.retrieval.queries import QueryVectors, encode_masks
from npm.retrieval.scoring import Combination
from npm.retrieval.settings import Retrieval

if TYPE_CHECKING:
    from npm.evaluation.zero_shot.verbalizers import Verbalizer
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder
    from npm.retrieval.fill import PhraseFiller


EXAMPLES_SCORED_TOGETHER, EXAMPLES_ENCODED_TOGETHER = 4096, 512
ENCODED_KEPT = 16
"""Batches of encoded examples that are kept for the next call: 8192 examples."""


class Masks(Enum):
    """How a masked position asks."""

    pair = "pair"  # two masks, whose vectors are the start and the end query
    single = "single"  # one mask, whose vector is the only query; it asks for the first token of a word


class NonparametricLabels:
    """A closed method: scores labels by the occurrences of their words in an index."""

    def __init__(
        self,
        name: str,
        index: PhraseIndex,
        encoder: Encoder,
        *,
        load_verbalizer: Callable[[Task, str], Verbalizer],
        masks: Masks | None = None,
        scoring: ClosedScoring | None = None,
    ) -> None:
        """`scoring` stands in for what a task says; `masks` None asks as the encoder was trained.

        Raises ArtifactError if `encoder` did not make the index.
        """
        self.name = name
        self._index = index
        self._encoder = index.check_encoder(encoder)
        self._load_verbalizer = load_verbalizer
        self._masks = masks or (Masks.single if encoder.query_masks == 1 else Masks.pair)
        self._scoring = scoring if scoring is not None else ClosedScoring()
        self._reader = SurfaceReader(index.store, encoder.tokenizer)
        # The same examples are scored again and again while settings are chosen.
        self._occurrences = lru_cache(1)(partial(find_occurrences, index, self._encoder))
        self._scorer = lru_cache(1)(lambda words, single: WordScorer(index, self._occurrences(words, single)))
        self._hits = lru_cache(1)(lambda words, single: WordHits(index, self._occurrences(words, single)))
        self._encoded = lru_cache(ENCODED_KEPT)(self._encode)
        self._facts: dict[str, Any] = {}

    def prepare(self, task: Task) -> None:
        """Raise UserError for what would stop `predict`: settings that do not go together, a corpus without text.

        SettingError for a label none of whose words has an occurrence.
        """
        scoring, _, _ = self._read(task)
        if scoring.calibration in BY_CORPUS:
            self._prompts(task, scoring)

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[LabelPrediction]:
        """One prediction an example. Raises what `prepare` raises."""
        scoring, verbalizer, labels = self._read(task)
        occurrences = self._occurrences(labels.words, scoring.single_tokens)
        baseline = self._baseline(task, labels, scoring) if scoring.calibration is Calibration.prompt else 0.0
        at_prompts = None
        if scoring.calibration in BY_CORPUS:
            prompts = self._encoded(self._prompts(task, scoring), scoring.last_tokens)
            at_prompts = self._word_scores(labels, prompts, scoring)
        predictions: list[LabelPrediction] = []
        without_evidence = 0
        for first in range(0, len(examples), EXAMPLES_SCORED_TOGETHER):
            queries = self._queries(task, scoring, examples, first, progress)
            scores = self._word_scores(labels, queries, scoring)
            if at_prompts is not None:
                scores = _relative(scores, at_prompts, scoring.calibration)
            logs = label_logs(scores, labels, scoring.label_mean)  # f64 [q, L]
            without_evidence += int(np.isneginf(logs).all(axis=1).sum())
            shares = label_shares(logs - baseline).tolist()  # q lists of L
            evidence = self._evidence(labels, scores, occurrences, scoring.label_mean)
            predictions += [LabelPrediction(tuple(row), each) for row, each in zip(shares, evidence, strict=True)]
        self._facts = {
            "encoder": model_facts(self._encoder),
            "index": self._index.manifest.digest,
            "masks": self._masks.value,
            "scoring": {
                name: value.value if isinstance(value, Enum) else value
                for name, value in asdict(replace(scoring, verbalizer=verbalizer.name)).items()
            },
            "verbalizer": {"name": verbalizer.name, "digest": verbalizer.digest},
            "words": labels.counts(occurrences),
            "notes": [*verbalizer.notes, *labels.notes(occurrences)],
            "without_evidence": without_evidence,
        }
        return predictions

    def _read(self, task: Task) -> tuple[ResolvedScoring, Verbalizer, LabelWords]:
        """How the labels of `task` are scored, and their words, each label with some in the corpus."""
        scoring = resolved_scoring(ClosedScoring(verbalizer=task.verbalizer), task.scoring, self._scoring)
        verbalizer = self._load_verbalizer(task, scoring.verbalizer)
        labels = LabelWords(tuple(label.name for label in task.labels), verbalizer.words)
        where = f"task {task.name}, verbalizer {verbalizer.name}"
        labels.check(self._occurrences(labels.words, scoring.single_tokens), where=where)
        return scoring, verbalizer, labels

    def facts(self) -> dict[str, Any]:
        """Settings, fingerprints, and how often each word stands in the corpus; empty before the first call."""
        return self._facts

    def _word_scores(self, labels: LabelWords, queries: QueryVectors, scoring: ResolvedScoring) -> WordScores:
        """The evidence of each word at each masked position."""
        factor = self._encoder.similarity_scale / scoring.temperature
        if scoring.temperature_twice and self._masks is Masks.pair:
            factor /= scoring.temperature
        if scoring.retrieval is ClosedRetrieval.top_k:
            one_query = self._masks is Masks.single
            return self._hits(labels.words, scoring.single_tokens).score(
                queries, k=scoring.k, factor=factor, one_query=one_query
            )
        # The end query of a single mask is zero: both ends would count one similarity twice.
        combination = Combination.product if self._masks is Masks.single else scoring.combination
        return self._scorer(labels.words, scoring.single_tokens).score(queries, factor=factor, combination=combination)

    def _baseline(self, task: Task, labels: LabelWords, scoring: ResolvedScoring) -> np.ndarray:
        """log of each label's evidence at the template without an example, f64 [1, L]."""
        scores = self._word_scores(labels, self._encoded((empty_prompt(task),), scoring.last_tokens), scoring)
        logs = label_logs(scores, labels, scoring.label_mean)  # f64 [1, L]
        if np.isneginf(logs).any():
            missing = ", ".join(np.array(labels.names)[np.isneginf(logs[0])].tolist())
            raise SettingError(
                f"zero_shot.closed.calibration: {task.name} has no evidence for {missing} at the empty template: set "
                "zero_shot.closed.retrieval=exact, a larger k, or zero_shot.closed.calibration=none"
            )
        return logs

    def _prompts(self, task: Task, scoring: ResolvedScoring) -> tuple[str, ...]:
        """Prompts made of the corpus. Raises SettingError where they cannot calibrate, or cannot be made."""
        if scoring.retrieval is not ClosedRetrieval.exact:
            raise SettingError(
                f"zero_shot.closed.calibration by the corpus needs zero_shot.closed.retrieval=exact, "
                f"got {scoring.retrieval.value} (task {task.name})"
            )
        return tuple(corpus_prompts(task, self._index))

    def _queries(
        self, task: Task, scoring: ResolvedScoring, examples: Sequence[Example], first: int, progress: Progress
    ) -> QueryVectors:
        """The queries of the examples that are scored together, from number `first` on."""
        stop = min(first + EXAMPLES_SCORED_TOGETHER, len(examples))
        pieces: list[QueryVectors] = []
        for start in range(first, stop, EXAMPLES_ENCODED_TOGETHER):
            end = min(start + EXAMPLES_ENCODED_TOGETHER, stop)
            texts = tuple(example.text for example in examples[start:end])
            pieces.append(self._encoded(texts, scoring.last_tokens))
            progress(f"task {task.name}", end, len(examples))
        columns = zip(*((piece.start, piece.end, piece.cut) for piece in pieces), strict=True)
        return QueryVectors(*map(np.concatenate, columns))

    def _encode(self, texts: tuple[str, ...], last_tokens: int | None) -> QueryVectors:
        masks_per_text = 2 if self._masks is Masks.pair else 1
        found = encode_masks(self._encoder, texts, masks_per_text=masks_per_text, last_tokens=last_tokens)
        start = found.vectors[:, 0]  # f32 [q, d]
        end = np.zeros_like(start) if self._masks is Masks.single else found.vectors[:, 1]  # f32 [q, d]
        return QueryVectors(start=start, end=end, cut=found.cut)

    def _evidence(
        self, labels: LabelWords, scores: WordScores, occurrences: WordOccurrences, mean: LabelMean
    ) -> list[tuple[Evidence, ...]]:
        """For each of the q examples and each label the word that counts most for it, where it fits best.

        None where a label has no evidence.
        """
        parts = np.log(np.maximum(scores.counts, 1)) if mean is LabelMean.words else 0.0  # f64 [W]
        best_words = labels.best_words(scores.log_sums - parts)  # i64 [q, L]
        numbers = np.take_along_axis(scores.best, best_words, axis=1)  # i64 [q, L], -1 without evidence
        logs = np.take_along_axis(scores.best_logs, best_words, axis=1)  # f64 [q, L]
        shown = np.unique(numbers[numbers >= 0])  # i64, each is read once
        places = self._reader.occurrences(occurrences.starts[shown], occurrences.lengths[shown])
        place_of = dict(zip(shown.tolist(), places, strict=False))  # empty for a corpus without text
        return [
            tuple(
                Evidence(label=label, word=labels.words[word], score=log, occurrence=place_of[number])
                for label, (word, log, number) in enumerate(zip(*row, strict=True))
                if number in place_of
            )
            for row in zip(best_words.tolist(), logs.tolist(), numbers.tolist(), strict=True)
        ]


def _relative(scores: WordScores, at_prompts: WordScores, calibration: Calibration) -> WordScores:
    """Scores whose mean evidence E_v / n_v is relative to that at the prompts; the same for words without any."""
    held = scores.counts > 0  # bool [W]
    counts = np.log(scores.counts[held])  # f64 [held words]
    logs = scores.log_sums.copy()  # f64 [q, W]
    scaled = calibration is Calibration.corpus_scaled
    logs[:, held] = counts + relative_logs(
        scores.log_sums[:, held] - counts, at_prompts.log_sums[:, held] - counts, scaled=scaled
    )
    return replace(scores, log_sums=logs)


TEXTS_PER_CALL = 64
RETRIEVAL_OF: dict[str, Retrieval | None] = {
    "npm": None,
    "npm-dense": Retrieval.dense,
    "npm-bm25": Retrieval.bm25,
    "npm-hybrid": Retrieval.hybrid,
}
"""Where each method looks: `npm` as the filler's settings say."""


class PhraseAnswers:
    """Fills the mask with phrases of an index: an `OpenMethod`."""

    def __init__(self, filler: PhraseFiller, name: str = "npm") -> None:
        """`name` is one of `RETRIEVAL_OF`; raises SettingError for another, and for one that the index cannot serve."""
        if name not in RETRIEVAL_OF:
            raise unknown("method of open tasks", name, RETRIEVAL_OF)
        self.name = name
        self._filler = filler
        self._settings = replace(filler.settings, retrieval=RETRIEVAL_OF[name] or filler.settings.retrieval)
        needs_text = self._settings.retrieval in (Retrieval.bm25, Retrieval.hybrid)
        if needs_text and filler.index.lexicon is None:
            raise SettingError(f"index={filler.index.folder} has no text, which method={name} needs: use npm-dense")
        self._cut = self._unanswered = self._inadmissible = 0

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[Answer]:
        """One answer an example, from the filler's settings and under the example's conditions; `task` changes nothing.

        An example that no document may answer gets an answer without phrases.
        """
        answers: dict[int, Answer] = {}
        # One occurrence at least, whatever the filler would show: a prediction says where it was found.
        shown = max(1, self._settings.occurrences)
        for conditions, places in examples_by_condition(examples).items():
            where = [*self._settings.where, *conditions]
            for first in range(0, len(places), TEXTS_PER_CALL):
                batch = places[first : first + TEXTS_PER_CALL]
                texts = [examples[place].text for place in batch]
                try:
                    found = self._filler.fill(texts, occurrences=shown, retrieval=self._settings.retrieval, where=where)
                except NoDocumentError:
                    if not conditions:
                        raise
                    found = [Answer(text, (), notes=(NO_DOCUMENT,)) for text in texts]
                answers |= dict(zip(batch, found, strict=True))
                progress(f"task {task.name}", len(answers), len(examples))
        in_order = [answers[place] for place in range(len(examples))]
        self._cut = sum(answer.cut for answer in in_order)
        self._unanswered = sum(not answer.phrases for answer in in_order)
        self._inadmissible = sum(NO_DOCUMENT in answer.notes for answer in in_order)
        return in_order

    def facts(self) -> dict[str, Any]:
        """Settings of filling, fingerprints, and how many texts were cut or found no phrase in the last call."""
        return {
            **filler_facts(self._filler, self._settings),
            "counts": {
                "cut": self._cut,
                "unanswered": self._unanswered,
                **({"inadmissible": self._inadmissible} if self._inadmissible else {}),
            },
        }

"""Retrieval: labels by the occurrences of their words in a corpus that fit the masked position, phrases by filling it.

Methods `npm` (a mask pair, or one mask where the encoder was trained so), `npm-single` and `mlm-knn` (one mask, one
query) differ in how they ask, and in the index.

Shapes: q examples, W words of all labels, L labels, w words of one label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.errors import SettingError
from npm.core.settings import as_json
from npm.core.types import Answer, Progress
from npm.evaluation.conditions import NO_DOCUMENT, examples_by_condition
from npm.evaluation.methods.label_words import LabelWords, corpus_prompts, label_shares, relative_logs
from npm.evaluation.methods.occurrences import WordHits, WordOccurrences, WordScorer, WordScores, find_occurrences
from npm.evaluation.results import filler_facts, model_facts
from npm.evaluation.tasks import (
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
    Verbalizer,
    load_verbalizer,
    task_scoring,
)
from npm.indexing.phrase_index import NoDocumentError
from npm.retrieval.answers import SurfaceReader
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import QueryVectors, encode_masks
from npm.retrieval.scoring import Combination
from npm.retrieval.settings import Retrieval

if TYPE_CHECKING:
    from npm.evaluation.methods.registry import Resources
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder


EXAMPLES_SCORED_TOGETHER, EXAMPLES_ENCODED_TOGETHER = 4096, 512
TEXTS_PER_CALL = 64


def closed_method(name: str, task: Task, resources: Resources) -> NonparametricLabels:
    """Method `npm`, `npm-single` or `mlm-knn`."""
    index, encoder = resources.index(task, parametric=name == "mlm-knn")
    one_mask = None if name == "npm" else True
    return NonparametricLabels(name, index, encoder, one_mask, resources.settings.zero_shot.closed)


def open_method(name: str, task: Task, resources: Resources, _: Callable[[], Sequence[Example]]) -> PhraseAnswers:
    """Method `npm`, which searches as the settings say, or one that names its retrieval."""
    filler = PhraseFiller(*resources.index(task), resources.fill_settings(task))
    return PhraseAnswers(filler, name)


class NonparametricLabels:
    """A closed method: scores labels by the occurrences of their words in an index."""

    def __init__(
        self,
        name: str,
        index: PhraseIndex,
        encoder: Encoder,
        one_mask: bool | None = None,
        scoring: ClosedScoring | None = None,
    ) -> None:
        """`one_mask`: its vector is the only query; else a mask pair asks; None: as the encoder was trained. `scoring`
        overrides that of a task.

        Raises ArtifactError if `encoder` did not make the index.
        """
        self.name = name
        self.facts: dict[str, Any] = {}
        self._index = index
        self._encoder = index.check_encoder(encoder)
        self._one_mask = encoder.query_masks == 1 if one_mask is None else one_mask
        self._scoring = scoring if scoring is not None else ClosedScoring()
        self._reader = SurfaceReader(index.store, encoder.tokenizer)
        self._occurrences = lru_cache(1)(partial(find_occurrences, index, self._encoder))

    def prepare(self, task: Task) -> None:
        """Raise SettingError for incompatible settings, a corpus without text, a label without occurrences."""
        scoring, *_ = self._read(task)
        if scoring.calibration in BY_CORPUS:
            self._prompts(task, scoring)

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[LabelPrediction]:
        """One prediction per example. Raises what `prepare` raises."""
        scoring, verbalizer, occurrences, labels = self._read(task)
        by_exact = scoring.retrieval is ClosedRetrieval.exact
        scorer = (WordScorer if by_exact else WordHits)(self._index, occurrences)
        word_scores = partial(self._word_scores, scorer, scoring)
        baseline: np.ndarray | float = 0.0
        if scoring.calibration is Calibration.prompt:
            empty = word_scores(self._encoded([task.prompt.empty()], scoring))
            baseline = labels.logs(empty, scoring.label_mean)  # f64 [1, L]
            if np.isneginf(baseline).any():
                missing = ", ".join(np.array(labels.names)[np.isneginf(baseline[0])].tolist())
                raise SettingError(
                    f"zero_shot.closed.calibration: {task.name} has no evidence for {missing} at the empty template: "
                    "set zero_shot.closed.retrieval=exact, a larger k, or zero_shot.closed.calibration=none"
                )
        at_prompts = None
        if scoring.calibration in BY_CORPUS:
            at_prompts = word_scores(self._encoded(self._prompts(task, scoring), scoring))
        predictions: list[LabelPrediction] = []
        without_evidence = 0
        for first in range(0, len(examples), EXAMPLES_SCORED_TOGETHER):
            batch = examples[first : first + EXAMPLES_SCORED_TOGETHER]
            scores = word_scores(self._encoded([example.text for example in batch], scoring))
            if at_prompts is not None:
                scores = _relative(scores, at_prompts, scoring.calibration)
            logs = labels.logs(scores, scoring.label_mean)  # f64 [q, L]
            without_evidence += int(np.isneginf(logs).all(axis=1).sum())
            shares = label_shares(logs - baseline).tolist()  # q lists of L
            evidence = self._evidence(labels, scores, occurrences, scoring.label_mean)
            predictions += [LabelPrediction(tuple(row), each) for row, each in zip(shares, evidence, strict=True)]
            progress(f"task {task.name}", len(predictions), len(examples))
        self.facts = {
            "encoder": model_facts(self._encoder),
            "index": self._index.manifest.digest,
            "masks": "single" if self._one_mask else "pair",
            "scoring": as_json(asdict(replace(scoring, verbalizer=verbalizer.name))),
            "verbalizer": verbalizer.facts,
            "words": labels.counts,
            "notes": labels.notes,
            "without_evidence": without_evidence,
        }
        return predictions

    def _read(self, task: Task) -> tuple[ResolvedScoring, Verbalizer, WordOccurrences, LabelWords]:
        """Scoring of the labels of `task`, and their words, each label with some in the corpus."""
        scoring = task_scoring(task, self._scoring)
        verbalizer = load_verbalizer(task, scoring.verbalizer)
        words = tuple(dict.fromkeys(word for own in verbalizer.words for word in own))
        occurrences = self._occurrences(words, scoring.single_tokens)
        return scoring, verbalizer, occurrences, LabelWords(task, verbalizer, occurrences)

    def _word_scores(
        self, scorer: WordScorer | WordHits, scoring: ResolvedScoring, queries: QueryVectors
    ) -> WordScores:
        """The evidence of each word at each masked position."""
        factor = self._encoder.similarity_scale / scoring.temperature
        if scoring.temperature_twice and not self._one_mask:
            factor /= scoring.temperature
        if isinstance(scorer, WordHits):
            return scorer.score(queries, k=scoring.k, factor=factor, one_query=self._one_mask)
        # The end query of a single mask is zero: both ends would count one similarity twice.
        combination = Combination.product if self._one_mask else scoring.combination
        return scorer.score(queries, factor=factor, combination=combination)

    def _prompts(self, task: Task, scoring: ResolvedScoring) -> list[str]:
        """Prompts made of the corpus. Raises SettingError where they cannot calibrate, or cannot be made."""
        if scoring.retrieval is not ClosedRetrieval.exact:
            raise SettingError(
                f"zero_shot.closed.calibration by the corpus needs zero_shot.closed.retrieval=exact, "
                f"got {scoring.retrieval.value} (task {task.name})"
            )
        return corpus_prompts(task, self._index)

    def _encoded(self, texts: Sequence[str], scoring: ResolvedScoring) -> QueryVectors:
        """The queries of q texts."""
        pieces: list[QueryVectors] = []
        for first in range(0, len(texts), EXAMPLES_ENCODED_TOGETHER):
            batch = texts[first : first + EXAMPLES_ENCODED_TOGETHER]
            masks = 1 if self._one_mask else 2
            found = encode_masks(self._encoder, batch, masks_per_text=masks, last_tokens=scoring.last_tokens)
            start = found.vectors[:, 0]  # f32 [q, d]
            end = np.zeros_like(start) if self._one_mask else found.vectors[:, 1]  # f32 [q, d]
            pieces.append(QueryVectors(start=start, end=end, cut=found.cut))
        columns = zip(*((piece.start, piece.end, piece.cut) for piece in pieces), strict=True)
        return QueryVectors(*map(np.concatenate, columns))

    def _evidence(
        self, labels: LabelWords, scores: WordScores, occurrences: WordOccurrences, mean: LabelMean
    ) -> list[tuple[Evidence, ...]]:
        """For each of the q examples and each label the word that counts most for it, where it fits best.

        None where a label has no evidence.
        """
        parts = np.log(np.maximum(scores.counts, 1)) if mean is LabelMean.words else 0.0  # f64 [W]
        logs = scores.log_sums - parts  # f64 [q, W]
        best_words = np.stack([own[logs[:, own].argmax(axis=1)] for own in labels.numbers], axis=1)  # i64 [q, L]
        numbers = np.take_along_axis(scores.best, best_words, axis=1)  # i64 [q, L], -1 without evidence
        best_logs = np.take_along_axis(scores.best_logs, best_words, axis=1)  # f64 [q, L]
        shown = np.unique(numbers[numbers >= 0])  # i64, each is read once
        places = self._reader.occurrences(occurrences.starts[shown], occurrences.lengths[shown])
        place_of = dict(zip(shown.tolist(), places, strict=False))  # empty for a corpus without text
        return [
            tuple(
                Evidence(label=label, word=labels.words[word], score=log, occurrence=place_of[number])
                for label, (word, log, number) in enumerate(zip(*row, strict=True))
                if number in place_of
            )
            for row in zip(best_words.tolist(), best_logs.tolist(), numbers.tolist(), strict=True)
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


class PhraseAnswers:
    """Fills the mask with phrases of an index: an open method."""

    def __init__(self, filler: PhraseFiller, name: str = "npm") -> None:
        """`npm` searches as the filler's settings say; `npm-NAME` names the retrieval, and its index must serve it."""
        self.name = name
        self._filler = filler
        retrieval = filler.settings.retrieval if name == "npm" else Retrieval(name.removeprefix("npm-"))
        self._settings = replace(filler.settings, retrieval=retrieval)
        self.facts = filler_facts(filler, self._settings)
        if retrieval in (Retrieval.bm25, Retrieval.hybrid) and filler.index.lexicon is None:
            raise SettingError(f"index={filler.index.folder} has no text, which method={name} needs: use npm-dense")

    def predict(self, task: Task, examples: Sequence[Example], progress: Progress) -> list[Answer]:
        """One answer per example, under its conditions; without phrases where no document may answer."""
        answers: dict[int, Answer] = {}
        # One occurrence at least, whatever the filler would show: a prediction says where it was found.
        shown, retrieval = max(1, self._settings.occurrences), self._settings.retrieval
        for conditions, numbers in examples_by_condition(examples).items():
            where = [*self._settings.where, *conditions]
            for first in range(0, len(numbers), TEXTS_PER_CALL):
                batch = numbers[first : first + TEXTS_PER_CALL]
                texts = [examples[number].text for number in batch]
                try:
                    found = self._filler.fill(texts, occurrences=shown, retrieval=retrieval, where=where)
                except NoDocumentError:
                    if not conditions:
                        raise
                    found = [Answer(text, (), notes=(NO_DOCUMENT,)) for text in texts]
                answers |= dict(zip(batch, found, strict=True))
                progress(f"task {task.name}", len(answers), len(examples))
        in_order = [answers[number] for number in range(len(examples))]
        counts = {
            "cut": sum(answer.cut for answer in in_order),
            "unanswered": sum(not answer.phrases for answer in in_order),
            "inadmissible": sum(NO_DOCUMENT in answer.notes for answer in in_order),
        }
        self.facts = {**self.facts, "counts": counts}
        return in_order

"""Open tasks: any phrase may be the answer, by exact match, on all examples and on those that the corpus covers.

Which examples overlap with the corpus (contamination) is found here too.

Shapes: n examples, g groups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.types import Answer, Progress, silent
from npm.corpus.markup import visible
from npm.evaluation.metrics import Interval, bootstrap_interval, exact_match, group_mean_interval
from npm.evaluation.tasks.data import LONGEST_ANSWER_GROUP, answer_groups
from npm.evaluation.tasks.document_conditions import NO_DOCUMENT, admissible_parts
from npm.evaluation.tasks.task import Example, Macro, OpenMethod, Task, TaskScores
from npm.evaluation.zero_shot.closed_set import check_something_to_do, examples_digest
from npm.evaluation.zero_shot.occurrences import name_counts
from npm.indexing.embed import check_tokenizer

if TYPE_CHECKING:
    from npm.indexing.phrase_index import PhraseIndex
    from npm.models.encoder import Encoder


LEAST_WORDS_LOOKED_FOR, BLOCKS_LOOKED_IN, LEAST_ASCII_LETTERS = 8, 3, 24


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the corpus holds of each example."""

    subject_named: np.ndarray | None  # bool [n], whether the subject's name stands in the corpus; None without subjects
    answer_held: np.ndarray  # bool [n], whether one of the answers stands in the corpus


def coverage_of(
    examples: Sequence[Example],
    index: PhraseIndex,
    encoder: Encoder,
    *,
    where: Sequence[str] = (),
    documents: Sequence[str] | None = None,
) -> Coverage:
    """Look up the names of all subjects and all answers in the blocks of `index`, in one pass over its tokens.

    Only in what meets `where` and is among `documents`; examples with conditions of their own take a pass for each set
    of conditions, over what meets them too. Raises ArtifactError if the tokens of the index are not those of the
    encoder, and as `admissible_parts` does.
    """
    check_tokenizer(encoder, index.store)
    named = np.zeros(len(examples), dtype=bool)  # [n]
    answered = np.zeros(len(examples), dtype=bool)  # [n]
    for admissible, places in admissible_parts(index, examples, where=where, documents=documents):
        if admissible is None:
            continue
        own = [examples[place] for place in places]
        names = list(
            dict.fromkeys(name for example in own for name in (example.subject, *example.answers) if name.strip())
        )
        counts = name_counts(admissible, encoder, names)  # i64 [names]
        stands = {name: bool(count) for name, count in zip(names, counts.tolist(), strict=True)}
        named[places] = [stands.get(example.subject, False) for example in own]
        answered[places] = [any(stands.get(answer, False) for answer in example.answers) for example in own]
    has_subjects = any(example.subject for example in examples)
    return Coverage(subject_named=named if has_subjects else None, answer_held=answered)


def overlapping_examples(examples: Sequence[Example], index: PhraseIndex) -> np.ndarray | None:
    """Which of n examples stand in a document of the corpus, bool [n]; None for a corpus without text.

    An example's longest field is looked for in the documents of the blocks that BM25 ranks first for it, by letters and
    digits alone; fields of less than `LEAST_WORDS_LOOKED_FOR` words are not, because they stand anywhere.
    """
    if index.lexicon is None:
        return None
    overlap = np.zeros(len(examples), dtype=bool)  # [n]
    long = [number for number, example in enumerate(examples) if len(example.passage.split()) >= LEAST_WORDS_LOOKED_FOR]
    hits = index.lexicon.best_blocks([examples[number].passage for number in long], BLOCKS_LOOKED_IN)
    for number, blocks, found in zip(long, hits.blocks, hits.found, strict=True):
        documents = np.unique(index.store.block_documents[blocks[found]])  # i64 [documents]
        passage = _letters(examples[number].passage)
        overlap[number] = any(passage in _letters(visible(index.store.document(int(each)).text)) for each in documents)
    return overlap


def _letters(text: str) -> str:
    """Its letters and digits; of those only ASCII's if they are many, because copies differ in how others are encoded.

    >>> _letters("It's  a café, No. 4")
    'itsacaféno4'
    """
    plain = text.casefold()
    ascii_only = re.sub(r"[^a-z0-9]", "", plain)
    return ascii_only if len(ascii_only) >= LEAST_ASCII_LETTERS else "".join(filter(str.isalnum, plain))


def answer_token_groups(answers: Sequence[Sequence[str]], encoder: Encoder) -> list[str]:
    """How many tokens the shortest of the answers to each of n questions has, one at least: 1, 2, 3 or 4+."""
    lengths = answer_groups(encoder, answers)  # i64 [n]
    return [str(length) if length < LONGEST_ANSWER_GROUP else f"{length}+" for length in lengths.tolist()]


def macro_groups(macro: Macro, examples: Sequence[Example], encoder: Encoder) -> list[str] | None:
    """The group of each of n examples that an average over groups goes over; None where there is no such average."""
    if macro is Macro.answer_tokens:
        return answer_token_groups([example.answers for example in examples], encoder)
    return [example.group for example in examples] if macro is Macro.group else None


@dataclass(frozen=True, slots=True)
class ExactMatch:
    """How often the best phrase is right among some examples."""

    count: int
    micro: Interval | None  # over examples; None without any
    macro: Interval | None  # over groups; None where the task has none

    def interval(self, *, macro: bool) -> Interval | None:
        """The mean over groups if asked for and there is one, else over examples; None without examples."""
        return self.macro if macro and self.macro is not None else self.micro


@dataclass(frozen=True, slots=True)
class OpenMethodResult:
    """What one method answered, and how often it was right."""

    name: str
    answers: tuple[Answer, ...]
    right: np.ndarray  # bool [n]
    all_examples: ExactMatch
    covered: ExactMatch | None  # where the corpus names the subject; None without subjects or without an index
    facts: dict[str, Any]
    subsets: Mapping[str, tuple[ExactMatch, ExactMatch | None]] = field(default_factory=dict)  # all and covered of each
    old: ExactMatch | None = None  # how often the best phrase was right at the other date; None without such answers


@dataclass(frozen=True, slots=True)
class OpenTaskResult:
    """All methods on the same examples of an open task."""

    task: Task
    examples: tuple[Example, ...]
    answer_tokens: tuple[str, ...]  # of each example: 1, 2, 3 or 4+
    coverage: Coverage | None  # None without an index
    methods: tuple[OpenMethodResult, ...]
    data_notes: tuple[str, ...] = ()

    def scores(self, *, macro: bool = True) -> TaskScores:
        """The task's row of a table, over all examples; with `macro` as the task averages, as the paper reports it."""
        found = {method.name: method.all_examples.interval(macro=macro) for method in self.methods}
        paper = dict(self.task.paper) if macro else {}
        return TaskScores(self.task.name, len(self.examples), _present(found), paper=paper)

    def covered_scores(self, *, macro: bool = True) -> TaskScores | None:
        """The same over the examples whose subject the corpus names; None where there are none or nothing is known."""
        covered = {method.name: method.covered for method in self.methods if method.covered is not None}
        found = _present({name: each.interval(macro=macro) for name, each in covered.items()})
        return TaskScores(self.task.name, next(iter(covered.values())).count, found) if found else None

    def subset_scores(self, name: str, *, macro: bool = True) -> TaskScores | None:
        """The same over one of the task's subsets; None where it is not known or empty."""
        matches = {method.name: method.subsets[name][0] for method in self.methods if name in method.subsets}
        found = _present({method: match.interval(macro=macro) for method, match in matches.items()})
        return TaskScores(self.task.name, next(iter(matches.values())).count, found) if found else None

    def old_scores(self) -> TaskScores | None:
        """How often each method answered what was right at the other date only; None without such answers."""
        matches = {method.name: method.old for method in self.methods if method.old is not None}
        found = _present({method: match.micro for method, match in matches.items()})
        return TaskScores(self.task.name, next(iter(matches.values())).count, found) if found else None

    def notes(self) -> list[str]:
        """What a reader of the table should know: cut texts, what the corpus holds, texts without any phrase."""
        count, found = len(self.examples), list(self.data_notes)
        if cut := sum(example.cut for example in self.examples):
            found.append(f"{self.task.name}: {cut} of {count} texts were cut to the longest prompt allowed.")
        if self.coverage is not None:
            held, named = self.coverage.answer_held, self.coverage.subject_named  # bool [n] each
            subjects = "" if named is None else f"names the subject of {named.sum()} and "
            found.append(f"{self.task.name}: of {count} examples the corpus {subjects}holds an answer of {held.sum()}.")
        inadmissible = [sum(NO_DOCUMENT in each.notes for each in method.answers) for method in self.methods]
        if most := max(inadmissible, default=0):
            what = "have no document that meets their conditions, and count as unanswered"
            found.append(f"{self.task.name}: {most} of {count} examples {what}.")
        for method in self.methods:
            if unanswered := sum(not answer.phrases for answer in method.answers):
                found.append(f"{self.task.name}: {method.name} found no phrase for {unanswered} of {count} examples.")
            found += [f"{self.task.name}, {method.name}: {note}" for note in method.facts.get("notes", ())]
        return found

    def metrics(self) -> dict[str, Any]:
        """The task's part of metrics.json."""
        chosen = np.ones(len(self.examples), dtype=bool)  # [n]
        return {
            "suite": self.task.suite.value,
            "count": len(self.examples),
            "cut_count": sum(example.cut for example in self.examples),
            "examples_sha256": examples_digest(self.examples),
            "task_sha256": self.task.digest,
            "macro_over": self.task.macro.value,
            "coverage": self._coverage_record(chosen),
            **({"data_notes": list(self.data_notes)} if self.data_notes else {}),
            **({"subsets": subsets} if (subsets := self._subset_coverage()) else {}),
            "methods": {
                method.name: {
                    **self._score_record(method, method.all_examples, method.covered, chosen),
                    **({"subsets": self._subset_records(method)} if method.subsets else {}),
                    **({"old_answers": asdict(method.old)} if method.old is not None else {}),
                    "facts": method.facts,
                }
                for method in self.methods
            },
        }

    def _subset_coverage(self) -> dict[str, Any]:
        """Examples of each subset, and what the corpus holds of them."""
        names = self.methods[0].subsets
        return {
            name: {"count": int(mask.sum()), "coverage": self._coverage_record(mask)}
            for name in names
            for mask in [subset_mask(self.examples, name)]
        }

    def _subset_records(self, method: OpenMethodResult) -> dict[str, Any]:
        """All that is said of a method, over each subset."""
        return {
            name: self._score_record(method, *scores, subset_mask(self.examples, name))
            for name, scores in method.subsets.items()
        }

    def _score_record(
        self, method: OpenMethodResult, match: ExactMatch, covered: ExactMatch | None, chosen: np.ndarray
    ) -> dict[str, Any]:
        """Exact match over the examples `chosen` bool [n], over those of them that are covered, and over groups."""
        right = method.right[chosen]  # bool [chosen]
        kept = np.flatnonzero(chosen).tolist()
        groups = [self.examples[number].group for number in kept]
        return {
            "all": asdict(match),
            "covered": None if covered is None else asdict(covered),
            "by_answer_tokens": _shares(right, [self.answer_tokens[number] for number in kept]),
            "by_group": _shares(right, groups) if any(groups) else {},
        }

    def records(self) -> Iterator[dict[str, Any]]:
        """The task's lines of predictions.jsonl: an example and a method each."""
        for method in self.methods:
            for number, (example, answer) in enumerate(zip(self.examples, method.answers, strict=True)):
                yield {
                    "task": self.task.name,
                    "method": method.name,
                    "id": example.id,
                    "text": example.text,
                    "gold": list(example.answers),
                    "group": example.group,
                    "prediction": answer.phrases[0].phrase if answer.phrases else None,
                    "correct": bool(method.right[number]),
                    "phrases": [
                        {"phrase": each.phrase, "score": each.score, "occurrence_count": each.occurrence_count}
                        for each in answer.phrases
                    ],
                    "evidence": [asdict(each) for each in answer.phrases[0].occurrences] if answer.phrases else [],
                    **self._held(number),
                    **({"subsets": list(example.subsets)} if method.subsets else {}),
                    **({"old_answers": list(example.old_answers)} if example.old_answers else {}),
                    **({"where": list(example.where)} if example.where else {}),
                }

    def _held(self, number: int) -> dict[str, bool]:
        """What the corpus holds of one example, where that is known."""
        if self.coverage is None:
            return {}
        held = {"answer_held": bool(self.coverage.answer_held[number])}
        if self.coverage.subject_named is not None:
            held["subject_named"] = bool(self.coverage.subject_named[number])
        return held

    def _coverage_record(self, chosen: np.ndarray) -> dict[str, Any] | None:
        """Counts and shares of what the corpus holds of the examples `chosen` bool [n]."""
        if self.coverage is None:
            return None
        held, named = self.coverage.answer_held[chosen], self.coverage.subject_named  # bool [chosen], bool [n]
        record: dict[str, Any] = {"answer_held": _part(held), "subject_named": None, "answer_held_if_named": None}
        if named is not None:
            named = named[chosen]  # bool [chosen]
            record |= {"subject_named": _part(named), "answer_held_if_named": _part(held[named])}
        return record


def evaluate_open(
    task: Task,
    examples: Sequence[Example],
    methods: Sequence[OpenMethod],
    *,
    tokenizer_encoder: Encoder,
    index: PhraseIndex | None,
    where: Sequence[str] = (),
    documents: Sequence[str] | None = None,
    subsets: Sequence[str] = (),
    data_notes: Sequence[str] = (),
    seed: int = 0,
    resamples: int = 10_000,
    progress: Progress = silent,
) -> OpenTaskResult:
    """Ask every method every example and count exact matches of the best phrases.

    `tokenizer_encoder` measures answers in tokens and finds names in `index`, without which nothing is said about
    coverage, in what meets `where` and is among `documents`: those that the methods answer from. `subsets` are those of
    the task's that are known; `data_notes` go before other notes. `progress` counts examples over all methods.
    Intervals of all methods are drawn with the same `seed`. Raises SettingError without examples or methods,
    ArtifactError if `index` holds tokens of another tokenizer, and whatever `coverage_of` or a method raises.
    """
    check_something_to_do(task, examples, methods)
    answer_tokens = answer_token_groups([example.answers for example in examples], tokenizer_encoder)
    groups = macro_groups(task.macro, examples, tokenizer_encoder)
    coverage = None
    if index is not None:
        coverage = coverage_of(examples, index, tokenizer_encoder, where=where, documents=documents)

    def score(right: np.ndarray, chosen: np.ndarray) -> ExactMatch:
        return _exact_match(right, groups, chosen, seed=seed, resamples=resamples)

    results: list[OpenMethodResult] = []
    for number, method in enumerate(methods):

        def method_progress(stage: str, done: float, _: float | None, before: int = number * len(examples)) -> None:
            progress(stage, before + done, len(examples) * len(methods))

        answers = method.predict(task, examples, method_progress)
        results.append(_method_result(method, answers, examples, coverage, subsets, score))
    return OpenTaskResult(
        task=task,
        examples=tuple(examples),
        answer_tokens=tuple(answer_tokens),
        coverage=coverage,
        methods=tuple(results),
        data_notes=tuple(data_notes),
    )


def _method_result(
    method: OpenMethod,
    answers: Sequence[Answer],
    examples: Sequence[Example],
    coverage: Coverage | None,
    subsets: Sequence[str],
    score: Callable[[np.ndarray, np.ndarray], ExactMatch],
) -> OpenMethodResult:
    """What `score` says of the n answers of a method: over all examples, the covered ones, and each subset."""
    right = _right(answers, [example.answers for example in examples])  # bool [n]
    old = _right(answers, [example.old_answers for example in examples])  # bool [n]
    has_old = np.array([bool(example.old_answers) for example in examples])  # bool [n]
    named = None if coverage is None else coverage.subject_named  # bool [n]
    masks = {name: subset_mask(examples, name) for name in subsets}  # bool [n] each
    return OpenMethodResult(
        name=method.name,
        answers=tuple(answers),
        right=right,
        all_examples=score(right, np.ones(len(examples), dtype=bool)),
        covered=None if named is None else score(right, named),
        facts=method.facts(),
        subsets={
            name: (score(right, mask), None if named is None else score(right, mask & named))
            for name, mask in masks.items()
        },
        old=score(old, has_old) if has_old.any() else None,
    )


def subset_mask(examples: Sequence[Example], name: str) -> np.ndarray:
    """Which of n examples are in a subset, bool [n]."""
    return np.array([name in example.subsets for example in examples], dtype=bool)


def _right(answers: Sequence[Answer], accepted: Sequence[Sequence[str]]) -> np.ndarray:
    """Whether the best phrase of each of n answers is one of those accepted for it, bool [n]."""
    return np.array(
        [
            bool(answer.phrases) and exact_match(answer.phrases[0].phrase, right)
            for answer, right in zip(answers, accepted, strict=True)
        ]
    )


def _exact_match(
    right: np.ndarray, groups: Sequence[str] | None, chosen: np.ndarray, *, seed: int, resamples: int
) -> ExactMatch:
    """Exact match where `chosen` bool [n], of `right` bool [n]; over the groups that have a chosen example."""
    kept = right[chosen]  # bool [chosen]
    if len(kept) == 0:
        return ExactMatch(count=0, micro=None, macro=None)
    micro = bootstrap_interval(kept.astype(np.float64), np.random.default_rng(seed), resamples=resamples)
    macro = None
    if groups is not None:
        _, numbers = np.unique(np.array(groups)[chosen], return_inverse=True)  # i64 [chosen]
        macro = group_mean_interval(kept, numbers, np.random.default_rng(seed), resamples=resamples)
    return ExactMatch(count=len(kept), micro=micro, macro=macro)


def _present(intervals: Mapping[str, Interval | None]) -> dict[str, Interval]:
    """Those that there are."""
    return {name: interval for name, interval in intervals.items() if interval is not None}


def _part(mask: np.ndarray) -> dict[str, Any]:
    """How many of a mask bool [n] are true."""
    return {"count": int(mask.sum()), "share": float(mask.mean()) if len(mask) else None}


def _shares(right: np.ndarray, groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Examples and exact match of each group, in the order of their names."""
    names, numbers, counts = np.unique(np.array(groups), return_inverse=True, return_counts=True)  # [g], [n], [g]
    sums = np.bincount(numbers, weights=right)  # f64 [g]
    return {
        str(name): {"count": int(count), "exact_match": float(total / count)}
        for name, count, total in zip(names, counts, sums, strict=True)
    }

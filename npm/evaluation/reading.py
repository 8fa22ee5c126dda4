"""Task `reading`: questions that people wrote, each with its passage, asked of that passage alone and of all passages.

Measures are those of SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250, §6.1), of the first phrase and of the best among
five: exact match, and F1, the harmonic mean of precision and recall of the words that a phrase shares with an answer.
How well the reader knows when it is right is measured by its probability of the best span: of right and wrong first
phrases, and of the right ones and the same questions read with the most similar passage that has no answer.

Shapes: q questions, a of them read without an answer.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.artifact import MANIFEST_NAME
from npm.core.display import Table, counted
from npm.core.errors import CorpusError, SettingError, named
from npm.core.files import digest_of
from npm.core.types import Document, Progress, silent
from npm.corpus.questions import read_questions
from npm.corpus.settings import CorpusSettings
from npm.corpus.text import with_mask
from npm.evaluation.metrics import Interval, auroc, bootstrap_interval, exact_match, open_answer, percent
from npm.evaluation.results import Result, filler_facts, refuse_other_results
from npm.evaluation.settings import EvaluationSettings, SampleSettings, ZeroShotEvaluation
from npm.indexing.build import build_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import IndexBuildSettings, VectorSettings
from npm.reading.confidence import best_span
from npm.reading.reader import Reader
from npm.retrieval.blocks import passage_of
from npm.retrieval.filler import PhraseFiller

PASSAGE_ID = "passage-"
"""Beginning of the ids of passages."""
MAX_SPAN_TOKENS, AMONG, TEXTS_AT_ONCE = 20, 5, 16
MEASURES = "exact_match", f"exact_match_{AMONG}", "f1", f"f1_{AMONG}"
"""Of the first phrase, and of the best of the first five."""
ASKING = ("who", "what", "when", "where", "which", "how", "why")
LENGTHS = {"1 to 3 words": 3, "4 to 6 words": 6, "7 and more": 10**6}
WITHHELD = 0.9  # share of the questions without an answer that a threshold withholds


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its passage."""

    question: str
    answers: tuple[str, ...]
    passage: str  # id of its document
    groups: tuple[str, ...]  # by which it is counted


def read_passages(files: Sequence[str], sample: SampleSettings) -> tuple[list[Asked], list[Document], Counter[str]]:
    """The sampled questions, all passages of the files, and the rows that cannot be asked by reason."""
    skipped: Counter[str] = Counter()
    passages: dict[tuple[str, str], str] = {}
    asked = []
    for _, row in read_questions(files, skipped):
        passage = passages.setdefault((row["title"], row["context"]), f"{PASSAGE_ID}{len(passages) + 1}")
        if not row["answers"]:
            skipped["without an answer"] += 1
            continue
        shortest = min(len(answer.split()) for answer in row["answers"])
        words = row["question"].lower().split()
        groups = (
            next(name for name, most in LENGTHS.items() if shortest <= most),
            next((word for word in words if word in ASKING), "other"),
        )
        asked.append(Asked(row["question"], tuple(row["answers"]), passage, groups))
    if not asked:
        reasons = ", ".join(f"{counted(count, 'row')} {reason}" for reason, count in skipped.items())
        raise CorpusError(f"{named(files)}: no question has an answer in its context ({reasons}): give other files")
    random.Random(sample.seed).shuffle(asked)
    documents = [Document(name, title, text) for (title, text), name in passages.items()]
    return asked[: sample.limit], documents, skipped


def build_passages(
    documents: Sequence[Document],
    folder: Path,
    settings: ZeroShotEvaluation,
    progress: Progress = silent,
    *,
    others: Sequence[str] = (),
    vectors: VectorSettings | None = None,
) -> None:
    """Build an index over the passages, and over the documents of files `others`, in `folder`."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "passages.jsonl"
        rows = ({"id": each.id, "title": each.title, "text": each.text} for each in documents)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        chosen = IndexBuildSettings(
            corpus=CorpusSettings(files=[str(file), *others]),
            vectors=vectors or VectorSettings(),
            encoder=settings.encoder,
            device=settings.device,
            precision=settings.precision,
        )
        build_index(folder, chosen, progress=progress)


def check_passages(index: PhraseIndex, asked: Sequence[Asked], documents: Sequence[Document]) -> None:
    """Raise CorpusError unless the index has the passage of every question, from `documents`, under its id."""
    texts = {each.id: each.text.split() for each in documents}
    for name in {each.passage for each in asked}:
        found = index.document(name)
        if found is None or found.text.split() != texts[name]:
            raise CorpusError(f"{index.folder} is not over the passages of the questions: give another index=")


def evaluate(settings: EvaluationSettings, out: Path | None, progress: Progress) -> Result:
    """Ask the questions of reading.questions of the index, which is built over their passages if it is missing."""
    if not settings.reading.questions:
        raise SettingError("reading.questions is required: files of questions with their passages")
    if not settings.index:
        raise SettingError("index is required: the folder of an index over the passages, built if it is not there")
    asked, documents, skipped = read_passages(settings.reading.questions, settings)
    folder = Path(settings.index)
    if not (folder / MANIFEST_NAME).is_file():
        build_passages(documents, folder, settings, progress)
    with PhraseFiller.open(
        folder, settings.encoder or None, settings=settings.fill, device=settings.device, dtype=settings.precision
    ) as filler:
        check_passages(filler.index, asked, documents)
        return evaluate_reading(filler, asked, settings, skipped=skipped, out=out, progress=progress)


def evaluate_reading(
    filler: PhraseFiller,
    asked: Sequence[Asked],
    sample: SampleSettings,
    *,
    skipped: Mapping[str, int] | None = None,
    out: Path | None = None,
    progress: Progress = silent,
) -> Result:
    """Ask all questions of an index over their passages."""
    reader = filler.reader(filler.settings)
    questions = [[each.question, list(each.answers), each.passage] for each in asked]
    chosen = {item.name: getattr(sample, item.name) for item in fields(SampleSettings)}
    record = {"task": "reading", "settings": chosen, "questions_digest": digest_of(questions), **filler_facts(filler)}
    refuse_other_results(out, record)
    lines: list[dict[str, Any]] = []
    for start in range(0, len(asked), TEXTS_AT_ONCE):
        progress("questions", start, len(asked))
        some = asked[start : start + TEXTS_AT_ONCE]
        for each, of_corpus in zip(some, filler.fill([each.question for each in some], k=AMONG), strict=True):
            of_passage = filler.fill(each.question, k=AMONG, documents=[each.passage])
            given, corpus = ([phrase.phrase for phrase in answer.phrases] for answer in (of_passage, of_corpus))
            probability, absent = (0.0, None) if reader is None else _probabilities(filler, reader, each)
            lines.append(
                {"question": each.question, "answers": list(each.answers), "passage": each.passage}
                | {"given": given, "corpus": corpus, "probability": probability, "absent_probability": absent}
                | _scored("given", given, each.answers)
                | _scored("corpus", corpus, each.answers)
            )
    means = _means(lines, asked, sample)
    notes = [f"{count:,} rows skipped {reason}" for reason, count in (skipped or {}).items()]
    return Result(record, lines, means, list(_tables(means)), notes)


def _probabilities(filler: PhraseFiller, reader: Reader, asked: Asked) -> tuple[float, float | None]:
    """The reader's probabilities for the right passage, and for the most similar one without an answer."""
    store, lexicon = filler.index.store, filler.index.lexicon
    text = with_mask(asked.question)

    def best(blocks: Sequence[int]) -> float:
        found = reader.read([(text, passage_of(store, block)) for block in blocks])
        return max((math.exp(best_span(scores[0].scores, MAX_SPAN_TOKENS)) for scores in found), default=0.0)

    (document,) = store.find_documents([asked.passage]).tolist()
    right = best(np.flatnonzero(store.block_documents == document).tolist())
    for block in lexicon.best_blocks(text, 10)[0].tolist():
        plain = open_answer(passage_of(store, block).text)
        if not any(open_answer(answer) in plain for answer in asked.answers):
            return right, best([block])
    return right, None


def word_f1(phrase: str, answer: str) -> float:
    """F1 of the words of a phrase and an answer, compared as `open_answer` has them.

    >>> word_f1("the Danube river", "Danube"), word_f1("Rhine", "Danube")
    (0.6666666666666666, 0.0)
    """
    found, wanted = open_answer(phrase).split(), open_answer(answer).split()
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0


def _scored(kind: str, phrases: Sequence[str], answers: Sequence[str]) -> dict[str, float]:
    right = [exact_match(phrase, answers) for phrase in phrases]
    f1 = [max(word_f1(phrase, answer) for answer in answers) for phrase in phrases]
    found = float(any(right[:1])), float(any(right)), max(f1[:1], default=0.0), max(f1, default=0.0)
    return {f"{kind}_{name}": value for name, value in zip(MEASURES, found, strict=True)}


def _means(lines: Sequence[Mapping[str, Any]], asked: Sequence[Asked], sample: SampleSettings) -> dict[str, Any]:
    """Means of all measures over all questions and over groups of them, and how well the reader knows."""
    names = [f"{kind}_{measure}" for kind in ("given", "corpus") for measure in MEASURES]
    values = {name: np.array([line[name] for line in lines]) for name in names}  # f64 [q] each
    rng = np.random.default_rng(sample.seed)
    means: dict[str, Any] = {"questions": len(lines)}
    means |= {name: asdict(bootstrap_interval(each, rng, resamples=sample.resamples)) for name, each in values.items()}
    groups: dict[str, dict[str, Any]] = {}
    for place, kinds in enumerate((list(LENGTHS), [*ASKING, "other"])):
        for group in kinds:
            chosen = np.array([each.groups[place] == group for each in asked])  # bool [q]
            if chosen.any():
                shares = {name: float(own[chosen].mean()) for name, own in values.items()}
                groups[group] = {"questions": int(chosen.sum())} | shares
    means["groups"] = groups
    probabilities = np.array([line["probability"] for line in lines])  # f64 [q]
    if probabilities.any():
        absent = [line["absent_probability"] for line in lines if line["absent_probability"] is not None]
        means["abstention"] = abstention(probabilities, values["given_exact_match"] > 0, np.array(absent))
    return means


def abstention(probabilities: np.ndarray, right: np.ndarray, absent: np.ndarray) -> dict[str, Any]:
    """Separation of right answers bool [q] from wrong and absent ones by probabilities f64 [q] and f64 [a].

    `curve` has for each share of the questions, the surest ones, the share of right answers among them.
    """
    order = np.argsort(-probabilities, kind="stable")  # i64 [q]
    shares = np.arange(0.1, 1.01, 0.1)  # f64 [10]
    counts = np.maximum(1, np.round(shares * len(order)).astype(int))  # i64 [10]
    curve = [
        [round(float(share), 1), float(right[order[:count]].mean())]
        for share, count in zip(shares, counts, strict=True)
    ]
    found: dict[str, Any] = {"curve": curve, "auroc": auroc(probabilities[right], probabilities[~right])}
    if len(absent):
        threshold = float(np.quantile(absent, WITHHELD))
        kept = float((probabilities[right] > threshold).mean()) if right.any() else None
        found |= {"auroc_absent": auroc(probabilities[right], absent), "threshold": threshold, "right_kept": kept}
    return found


def _tables(means: Mapping[str, Any]) -> Iterator[Table]:
    header = ["", "exact match", f"among {AMONG}", "F1", f"F1 of {AMONG}"]
    rows = [
        [title, *(percent(Interval(**means[f"{kind}_{name}"])) for name in MEASURES)]
        for title, kind in (("its passage given", "given"), ("all passages", "corpus"))
    ]
    yield Table(f"{means['questions']:,} questions, %", header, rows)
    by_group = [
        [group, f"{own['questions']:,}", *(f"{100 * own[f'{kind}_exact_match']:.1f}" for kind in ("given", "corpus"))]
        for group, own in means["groups"].items()
    ]
    yield Table(
        "exact match by words of the answer and by question word, %", ["", "questions", "given", "all"], by_group
    )
    if own := means.get("abstention"):
        curve = [[f"{100 * share:.0f} %", f"{100 * right:.1f}"] for share, right in own["curve"]]
        yield Table("right first phrases among the surest questions, passage given, %", ["answered", "right"], curve)

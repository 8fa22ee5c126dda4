"""Task `reading`: questions that people wrote, each with its passage, asked of that passage alone and of all passages.

Measures are those of SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250, §6.1), of the first phrase and of the best among
five: exact match, and F1, the harmonic mean of precision and recall of the words that a phrase shares with an answer.
How well the reader knows when it is right is measured by its probability of the best span: of right and wrong first
phrases, and of the right ones and the same questions read with the most similar passage that has no answer.

Shapes: q questions, p passages.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.display import Table
from npm.core.errors import CorpusError, named
from npm.core.files import digest_of
from npm.core.settings import as_json
from npm.core.types import Document, Progress, silent
from npm.corpus.questions import read_questions
from npm.corpus.settings import CorpusSettings
from npm.corpus.text import with_mask
from npm.evaluation.metrics import bootstrap_interval, exact_match, open_answer
from npm.evaluation.results import CheckRecord, Result, any_record, filler_facts
from npm.evaluation.settings import SampleSettings, ZeroShotEvaluation
from npm.indexing.build import build_index
from npm.indexing.settings import IndexBuildSettings
from npm.reading.confidence import best_span
from npm.reading.reader import Reader
from npm.retrieval.blocks import passage_of
from npm.retrieval.filler import PhraseFiller

MAX_SPAN_TOKENS, AMONG, TEXTS_AT_ONCE = 20, 5, 16
ASKING = ("who", "what", "when", "where", "which", "how", "why")
LENGTHS = {"1 to 3 words": 3, "4 to 6 words": 6, "7 and more": 10**6}
KEPT_FRACTION = 0.9
"""Of questions without an answer, those that are to be withheld."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its passage."""

    question: str
    answers: tuple[str, ...]
    passage: str  # id of its document
    groups: tuple[str, ...]  # by which it is counted


@dataclass(slots=True)
class Line:
    """The answers to a question, and the reader's probability of its best span."""

    asked: Asked
    given: tuple[str, ...] = ()
    corpus: tuple[str, ...] = ()
    probability: float = 0.0
    absent_probability: float | None = None
    flags: dict[str, float] = field(default_factory=dict)


def read_passages(files: Sequence[str], sample: SampleSettings) -> tuple[list[Asked], list[Document], Counter[str]]:
    """The sampled questions, all passages of the files, and the rows that cannot be asked by reason."""
    skipped: Counter[str] = Counter()
    passages: dict[tuple[str, str], str] = {}
    asked = []
    for _, row in read_questions(files, skipped):
        passage = passages.setdefault((row["title"], row["context"]), f"passage-{len(passages) + 1}")
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
        reasons = ", ".join(f"{count:,} rows {reason}" for reason, count in skipped.items())
        raise CorpusError(f"{named(files)}: no question has an answer in its context ({reasons}): give other files")
    random.Random(sample.seed).shuffle(asked)
    documents = [Document(name, title, text) for (title, text), name in passages.items()]
    return asked[: sample.limit], documents, skipped


def build_passages(
    documents: Sequence[Document], folder: Path, settings: ZeroShotEvaluation, progress: Progress = silent
) -> None:
    """Build an index over the passages in `folder`."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "passages.jsonl"
        rows = ({"id": each.id, "title": each.title, "text": each.text} for each in documents)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        chosen = IndexBuildSettings(
            corpus=CorpusSettings(files=[str(file)]),
            encoder=settings.encoder,
            device=settings.device,
            precision=settings.precision,
        )
        build_index(folder, chosen, progress=progress)


def evaluate_reading(
    filler: PhraseFiller,
    asked: Sequence[Asked],
    sample: SampleSettings,
    *,
    skipped: Mapping[str, int] | None = None,
    check_record: CheckRecord = any_record,
    progress: Progress = silent,
) -> Result:
    """Ask all questions of an index over their passages."""
    reader = filler.reader(filler.settings)
    facts = filler_facts(filler) | {"reader": None if reader is None else [reader.name, reader.fingerprint]}
    questions = [[each.question, list(each.answers), each.passage] for each in asked]
    record = {"task": "reading", "settings": as_json(asdict(sample)), "questions_digest": digest_of(questions), **facts}
    check_record(record)
    lines = [Line(each) for each in asked]
    for start in range(0, len(lines), TEXTS_AT_ONCE):
        some = lines[start : start + TEXTS_AT_ONCE]
        progress("questions", start, len(lines))
        for line, answer in zip(some, filler.fill([line.asked.question for line in some], k=AMONG), strict=True):
            line.corpus = tuple(phrase.phrase for phrase in answer.phrases)
        for line in some:
            answer = filler.fill(line.asked.question, k=AMONG, documents=[line.asked.passage])
            line.given = tuple(phrase.phrase for phrase in answer.phrases)
        if reader is not None:
            _read(filler, reader, some)
    for line in lines:
        for name, phrases in (("given", line.given), ("corpus", line.corpus)):
            line.flags |= _measures(name, phrases, line.asked.answers)
    means = _means(lines, sample)
    notes = [f"{count:,} rows skipped {reason}" for reason, count in (skipped or {}).items()]
    return Result(record, [_record(line) for line in lines], means, list(_tables(means)), notes)


def _read(filler: PhraseFiller, reader: Reader, lines: Sequence[Line]) -> None:
    """Add the reader's probabilities, for the right passage and for the most similar one without an answer."""
    store, lexicon = filler.index.store, filler.index.lexicon
    assert lexicon is not None, "an index of passages has their words"
    for line in lines:
        text = with_mask(line.asked.question)
        (document,) = store.find_documents([line.asked.passage]).tolist()
        blocks = np.flatnonzero(store.block_documents == document)  # i64 [blocks of the passage]
        line.probability = best_probability(reader, text, [passage_of(store, block) for block in blocks.tolist()])
        for block in lexicon.best_blocks(text, 10)[0].tolist():
            other = passage_of(store, block)
            if not any(open_answer(answer) in open_answer(other.text) for answer in line.asked.answers):
                line.absent_probability = best_probability(reader, text, [other])
                break


def best_probability(reader: Reader, text: str, passages: Sequence[Any]) -> float:
    """The probability of the most likely span in any of some passages."""
    found = reader.read([(text, passage) for passage in passages])
    return max((math.exp(best_span(scores[0].scores, MAX_SPAN_TOKENS)) for scores in found), default=0.0)


def word_f1(phrase: str, answer: str) -> float:
    """F1 of the words of a phrase and an answer, compared as `open_answer` has them.

    >>> word_f1("the Danube river", "Danube"), word_f1("Rhine", "Danube")
    (0.6666666666666666, 0.0)
    """
    found, wanted = open_answer(phrase).split(), open_answer(answer).split()
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0


def _measures(name: str, phrases: Sequence[str], answers: Sequence[str]) -> dict[str, float]:
    right = [exact_match(phrase, answers) for phrase in phrases]
    f1 = [max(word_f1(phrase, answer) for answer in answers) for phrase in phrases]
    return {
        f"{name}_exact_match": float(any(right[:1])),
        f"{name}_exact_match_{AMONG}": float(any(right)),
        f"{name}_f1": max(f1[:1], default=0.0),
        f"{name}_f1_{AMONG}": max(f1, default=0.0),
    }


def _means(lines: Sequence[Line], sample: SampleSettings) -> dict[str, Any]:
    values = {name: np.array([line.flags[name] for line in lines]) for name in lines[0].flags}  # f64 [q] each
    rng = np.random.default_rng(sample.seed)
    means: dict[str, Any] = {"questions": len(lines)}
    means |= {name: asdict(bootstrap_interval(each, rng, resamples=sample.resamples)) for name, each in values.items()}
    groups: dict[str, dict[str, Any]] = {}
    for place, names in enumerate((list(LENGTHS), [*ASKING, "other"])):
        for group in names:
            chosen = np.array([line.asked.groups[place] == group for line in lines])  # bool [q]
            if chosen.any():
                groups[group] = {"questions": int(chosen.sum())} | {
                    k: float(v[chosen].mean()) for k, v in values.items()
                }
    means["groups"] = groups
    probabilities = np.array([line.probability for line in lines])  # f64 [q]
    if probabilities.any():
        right = values["given_exact_match"] > 0  # bool [q]
        absent = np.array([line.absent_probability for line in lines if line.absent_probability is not None])
        means["abstention"] = abstention(probabilities, right, absent)
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
        threshold = float(np.quantile(absent, KEPT_FRACTION))
        kept = float((probabilities[right] > threshold).mean()) if right.any() else None
        found |= {"auroc_absent": auroc(probabilities[right], absent), "threshold": threshold, "right_kept": kept}
    return found


def auroc(positives: np.ndarray, negatives: np.ndarray) -> float | None:
    """The share of pairs in which the positive of f64 [n] is above the negative of f64 [m], ties counting half.

    >>> auroc(np.array([3.0, 1.0]), np.array([2.0, 1.0]))
    0.625
    """
    if not (len(positives) and len(negatives)):
        return None
    ordered = np.sort(negatives)  # f64 [m]
    below, up_to = (np.searchsorted(ordered, positives, side) for side in ("left", "right"))  # i64 [n] each
    return float((below + up_to).mean() / (2 * len(ordered)))


def _tables(means: Mapping[str, Any]) -> Iterator[Table]:
    header = ["", "exact match", f"among {AMONG}", "F1", f"F1 of {AMONG}"]
    names = ("exact_match", f"exact_match_{AMONG}", "f1", f"f1_{AMONG}")
    rows = [
        [title, *(_percent(means[f"{kind}_{name}"]) for name in names)]
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


def _percent(interval: Mapping[str, float]) -> str:
    return f"{100 * interval['mean']:.1f} [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def _record(line: Line) -> dict[str, Any]:
    return {
        "question": line.asked.question,
        "answers": list(line.asked.answers),
        "passage": line.asked.passage,
        "given": list(line.given),
        "corpus": list(line.corpus),
        "probability": line.probability,
        "absent_probability": line.absent_probability,
        **line.flags,
    }

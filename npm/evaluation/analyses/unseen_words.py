"""Task `unseen_words`: is a name found that stands in no training text?

From a corpus come sentences with a capitalised phrase of one to three words that stands in a few documents. The phrase
is replaced, everywhere in the passages of those documents, by an invented name, in Latin letters and in others. A small
index over these passages and many others is asked for the name that was masked in the sentence of one document; that
document itself is left out. The same sentences are asked of the unchanged passages, so that all is paired.

Shapes: n questions.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.errors import CorpusError
from npm.core.files import digest_of
from npm.core.settings import as_json
from npm.core.types import MASK_TEXT, Document, Progress, silent
from npm.corpus.blocks import BlockSettings
from npm.corpus.conditions import matching_documents, parse_conditions
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.text import folded_words
from npm.evaluation.analyses.invented_names import SCRIPTS, NameModel
from npm.evaluation.analyses.panels import KEY, Line, Panel, Point, show_panels
from npm.evaluation.held_out.article_questions import (
    MAX_BLOCK_TOKENS,
    ArticlePassages,
    check_retrievals,
    content_words,
)
from npm.evaluation.metrics import Interval, bootstrap_interval, hit_rank, wilson_interval
from npm.evaluation.report import terminal_table
from npm.evaluation.results import CheckRecord, any_record, model_facts, write_results
from npm.evaluation.settings import SampleSettings, UnseenWordsSettings
from npm.evaluation.tasks.prompts import plain_token_ids
from npm.evaluation.zero_shot.parametric import ParametricPhrases, language_model_facts
from npm.indexing.build import build_index
from npm.indexing.phrase_index import with_documents
from npm.indexing.settings import IndexBuildSettings
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import encode_queries
from npm.retrieval.settings import FillSettings

if TYPE_CHECKING:
    from rich.console import Console

    from npm.models.encoder import Encoder
    from npm.models.masked_lm import MaskedHead


TASK = "unseen_words"
ORIGINAL, OTHERS = "original", "other"
VARIANTS = (ORIGINAL, *SCRIPTS)
MOST_WORDS = 3
LEAST_SENTENCE_WORDS, MOST_SENTENCE_WORDS = 8, 40
LEAST_SHARED_WORDS = 2
"""Content words that a sentence shares, beside the phrase, with the passage of another document, at least."""
MOST_NAME_TOKENS = 32
"""Letters of a script that the tokenizer knows by letters alone are a token each."""
PIECES = ((1, "1"), (2, "2"), (3, "3"), (4, "4"), (6, "5–6"))
"""Bins of the number of tokens of a name, by the largest; the last is open."""
_RUN = re.compile(r"[A-ZÀ-Þ][\w’'-]*\w(?: [A-ZÀ-Þ][\w’'-]*\w)*")


@dataclass(frozen=True, slots=True)
class NameQuestion:
    """A sentence with a masked name, and the passages, of different documents, that the name stands in."""

    text: str
    phrase: str
    passages: tuple[Document, ...]
    asked: int
    """The one of `passages` that the sentence is from, which may not answer."""


def names_in(text: str) -> set[str]:
    """All runs of one to three words of the capitalised words that follow each other in a text.

    >>> sorted(names_in("in New York City"))
    ['City', 'New', 'New York', 'New York City', 'York', 'York City']
    """
    found: set[str] = set()
    for run in _RUN.findall(text):
        words = run.split(" ")
        found.update(" ".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, i + 1 + MOST_WORDS))
    return {name.removesuffix("'s").removesuffix("’s") for name in found}


def make_questions(
    documents: Sequence[Document], settings: UnseenWordsSettings, rng: np.random.Generator
) -> tuple[list[NameQuestion], list[Document]]:
    """Questions, no two of which share a document, and passages of other documents, as many as the settings say."""
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for number, document in enumerate(documents):
        for name in names_in(document.text):
            holders[name].append(number)
    names = sorted(name for name, held in holders.items() if 2 <= len(held) <= settings.most_documents)
    questions: list[NameQuestion] = []
    used: set[int] = set()
    for place in rng.permutation(len(names)).tolist():
        if len(questions) == settings.sentences:
            break
        held = holders[names[place]]
        question = None if used & set(held) else _question([documents[d] for d in held], names[place], settings)
        if question is not None:
            questions.append(question)
            used |= set(held)
    wanted = settings.others_per_document * sum(len(question.passages) for question in questions)
    others: list[Document] = []
    for number in rng.permutation(len(documents)).tolist():
        if len(others) < wanted and number not in used:
            others += _passages(documents[number], settings)[:1]
    return questions, others


def _passages(document: Document, settings: UnseenWordsSettings) -> list[Document]:
    article = ArticlePassages(document, settings.passage_words)
    return [replace(document, text=article.text(number)) for number in range(len(article.sentences))]


def _question(documents: Sequence[Document], name: str, settings: UnseenWordsSettings) -> NameQuestion | None:
    """The sentence that shares most words with a passage of another document; None if none shares enough."""
    passages: list[Document] = []
    for document in documents:
        article = ArticlePassages(document, settings.passage_words)
        if numbers := article.holding(name):
            passages.append(replace(document, text=article.text(min(numbers))))
    words = [content_words(f"{passage.title} {passage.text}") for passage in passages]
    best, least = None, LEAST_SHARED_WORDS
    for asked, passage in enumerate(passages):
        for sentence, at in _sentences(passage, name, settings):
            around = content_words(sentence) - content_words(name)
            shared = max((len(around & own) for other, own in enumerate(words) if other != asked), default=0)
            if shared >= least:
                text = sentence[:at] + MASK_TEXT + sentence[at + len(name) :]
                best, least = NameQuestion(text, name, tuple(passages), asked), shared + 1
    return best


def _sentences(passage: Document, name: str, settings: UnseenWordsSettings) -> Iterator[tuple[str, int]]:
    """The sentences with `name` once, behind the first word, and where it stands."""
    for start, end in (each for own in ArticlePassages(passage, settings.passage_words).sentences for each in own):
        sentence = passage.text[start:end]
        places = [match.start() for match in whole_words(name).finditer(sentence)]
        is_long_enough = LEAST_SENTENCE_WORDS <= len(sentence.split()) <= MOST_SENTENCE_WORDS
        # A run that goes on is another name: Victoria is not asked where Lake Victoria stands.
        is_whole = name in (run.removesuffix("'s").removesuffix("’s") for run in _RUN.findall(sentence))
        if len(places) == 1 and places[0] > 0 and is_long_enough and is_whole and MASK_TEXT not in sentence:
            yield sentence, places[0]


def whole_words(name: str) -> re.Pattern[str]:
    """Finds `name` where it begins and ends with a word."""
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")


def variant_passages(
    questions: Sequence[NameQuestion], names: Sequence[Mapping[str, str]], others: Sequence[Document]
) -> Iterator[dict[str, Any]]:
    """All passages as rows of a corpus: `variant` says which index each belongs to, `source` which passage it is of."""
    for number, passage in enumerate(others):
        yield {
            "id": f"{OTHERS}-{number}",
            "title": passage.title,
            "text": passage.text,
            "variant": OTHERS,
            "source": OTHERS,
        }
    for number, (question, own) in enumerate(zip(questions, names, strict=True)):
        for variant, name in own.items():
            for place, passage in enumerate(question.passages):
                # The name goes in as it is: a backslash in it would be no letter of a template.
                changed = {
                    key: whole_words(question.phrase).sub(lambda _, name=name: name, getattr(passage, key) or "")
                    for key in ("title", "text")
                }
                yield {
                    "id": f"{variant}-{number}-{place}",
                    **changed,
                    "variant": variant,
                    "source": f"{number}-{place}",
                }


@dataclass(frozen=True, slots=True)
class Found:
    """Which of the names of one variant a method found."""

    method: str
    variant: str
    ranks: np.ndarray  # i64 [n], place of the name among the phrases, from 1; 0 where it is not among them


@dataclass(frozen=True, slots=True)
class UnseenWordsResult:
    """How often invented names are found, and what is lost against the original ones."""

    questions: tuple[NameQuestion, ...]
    names: tuple[Mapping[str, str], ...]  # of each question, by variant
    pieces: Mapping[str, np.ndarray]  # by variant: i64 [n], tokens of each name
    writable: Mapping[str, np.ndarray]  # by variant: bool [n], whether the tokenizer writes each name and reads it back
    found: tuple[Found, ...]
    k: int
    sample: SampleSettings
    record: dict[str, Any]
    passage_count: int

    def losses(self) -> list[dict[str, Any]]:
        """Of each method and invented variant: names of it that were lost and gained against the original, within k.

        What is lost of names that the tokenizer cannot write is its loss; the rest is lost by the encoder.
        """
        original = {each.method: each.ranks > 0 for each in self.found if each.variant == ORIGINAL}  # bool [n] each
        rows: list[dict[str, Any]] = []
        for each in self.found:
            if each.variant != ORIGINAL:
                before, now = original[each.method], each.ranks > 0  # bool [n] each
                lost = before & ~now  # bool [n]
                unwritable = ~self.writable[each.variant]  # bool [n]
                counts = {"lost": lost, "lost_by_tokenizer": lost & unwritable, "gained": now & ~before}
                counts |= {"unwritable": unwritable}
                rows.append({"method": each.method, "variant": each.variant, "found_before": int(before.sum())})
                rows[-1] |= {name: int(mask.sum()) for name, mask in counts.items()}
        return rows

    def panels(self) -> list[Panel]:
        """Names found by variant; the difference to the original ones, question by question; names found by pieces."""
        methods = list(dict.fromkeys(each.method for each in self.found))
        best, any_of = f"{self.k} phrases", "names found"
        original = {each.method: each.ranks > 0 for each in self.found if each.variant == ORIGINAL}  # bool [n] each

        def lines(measure: Callable[[Found], Interval], variants: Sequence[str]) -> tuple[Line, ...]:
            points = [(each.method, Point(each.variant, len(each.ranks), measure(each))) for each in self.found]
            return tuple(
                Line(name, tuple(point for method, point in points if method == name and point.name in variants))
                for name in methods
            )

        def difference(each: Found) -> Interval:
            changes = (each.ranks > 0).astype(float) - original[each.method]  # f64 [n]
            rng = np.random.default_rng(self.sample.seed)
            return bootstrap_interval(changes, rng, resamples=self.sample.resamples)

        against = f"among {best}, against the original name"
        return [
            Panel("first phrase", "name", any_of, lines(lambda each: _share(each.ranks == 1), VARIANTS)),
            Panel(f"among {best}", "name", any_of, lines(lambda each: _share(each.ranks > 0), VARIANTS)),
            Panel(against, "name", "difference", lines(difference, VARIANTS[1:])),
            Panel(f"among {best}, all names", "tokens of the name", any_of, tuple(map(self._by_pieces, methods))),
        ]

    def _by_pieces(self, method: str) -> Line:
        own = [each for each in self.found if each.method == method]
        bins = np.stack([np.searchsorted([most for most, _ in PIECES], self.pieces[e.variant]) for e in own])
        hits = np.stack([each.ranks > 0 for each in own])  # bool [variants, n], as bins i64
        labels = [*(label for _, label in PIECES), f"{PIECES[-1][0] + 1}+"]
        points: list[Point] = []
        for number, label in enumerate(labels):
            if (within := bins == number).any():  # bool [variants, n]
                questions = int(within.any(axis=0).sum())  # the variants of a question are found together, or not
                share = float(hits[within].mean())
                points.append(Point(label, int(within.sum()), wilson_interval(share * questions, questions)))
        return Line(method, tuple(points))

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        counts = {"question_count": len(self.questions), "passage_count": self.passage_count, "k": self.k}
        return {**self.record, **counts, "losses": self.losses(), KEY: [asdict(panel) for panel in self.panels()]}

    def records(self) -> Iterator[dict[str, Any]]:
        """The lines of predictions.jsonl: a method, a variant and a question each."""
        for each in self.found:
            for number, question in enumerate(self.questions):
                yield {
                    "task": TASK,
                    "method": f"{each.method}, {each.variant}",
                    "id": f"{question.passages[question.asked].id}#{question.phrase}",
                    "text": question.text,
                    "gold": self.names[number][each.variant],
                    "tokens": int(self.pieces[each.variant][number]),
                    "writable": bool(self.writable[each.variant][number]),
                    "rank": int(each.ranks[number]) or None,
                    "correct": bool(each.ranks[number] == 1),
                }

    def write(self, out: str | Path) -> None:
        """Write predictions.jsonl and metrics.json to the folder `out`; see `write_results`."""
        write_results(out, record=self.record, predictions=self.records(), metrics=self.metrics())

    def show(self, console: Console) -> None:
        """Print the shares, and what is lost by whom."""
        show_panels(self.panels(), console)
        keys = ("found_before", "lost", "lost_by_tokenizer", "gained")
        rows = [[f"{row['method']}, {row['variant']}", *(str(row[key]) for key in keys)] for row in self.losses()]
        header = ["method, name", f"original found of {len(self.questions)}", "lost", "of these unwritable", "gained"]
        console.print(terminal_table(header, rows, title="What is lost, and how much of it by the tokenizer"))


def _share(hits: np.ndarray) -> Interval:
    """Of hits bool [n]."""
    return wilson_interval(int(hits.sum()), len(hits))


def evaluate_unseen_words(
    encoder: Encoder,
    corpus: CorpusSettings,
    settings: UnseenWordsSettings,
    sample: SampleSettings,
    fill: FillSettings,
    *,
    language_model: tuple[Encoder, MaskedHead] | None = None,
    check_record: CheckRecord = any_record,
    progress: Progress = silent,
) -> UnseenWordsResult:
    """Make the questions, invent names, build an index over all variants, and ask each variant alone.

    `fill.k` is how many phrases may hold the name, which may have `MOST_NAME_TOKENS` tokens unless `fill` allows
    another number; a masked `language_model` is asked the same sentences. Raises CorpusError if no question can be made
    of the documents.
    """
    if fill.max_phrase_tokens == FillSettings().max_phrase_tokens:
        fill = replace(fill, max_phrase_tokens=MOST_NAME_TOKENS)
    check_retrievals(settings.retrievals, encoder, where="unseen_words.retrievals")
    documents = list(read_corpus(corpus))
    rng = np.random.default_rng(sample.seed)
    questions, others = make_questions(documents, settings, rng)
    if not questions:
        raise CorpusError(
            f"corpus.files has no capitalized phrase in two of its {len(documents)} documents, in sentences with "
            "common words: give more documents, or raise unseen_words.most_documents"
        )
    names = _invented(documents, questions, settings, rng)
    record = _record(encoder, questions, names, others, settings, sample, fill, language_model)
    check_record(record)
    found: list[Found] = []
    with TemporaryDirectory(prefix="npmlm-unseen-") as place:
        filler = _filler_over(variant_passages(questions, names, others), encoder, fill, Path(place), progress)
        passage_count = filler.index.store.document_count
        found += _found(filler, questions, names, settings, progress)
    if language_model is not None:
        answers = ParametricPhrases("mlm", *language_model, phrase_count=fill.k).fill([each.text for each in questions])
        phrases = [[phrase.phrase for phrase in answer.phrases] for answer in answers]
        found += [Found("mlm", variant, _ranks(phrases, names, variant)) for variant in VARIANTS]
    by_variant = {variant: [own[variant] for own in names] for variant in VARIANTS}
    written = {variant: _written(encoder, own) for variant, own in by_variant.items()}
    return UnseenWordsResult(
        questions=tuple(questions),
        names=tuple(names),
        pieces={variant: pieces for variant, (pieces, _) in written.items()},
        writable={variant: writable for variant, (_, writable) in written.items()},
        found=tuple(found),
        k=fill.k,
        sample=sample,
        record=record,
        passage_count=passage_count,
    )


def _invented(
    documents: Sequence[Document],
    questions: Sequence[NameQuestion],
    settings: UnseenWordsSettings,
    rng: np.random.Generator,
) -> list[dict[str, str]]:
    """The names of each question by variant; no word of an invented one is in the corpus or in the training text."""
    known: set[str] = set()
    letters: set[str] = set()
    for document in documents:
        known.update(folded_words(f"{document.title or ''} {document.text}"))
        letters.update(word for name in names_in(document.text) for word in name.split(" "))
    if settings.trained_on:
        for document in read_corpus(CorpusSettings(files=settings.trained_on)):
            known.update(folded_words(f"{document.title or ''} {document.text}"))
    word_counts = [len(question.phrase.split(" ")) for question in questions]
    invented = NameModel(sorted(letters)).invent(rng, word_counts, known=known)
    return [{ORIGINAL: question.phrase, **own} for question, own in zip(questions, invented, strict=True)]


def _filler_over(
    rows: Iterator[dict[str, Any]], encoder: Encoder, fill: FillSettings, place: Path, progress: Progress
) -> PhraseFiller:
    file = place / "passages.jsonl"
    with file.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    blocks = BlockSettings(max_block_tokens=min(MAX_BLOCK_TOKENS, encoder.max_input_tokens))
    kept = CorpusSettings(files=[str(file)], kept_fields=["variant", "source"])
    build_index(place / "index", IndexBuildSettings(corpus=kept, blocks=blocks), encoder, progress=progress)
    return PhraseFiller.open(place / "index", encoder, settings=fill)


def _found(
    filler: PhraseFiller,
    questions: Sequence[NameQuestion],
    names: Sequence[Mapping[str, str]],
    settings: UnseenWordsSettings,
    progress: Progress,
) -> Iterator[Found]:
    """What each retrieval finds in each variant's index, which is the passages of that variant and the others."""
    index, texts = filler.index, [question.text for question in questions]
    # The sentences are the same in all variants: the name is masked.
    vectors = encode_queries(
        filler.encoder, texts, pooler=index.block_pooler, tokens_per_batch=filler.settings.tokens_per_batch
    )
    done, total = 0, len(settings.retrievals) * len(VARIANTS) * len(questions)
    for retrieval in settings.retrievals:
        for variant in VARIANTS:
            chosen = matching_documents(index.store, parse_conditions([f"variant in [{OTHERS}, {variant}]"]))
            of_variant = PhraseFiller(with_documents(index, chosen), filler.encoder, filler.settings)
            phrases: list[list[str]] = []
            for number, question in enumerate(questions):
                where = [*filler.settings.where, f"source!={number}-{question.asked}"]
                asked = replace(filler.settings, retrieval=retrieval, occurrences=0, where=where)
                (answer,) = of_variant.fill_encoded(
                    texts[number : number + 1], vectors.part(number, number + 1), settings=asked
                )
                phrases.append([phrase.phrase for phrase in answer.phrases])
                done += 1
                progress(f"{retrieval.value}, {variant}", done, total)
            yield Found(retrieval.value, variant, _ranks(phrases, names, variant))


def _ranks(phrases: Sequence[Sequence[str]], names: Sequence[Mapping[str, str]], variant: str) -> np.ndarray:
    """The place of each name among the phrases found for it, i64 [n]; 0 where it is not among them."""
    ranks = [hit_rank(own, [name[variant]]) or 0 for own, name in zip(phrases, names, strict=True)]
    return np.array(ranks, dtype=np.int64)


def _written(encoder: Encoder, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The number of tokens of each name, i64 [n], and whether they say all of it but its case and spaces, bool [n]."""
    tokens = plain_token_ids(encoder, names)
    counts = np.array([len(ids) for ids in tokens], dtype=np.int64)  # [n]
    unknown = encoder.tokenizer.unk_token_id
    read = ["" if unknown in ids else str(encoder.tokenizer.decode(ids)) for ids in tokens]
    same = ["".join(a.casefold().split()) == "".join(b.casefold().split()) for a, b in zip(read, names, strict=True)]
    return counts, np.array(same, dtype=bool)


def _record(
    encoder: Encoder,
    questions: Sequence[NameQuestion],
    names: Collection[Mapping[str, str]],
    others: Sequence[Document],
    settings: UnseenWordsSettings,
    sample: SampleSettings,
    fill: FillSettings,
    language_model: tuple[Encoder, MaskedHead] | None,
) -> dict[str, Any]:
    asked = digest_of([[asdict(each) for each in questions], list(names), [asdict(each) for each in others]])
    own = asdict(settings) | {"trained_on": [Path(file).name for file in settings.trained_on]}
    return {
        "task": TASK,
        "settings": as_json(own) | {"seed": sample.seed, "resamples": sample.resamples},
        "filling": as_json(asdict(fill)),
        "encoder": model_facts(encoder) | {"dtype": encoder.dtype_name},
        "language_model": None if language_model is None else language_model_facts(*language_model),
        "questions": asked,
    }

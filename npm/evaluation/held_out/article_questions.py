"""Task `article_questions`: questions made of held-out articles without anybody's help, asked of an index over them.

An article is cut into passages of whole sentences. A question is a sentence that names its article, stands in one
passage, and holds a name, a number or a term that stands in another passage of the article too; the latter, which
shares most words with the sentence, is the right one. The corpus that is asked has the first passage of every article
and the right ones; no passage that a question was taken from.

The index is built for the measurement alone. Questions are filled by every retrieval that is asked for, and the
right passage is looked for among the blocks as BM25 ranks them, and, where the encoder has a pooler, as block vectors
and both together do. A masked language model may answer the same questions, at one mask and at as many as the answer
has tokens; it has the question alone. A line of predictions.jsonl is one question and one measure of it, so that
`npmlm compare` tells two encoders apart question by question.

Shapes: n questions, B blocks of the index.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from npm.core.errors import CorpusError, SettingError
from npm.core.files import digest_of
from npm.core.settings import as_json
from npm.core.types import MASK_TEXT, Answer, Document, Progress, silent
from npm.corpus.blocks import BlockSettings
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.text import Stemming, sentence_bounds, words_of
from npm.evaluation.analyses.breakdown import binned_points
from npm.evaluation.analyses.panels import KEY, Line, Panel, show_panels
from npm.evaluation.metrics import Interval, bootstrap_interval, hit_rank
from npm.evaluation.report import percent, terminal_table
from npm.evaluation.results import CheckRecord, any_record, model_facts, write_results
from npm.evaluation.settings import ArticleQuestionSettings, SampleSettings
from npm.evaluation.zero_shot.open_set import answer_token_groups
from npm.evaluation.zero_shot.parametric import GoldLengthPhrases, ParametricPhrases, language_model_facts
from npm.indexing.build import build_index
from npm.indexing.settings import IndexBuildSettings
from npm.retrieval.blocks import rank_blocks, rankings
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import QueryVectors, encode_queries
from npm.retrieval.settings import Retrieval

if TYPE_CHECKING:
    from rich.console import Console

    from npm.models.encoder import Encoder
    from npm.models.masked_lm import MaskedHead
    from npm.retrieval.settings import FillSettings

TASK = "article_questions"
QUESTIONS_PER_CALL = 32
MAX_BLOCK_TOKENS = 256
AMONG = 3
"""Blocks among which the right passage is looked for, beside the first."""
FIRST = ", hit@1"
"""How the measure of the first phrase is called, behind what answers."""

_NAME_WORD = r"[A-ZÀ-Þ][\w’'-]+"
PHRASES = {
    "name": re.compile(rf"{_NAME_WORD}(?:(?: (?:of|the|de|van|von|and))? {_NAME_WORD}){{0,4}}"),
    "number": re.compile(r"(?<![\w,.])\d{3,}(?:,\d{3})*(?![\w,.]?\d)"),
    "term": re.compile(r"(?<![\w-])[a-z]{7,}(?![\w-])"),
}
MONTHS = frozenset(
    """January February March April May June July
    August September October November December""".split()  # noqa: SIM905 - a list of words
)
MIN_WORDS, MAX_WORDS = 8, 40
MIN_SHARED_WORDS = 4
"""Content words, title included, that the right passage has in common with the sentence around the mask, at least."""
MAX_SHARED_FRACTION = 0.8
"""Of the sentence's content words; above, the passage says the same sentence again."""
MAX_TERM_DOCUMENT_FRACTION = 0.01
"""A lower-case word that stands in more documents is not a term."""
MIN_PASSAGES = 3


@dataclass(frozen=True, slots=True)
class ArticleQuestion:
    """A sentence with one mask, what stood there, and the passage that says it too."""

    kind: str  # a key of PHRASES
    text: str
    answer: str
    taken_from: int  # passage of the article
    stands_in: int  # another passage of it


class ArticlePassages:
    """A document cut into passages of whole sentences; headings, sentences of less than four words, end a passage."""

    def __init__(self, document: Document, passage_words: int) -> None:
        self.document = document
        self.sentences: list[list[tuple[int, int]]] = []  # (start, end) in code points, of each passage
        words, is_open = 0, False
        for start, end in sentence_bounds(document.text).tolist():
            count = len(document.text[start:end].split())
            if count < 4:
                is_open = False
                continue
            if not is_open or words + count > passage_words:
                self.sentences.append([])
                words, is_open = 0, True
            self.sentences[-1].append((start, end))
            words += count
        self._starts = [sentences[0][0] for sentences in self.sentences]

    def text(self, number: int) -> str:
        """The text of a passage."""
        return self.document.text[self.sentences[number][0][0] : self.sentences[number][-1][1]]

    def holding(self, phrase: str) -> set[int]:
        """The passages that `phrase` stands in as whole words."""
        text, found, at = self.document.text, set(), -1
        while (at := text.find(phrase, at + 1)) >= 0:
            end = at + len(phrase)
            if text[at - 1 : at].isalnum() or text[end : end + 1].isalnum():
                continue
            number = bisect_right(self._starts, at) - 1
            if number >= 0 and end <= self.sentences[number][-1][1]:
                found.add(number)
        return found


def make_questions(
    documents: Sequence[Document], settings: ArticleQuestionSettings
) -> tuple[list[tuple[Document, ArticleQuestion]], list[Document]]:
    """Questions with the article each was taken from, and the passages that are asked, as documents `ID#NUMBER`.

    The same documents and settings give the same questions.
    """
    rng = np.random.default_rng(settings.seed)
    common = common_words(documents)
    articles = [ArticlePassages(document, settings.passage_words) for document in documents if document.title]
    articles = [article for article in articles if len(article.sentences) >= MIN_PASSAGES]
    asked: list[tuple[ArticlePassages, list[ArticleQuestion]]] = []
    left = settings.question_count
    for number in rng.permutation(len(articles)).tolist():
        candidates = list(candidate_questions(articles[number], common)) if left else []
        order = rng.permutation(len(candidates)).tolist()
        chosen = compatible([candidates[place] for place in order], most=min(left, settings.questions_per_article))
        asked.append((articles[number], chosen))
        left -= len(chosen)
    questions = [(article.document, question) for article, chosen in asked for question in chosen]
    passages = [
        Document(id=f"{article.document.id}#{number}", title=article.document.title, text=article.text(number))
        for article, chosen in asked
        for number in sorted({0, *(question.stands_in for question in chosen)})
    ]
    return questions, passages


def compatible(candidates: Sequence[ArticleQuestion], *, most: int) -> list[ArticleQuestion]:
    """The first `most` of an article's candidates of which none was taken from a passage that another stands in."""
    chosen: list[ArticleQuestion] = []
    for one in candidates:
        clashes = any(
            one.taken_from in (other.taken_from, other.stands_in)
            or one.stands_in == other.taken_from
            or one.answer == other.answer
            for other in chosen
        )
        if not clashes and len(chosen) < most:
            chosen.append(one)
    return chosen


def candidate_questions(article: ArticlePassages, common: frozenset[str]) -> Iterator[ArticleQuestion]:
    """All questions that can be made of an article, in its order; none from its first passage."""
    title = re.sub(r"\s*\(.*\)", "", article.document.title or "")
    title_words = content_words(title)
    passage_words = [content_words(f"{title} {article.text(number)}") for number in range(len(article.sentences))]
    for number, sentences in enumerate(article.sentences[1:], start=1):
        for start, end in sentences:
            sentence = article.document.text[start:end]
            if not (MIN_WORDS <= len(sentence.split()) <= MAX_WORDS and names_title(sentence, title)):
                continue
            if sentence[-1] != "." or MASK_TEXT in sentence:
                continue
            words = content_words(sentence)
            for kind, (phrase, at) in phrases_of(sentence, title_words, common):
                around = words - content_words(phrase)
                shared = {other: len(around & passage_words[other]) for other in article.holding(phrase) - {number}}
                if not shared:
                    continue
                best = max(shared, key=lambda other: (shared[other], -other))
                if MIN_SHARED_WORDS <= shared[best] <= MAX_SHARED_FRACTION * len(around):
                    text = sentence[:at] + MASK_TEXT + sentence[at + len(phrase) :]
                    yield ArticleQuestion(kind, text, phrase, number, best)


def phrases_of(
    sentence: str, title_words: frozenset[str], common: frozenset[str]
) -> Iterator[tuple[str, tuple[str, int]]]:
    """(kind, (phrase, first character)) of what may be masked: nothing at the start, of the title, or said twice."""
    for kind, pattern in PHRASES.items():
        for match in pattern.finditer(sentence):
            phrase = match[0].removesuffix("'s").removesuffix("’s")
            words = content_words(phrase)
            if match.start() == 0 or not words or words & title_words or sentence.count(phrase) > 1:
                continue
            if (kind == "term" and phrase in common) or (kind == "name" and (len(phrase) < 4 or phrase in MONTHS)):
                continue
            yield kind, (phrase, match.start())


def names_title(sentence: str, title: str) -> bool:
    """Whether a sentence names its article: by its title, or a name of several words by its last."""
    last = title.split()[-1] if " " in title else title
    return title in sentence or (last[:1].isupper() and last in sentence)


def content_words(text: str) -> frozenset[str]:
    """The words of `text` without stop-words and plural endings."""
    return frozenset(words_of(text, Stemming.plural, keep_stopwords=False))


def common_words(documents: Sequence[Document]) -> frozenset[str]:
    """The lower-case words that stand in too many documents to be terms."""
    counts: Counter[str] = Counter()
    for document in documents:
        counts.update(set(PHRASES["term"].findall(document.text)))
    most = MAX_TERM_DOCUMENT_FRACTION * len(documents)
    return frozenset(word for word, count in counts.items() if count > most)


@dataclass(frozen=True, slots=True)
class ArticleQuestionResult:
    """What share of the questions each measure found right."""

    shares: Mapping[str, Interval]
    by_tokens: Panel  # the first phrase, by tokens of the answer
    lines: tuple[Mapping[str, Any], ...]
    record: dict[str, Any]  # settings and fingerprints: what the numbers depend on
    question_count: int
    filled_count: int
    passage_count: int

    def metrics(self) -> dict[str, Any]:
        """As stored in metrics.json."""
        counts = {name: getattr(self, name) for name in ("question_count", "filled_count", "passage_count")}
        measures = {name: asdict(share) for name, share in self.shares.items()}
        return {**self.record, **counts, "measures": measures, KEY: [asdict(self.by_tokens)]}

    def write(self, out: str | Path) -> None:
        """Write predictions.jsonl and metrics.json to the folder `out`; see `write_results`."""
        write_results(out, record=self.record, predictions=self.lines, metrics=self.metrics())

    def show(self, console: Console) -> None:
        """Print the shares."""
        title = (
            f"{self.question_count} questions over {self.passage_count} passages of held-out articles, "
            f"{self.filled_count} of them filled"
        )
        rows = [[name, percent(share)] for name, share in self.shares.items()]
        console.print(terminal_table(["measure", "right, % [95 %]"], rows, title=title))
        show_panels([self.by_tokens], console)


def evaluate_article_questions(
    encoder: Encoder,
    corpus: CorpusSettings,
    settings: ArticleQuestionSettings,
    sample: SampleSettings,
    fill: FillSettings,
    *,
    language_model: tuple[Encoder, MaskedHead] | None = None,
    check_record: CheckRecord = any_record,
    progress: Progress = silent,
) -> ArticleQuestionResult:
    """Make the questions, build an index over the passages, and ask them with each of `settings.retrievals`.

    `fill` decides all else of how they are filled, its k which hits count beside the first. A masked `language_model`
    is asked those that are filled. Raises CorpusError if no question can be made of the documents.
    """
    check_retrievals(settings.retrievals, encoder, where="article_questions.retrievals")
    questions, passages = make_questions(list(read_corpus(corpus)), settings)
    if not questions:
        raise CorpusError(
            f"corpus.files: no title is named in articles of {MIN_PASSAGES} passages of {settings.passage_words} "
            "words: give longer articles"
        )
    record = _record(encoder, questions, passages, settings, sample, fill)
    if language_model is not None:
        record["language_model"] = language_model_facts(*language_model)
    check_record(record)
    with TemporaryDirectory(prefix="npmlm-questions-") as place:
        filler = _filler_over(passages, encoder, fill, Path(place), progress)
        found = dict(_found(filler, questions, settings, progress))
    filled = [question for _, question in questions[: settings.filled_questions]]
    if language_model is not None:
        found |= _predicted(language_model, filled, fill.k, progress)
    # All measures draw with the same generator, so that rows can be compared.
    shares = {
        name: bootstrap_interval(hits, np.random.default_rng(sample.seed), resamples=sample.resamples)
        for name, hits in found.items()
    }
    by_tokens = _by_tokens(found, answer_token_groups([[question.answer] for question in filled], encoder))
    return ArticleQuestionResult(
        shares, by_tokens, tuple(_lines(found, questions)), record, len(questions), len(filled), len(passages)
    )


def _lines(
    found: Mapping[str, np.ndarray], questions: Sequence[tuple[Document, ArticleQuestion]]
) -> Iterator[dict[str, Any]]:
    """The lines of predictions.jsonl."""
    for name, hits in found.items():
        for number, (article, question) in enumerate(questions[: len(hits)]):
            yield {
                "task": TASK,
                "method": name,
                "id": f"{article.id}#{question.taken_from}",
                "text": question.text,
                "gold": question.answer,
                "kind": question.kind,
                "correct": bool(hits[number]),
            }


def check_retrievals(retrievals: Sequence[Retrieval], encoder: Encoder, *, where: str) -> None:
    """Raise SettingError unless there are ways to answer, each of which an index that `encoder` builds has."""
    if retrievals and (Retrieval.blocks not in retrievals or encoder.block_pooler is not None):
        return
    raise SettingError(
        f"{where} must be one or more of dense, bm25, hybrid and, if the encoder has sentence vectors, blocks, "
        f"got [{', '.join(each.value for each in retrievals)}]"
    )


def _by_tokens(found: Mapping[str, np.ndarray], groups: Sequence[str]) -> Panel:
    """How often the first phrase is right where the answer has so many tokens."""
    labels = sorted(set(groups))
    numbers = np.array([labels.index(group) for group in groups])  # i64 [n]
    firsts = {name.removesuffix(FIRST): hits == 1 for name, hits in found.items() if name.endswith(FIRST)}
    lines = tuple(Line(name, binned_points(right, numbers, labels)) for name, right in firsts.items())
    return Panel("first phrase by tokens of the answer", "tokens", "right", lines)


def _predicted(
    language_model: tuple[Encoder, MaskedHead], questions: Sequence[ArticleQuestion], k: int, progress: Progress
) -> Iterator[tuple[str, np.ndarray]]:
    """What a masked language model answers, as `_found`: `mlm` one token, `mlm-n` as many as the answer has."""
    texts, golds = [question.text for question in questions], [[question.answer] for question in questions]
    words = ParametricPhrases("mlm", *language_model, phrase_count=k).fill(texts)
    yield from _hits("mlm", words, golds, k)
    as_long = GoldLengthPhrases(*language_model).fill_to_length(texts, golds, step="questions mlm-n", progress=progress)
    yield next(_hits(GoldLengthPhrases.name, as_long, golds, k))  # it gives one phrase


def _hits(
    name: str, answers: Sequence[Answer], golds: Sequence[Sequence[str]], k: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Which of n questions have a gold answer first, and which among k phrases: f64 [n] of 0 and 1 each."""
    ranks = [
        hit_rank((phrase.phrase for phrase in answer.phrases), gold) or k + 1
        for answer, gold in zip(answers, golds, strict=True)
    ]
    places = np.array(ranks)  # i64 [n]
    yield f"{name}{FIRST}", (places <= 1).astype(float)
    yield f"{name}, hit@{k}", (places <= k).astype(float)


def _record(
    encoder: Encoder,
    questions: Sequence[tuple[Document, ArticleQuestion]],
    passages: Sequence[Document],
    settings: ArticleQuestionSettings,
    sample: SampleSettings,
    fill: FillSettings,
) -> dict[str, Any]:
    asked = digest_of([[asdict(question) for _, question in questions], [asdict(passage) for passage in passages]])
    return {
        "task": TASK,
        "settings": as_json(asdict(settings)) | {"seed": sample.seed, "resamples": sample.resamples},
        "filling": as_json(asdict(fill)),
        "encoder": model_facts(encoder) | {"dtype": encoder.dtype_name},
        "questions": asked,
    }


def _filler_over(
    passages: Sequence[Document], encoder: Encoder, fill: FillSettings, place: Path, progress: Progress
) -> PhraseFiller:
    file = place / "passages.jsonl"
    with file.open("w", encoding="utf-8") as out:
        for passage in passages:
            out.write(json.dumps({"id": passage.id, "title": passage.title, "text": passage.text}) + "\n")
    blocks = BlockSettings(max_block_tokens=min(MAX_BLOCK_TOKENS, encoder.max_input_tokens))
    built = IndexBuildSettings(corpus=CorpusSettings(files=[str(file)]), blocks=blocks)
    build_index(place / "index", built, encoder, progress=progress)
    return PhraseFiller.open(place / "index", encoder, settings=fill)


def _found(
    filler: PhraseFiller,
    questions: Sequence[tuple[Document, ArticleQuestion]],
    settings: ArticleQuestionSettings,
    progress: Progress,
) -> Iterator[tuple[str, np.ndarray]]:
    """The name of each measure, and which of the first questions it found right: f64 [n or fewer] of 0 and 1."""
    texts = [question.text for _, question in questions]
    pooler = filler.index.block_pooler
    # Once for all that is measured.
    vectors = encode_queries(filler.encoder, texts, pooler=pooler, tokens_per_batch=filler.settings.tokens_per_batch)
    yield from _ranked_right(filler, questions, vectors)
    k, count = filler.settings.k, min(len(questions), settings.filled_questions)
    for retrieval in settings.retrievals:
        chosen = replace(filler.settings, retrieval=retrieval, occurrences=0)
        answers: list[Answer] = []
        for first in range(0, count, QUESTIONS_PER_CALL):
            stop = min(first + QUESTIONS_PER_CALL, count)
            answers += filler.fill_encoded(texts[first:stop], vectors.part(first, stop), settings=chosen)
            progress(f"questions {retrieval.value}", len(answers), count)
        yield from _hits(retrieval.value, answers, [[question.answer] for _, question in questions[:count]], k)


def _ranked_right(
    filler: PhraseFiller, questions: Sequence[tuple[Document, ArticleQuestion]], vectors: QueryVectors
) -> Iterator[tuple[str, np.ndarray]]:
    """Which questions have a block of the right passage first, and among the best: by BM25, by vectors, by both."""
    index, settings = filler.index, replace(filler.settings, bm25_blocks=AMONG)
    texts = [question.text for _, question in questions]
    names = [f"{article.id}#{question.stands_in}" for article, question in questions]
    documents = index.store.find_documents(names)  # i64 [n]
    for name, retrieval in rankings(index).items():
        hits = rank_blocks(index, texts, vectors.sentences, replace(settings, retrieval=retrieval))
        right = hits.found & (index.store.block_documents[hits.blocks] == documents[:, None])  # bool [n, AMONG]
        yield f"blocks by {name}, first", right[:, 0].astype(float)
        yield f"blocks by {name}, among {AMONG}", right.any(axis=1).astype(float)

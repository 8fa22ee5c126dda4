"""Open task made of articles: python scripts/make_article_questions.py OUT FILE [COUNT [SEED]]

A question is a sentence that names its article and has one phrase masked which occurs in another passage of the article
too, one that shares words with the sentence. Style `copy` leaves the sentence in the corpus; `paraphrase` omits its
passage, so that the other one has to answer. Kinds: complete quantities (`45 days`, `$15,000`, `12.5 million euros`),
dates with a month (`January 2, 2031`), names, and runs of lower-case words between function words; each style of each
kind has an equal part of COUNT (800), as far as the articles go. OUT gets questions.jsonl, corpus.jsonl (the first
passage of each article and those that answer) and task.yaml, for

    npmlm build "corpus.files=[OUT/corpus.jsonl]" index=OUT/index
    npmlm evaluate task=OUT/task.yaml index=OUT/index out=OUT/evaluation "method=[npm-hybrid]"
"""

import json
import re
import sys
from calendar import month_name
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from npm.core.types import MASK_TEXT, Document
from npm.corpus.documents import read_corpus
from npm.corpus.settings import CorpusSettings
from npm.corpus.text import STOP_WORDS, Stemming, sentence_bounds, words_of

TASK = "suite: open\nname: article_questions\ndata: {file: questions.jsonl}\ntemplate: '{{ text }}'\n"
STYLES = ("copy", "paraphrase")
PASSAGE_WORDS, LEAST_PASSAGES, QUESTIONS_PER_ARTICLE = 90, 3, 2
SENTENCE_WORDS = range(8, 41)
LEAST_SHARED_WORDS, LARGEST_SHARED_FRACTION = 4, 0.8
"""Content words around the mask that the other passage has too: fewer is another matter, more the sentence again."""
LARGEST_DOCUMENT_FRACTION = 0.01
"""A lower-case word of more documents than this is too common to be asked for alone."""

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?: (?:thousand|million|billion|trillion))?"
_UNIT = (
    r"%|°[CF]|per ?cent|(?:second|minute|hour|day|week|month|year|yard|mile|acre|tonne|ton|pound|dollar|euro|vote|seat|"
    r"point|game|student|soldier|inhabitant|(?:square |cubic )?(?:kilo|centi|milli)?met(?:er|re)|hectare|(?:kilo)?gram|"
    r"lit(?:er|re)|watt)s?|feet|foot|inch(?:es)?|people|men|species|[kmc]m²?|kg|mph|MW|MHz"
)
_MONTH = f"(?:{'|'.join(month_name[1:])})"
_DATE = rf"\d{{1,2}} {_MONTH}(?:,? \d{{4}})?|{_MONTH} (?:\d{{1,2}}, )?\d{{4}}|{_MONTH} \d{{1,2}}"
_NAME_WORD = r"[A-ZÀ-Þ][\w’'-]+"
_STOP = rf"(?:{'|'.join(sorted(STOP_WORDS))})"
_LOWER_WORD = rf"(?!{_STOP}\b)[a-z]+(?:-[a-z]+)*"
PHRASES = {
    "number": re.compile(rf"(?<![\w,.$£€/–-])((?:[$£€]{_NUMBER}|{_NUMBER} ?(?:{_UNIT})))(?![\w²/-])"),
    "date": re.compile(rf"(?<![\w–-])(?<!\d )({_DATE})(?!\w|,? \d|[–-]\d)"),
    "name": re.compile(rf"({_NAME_WORD}(?:(?: (?:of|the|de|van|von|and))? {_NAME_WORD}){{0,7}})"),
    "phrase": re.compile(rf"(?:[,;:(]|\b{_STOP}) ?\b({_LOWER_WORD}(?: {_LOWER_WORD}){{0,2}})(?= {_STOP}\b|[,;:.)])"),
}


@dataclass(frozen=True, slots=True)
class Question:
    """A masked sentence; `document` and `removed` are passages `ID#NUMBER`, the right one and one left out or None."""

    text: str
    answers: list[str]
    style: str
    kind: str
    document: str
    removed: str | None


def content_words(text: str) -> frozenset[str]:
    """Words without function words and plural endings."""
    return frozenset(words_of(text, Stemming.plural, keep_stopwords=False))


def passages_of(text: str) -> list[list[str]]:
    """Sentences of each passage; headings, sentences of fewer than four words, end a passage and are left out."""
    passages: list[list[str]] = [[]]
    for start, end in sentence_bounds(text).tolist():
        sentence = text[start:end]
        if len(sentence.split()) < 4:
            passages.append([])
        elif passages[-1] and len(" ".join([*passages[-1], sentence]).split()) > PASSAGE_WORDS:
            passages.append([sentence])
        else:
            passages[-1].append(sentence)
    return [sentences for sentences in passages if sentences]


def candidates(document: Document, passages: list[list[str]], common: set[str]) -> Iterator[Question]:
    """All questions of one article as paraphrases, from its second passage on."""
    title = re.sub(r"\s*\(.*\)", "", document.title or "")
    last, title_words = title.split()[-1] if title.split() else title, content_words(title)
    texts = [" ".join(sentences) for sentences in passages]
    passage_words = [content_words(f"{title} {text}") for text in texts]
    for number, sentence in ((place, each) for place in range(1, len(passages)) for each in passages[place]):
        named = title in sentence or (last[:1].isupper() and last in sentence)
        if not named or len(sentence.split()) not in SENTENCE_WORDS or sentence[-1] != "." or MASK_TEXT in sentence:
            continue
        for kind, pattern in PHRASES.items():
            for match in pattern.finditer(sentence):
                phrase = match[1].removesuffix("'s").removesuffix("’s")
                words = content_words(phrase)
                if match.start(1) == 0 or not words or words & title_words or sentence.count(phrase) > 1:
                    continue
                if (kind == "phrase" and phrase in common) or (kind == "name" and phrase in month_name):
                    continue
                around = content_words(sentence) - words
                within = re.compile(rf"(?<!\w){re.escape(phrase)}(?!\w)")
                others = [place for place, text in enumerate(texts) if place != number and within.search(text)]
                count, best = max(((len(around & passage_words[place]), -place) for place in others), default=(0, 0))
                if LEAST_SHARED_WORDS <= count <= LARGEST_SHARED_FRACTION * len(around):
                    text = sentence[: match.start(1)] + MASK_TEXT + sentence[match.start(1) + len(phrase) :]
                    yield Question(
                        text, [phrase], "paraphrase", kind, f"{document.id}#{-best}", f"{document.id}#{number}"
                    )


def make_task(documents: list[Document], count: int, seed: int) -> tuple[list[Question], list[Document]]:
    """Questions and the passages that are asked, the same for the same documents."""
    rng = np.random.default_rng(seed)
    counts = Counter(word for document in documents for word in set(re.findall(r"[a-z]+", document.text)))
    common = {word for word, n in counts.items() if n > LARGEST_DOCUMENT_FRACTION * len(documents) or len(word) < 7}
    remaining = dict.fromkeys(product(PHRASES, STYLES), count // (len(PHRASES) * len(STYLES)))
    questions: list[Question] = []
    corpus: list[Document] = []
    for document in (documents[place] for place in rng.permutation(len(documents)).tolist()):
        passages = passages_of(document.text)
        if not document.title or len(passages) < LEAST_PASSAGES:
            continue
        found = list(candidates(document, passages, common))
        order = rng.permutation(len(found)).tolist()
        chosen: list[Question] = []
        for question in sorted((found[place] for place in order), key=lambda each: [*PHRASES].index(each.kind)):
            style = max(STYLES, key=lambda style: remaining[question.kind, style])
            if style == "copy":  # the right passage is the sentence's own
                question = replace(question, style=style, document=question.removed, removed=None)
            clashes = any(
                question.answers == other.answers
                or question.document == other.removed
                or (question.removed or "") in (other.document, other.removed)
                for other in chosen
            )
            if remaining[question.kind, style] and not clashes and len(chosen) < QUESTIONS_PER_ARTICLE:
                chosen.append(question)
                remaining[question.kind, style] -= 1
        questions += chosen
        kept = {f"{document.id}#0", *(each.document for each in chosen)}
        texts = {f"{document.id}#{number}": " ".join(sentences) for number, sentences in enumerate(passages)}
        corpus += [Document(id=name, title=document.title, text=texts[name]) for name in texts if name in kept]
    return questions, corpus


def main(out: str, file: str, count: str = "800", seed: str = "0") -> None:
    """Write the task."""
    questions, corpus = make_task(list(read_corpus(CorpusSettings(files=[file]))), int(count), int(seed))
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    asked = [{"id": place} | asdict(each) for place, each in enumerate(questions)]
    passages = [{"id": each.id, "title": each.title, "text": each.text} for each in corpus]
    for name, rows in {"questions": asked, "corpus": passages}.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, "utf-8")
    (folder / "task.yaml").write_text(TASK, "utf-8")
    kinds = Counter(f"{each.kind} {each.style}" for each in questions)
    sys.stdout.write(f"{len(questions)} questions over {len(corpus)} passages: {json.dumps(kinds)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

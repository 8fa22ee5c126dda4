"""Open task made of held-out articles: python scripts/make_held_out_questions.py OUT FILE [COUNT [SEED]]

An article is cut into passages of complete sentences. A question is a sentence that names its article, is in one
passage, and contains a name, a number or a term that occurs in another passage of the article too; of those passages
the one that shares most words with the sentence is the right one (`document`). The corpus has the first passage of
every article and the right ones, and no passage that a question was taken from. The same documents, COUNT (2000) and
SEED (0) give the same task. OUT gets questions.jsonl, corpus.jsonl and task.yaml, for

    npmlm build "corpus.files=[OUT/corpus.jsonl]" index=OUT/index blocks.max_block_tokens=256
    npmlm evaluate task=OUT/task.yaml index=OUT/index out=OUT/evaluation "method=[npm-dense,npm-hybrid]"
    python scripts/question_table.py OUT/questions.jsonl OUT/evaluation

scripts/make_article_questions.py makes harder ones, by style and with phrases of several words.
"""

import json
import re
import sys
from bisect import bisect_right
from calendar import month_name
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npm.core.types import MASK_TEXT, Document
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.text import Stemming, sentence_bounds, words_of

TASK = (
    "suite: open\nname: held_out_questions\ndata: {file: questions.jsonl, columns: {group: kind}}\n"
    "template: '{{ text }}'\n"
)
PASSAGE_WORDS, MIN_PASSAGES, QUESTIONS_PER_ARTICLE = 90, 3, 2
SENTENCE_WORDS = range(8, 41)
MIN_SHARED_WORDS = 4
"""Content words, title included, that the right passage has in common with the sentence around the mask, at least."""
MAX_SHARED_FRACTION = 0.8
"""Of the sentence's content words; above, the passage repeats the sentence."""
MAX_TERM_DOCUMENT_FRACTION = 0.01
"""A lower-case word of more documents is no term."""
_NAME_WORD = r"[A-ZÀ-Þ][\w’'-]+"
PHRASES = {
    "name": re.compile(rf"{_NAME_WORD}(?:(?: (?:of|the|de|van|von|and))? {_NAME_WORD}){{0,4}}"),
    "number": re.compile(r"(?<![\w,.])\d{3,}(?:,\d{3})*(?![\w,.]?\d)"),
    "term": re.compile(r"(?<![\w-])[a-z]{7,}(?![\w-])"),
}


@dataclass(frozen=True, slots=True)
class Question:
    """A sentence with one mask, what was there, and two passages of its article by number."""

    kind: str  # a key of PHRASES
    text: str
    answer: str
    source: int
    right: int


class Article:
    """A document cut into passages; headings, sentences of fewer than four words, end a passage and are left out."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.passages: list[list[tuple[int, int]]] = []  # (start, end) of each sentence, in code points
        words, is_open = 0, False
        for start, end in sentence_bounds(document.text).tolist():
            count = len(document.text[start:end].split())
            if count < 4:
                is_open = False
                continue
            if not is_open or words + count > PASSAGE_WORDS:
                self.passages.append([])
                words, is_open = 0, True
            self.passages[-1].append((start, end))
            words += count
        self.starts = [sentences[0][0] for sentences in self.passages]

    def text(self, number: int) -> str:
        """Text of a passage."""
        return self.document.text[self.passages[number][0][0] : self.passages[number][-1][1]]

    def with_phrase(self, phrase: str) -> set[int]:
        """Passages that contain `phrase` as complete words."""
        text, found, at = self.document.text, set(), -1
        while (at := text.find(phrase, at + 1)) >= 0:
            end = at + len(phrase)
            if text[at - 1 : at].isalnum() or text[end : end + 1].isalnum():
                continue
            number = bisect_right(self.starts, at) - 1
            if number >= 0 and end <= self.passages[number][-1][1]:
                found.add(number)
        return found

    def candidates(self, common: frozenset[str]) -> Iterator[Question]:
        """All questions, in the order of the text; none from the first passage."""
        title = re.sub(r"\s*\(.*\)", "", self.document.title or "")
        last, title_words = title.split()[-1] if " " in title else title, content_words(title)
        passage_words = [content_words(f"{title} {self.text(number)}") for number in range(len(self.passages))]
        for number, (start, end) in ((n, each) for n in range(1, len(self.passages)) for each in self.passages[n]):
            sentence = self.document.text[start:end]
            is_named = title in sentence or (last[:1].isupper() and last in sentence)
            if not is_named or len(sentence.split()) not in SENTENCE_WORDS:
                continue
            if sentence[-1] != "." or MASK_TEXT in sentence:
                continue
            words = content_words(sentence)
            for kind, phrase, at in phrases_of(sentence, title_words, common):
                around = words - content_words(phrase)
                shared = {other: len(around & passage_words[other]) for other in self.with_phrase(phrase) - {number}}
                best = max(shared, key=lambda other: (shared[other], -other), default=number)
                if MIN_SHARED_WORDS <= shared.get(best, 0) <= MAX_SHARED_FRACTION * len(around):
                    text = sentence[:at] + MASK_TEXT + sentence[at + len(phrase) :]
                    yield Question(kind, text, phrase, number, best)


def phrases_of(sentence: str, title_words: frozenset[str], common: frozenset[str]) -> Iterator[tuple[str, str, int]]:
    """Kind, phrase and first character of what may be masked: nothing at the start, of the title, or repeated."""
    for kind, pattern in PHRASES.items():
        for match in pattern.finditer(sentence):
            phrase = match[0].removesuffix("'s").removesuffix("’s")
            words = content_words(phrase)
            if match.start() == 0 or not words or words & title_words or sentence.count(phrase) > 1:
                continue
            if (kind == "term" and phrase in common) or (kind == "name" and (len(phrase) < 4 or phrase in month_name)):
                continue
            yield kind, phrase, match.start()


def content_words(text: str) -> frozenset[str]:
    """Words without function words and plural endings."""
    return frozenset(words_of(text, Stemming.plural, keep_stopwords=False))


def compatible(candidates: Sequence[Question], limit: int) -> list[Question]:
    """The first `limit` candidates of which none was taken from the right passage of another."""
    chosen: list[Question] = []
    for one in candidates:
        clashes = any(
            one.source in (other.source, other.right) or one.right == other.source or one.answer == other.answer
            for other in chosen
        )
        if not clashes and len(chosen) < limit:
            chosen.append(one)
    return chosen


def make_task(documents: Sequence[Document], count: int, seed: int) -> tuple[list[dict], list[dict]]:
    """Rows of the questions and of the corpus."""
    rng = np.random.default_rng(seed)
    counts = Counter(term for document in documents for term in set(PHRASES["term"].findall(document.text)))
    common = frozenset(term for term, n in counts.items() if n > MAX_TERM_DOCUMENT_FRACTION * len(documents))
    articles = [Article(document) for document in documents if document.title]
    articles = [article for article in articles if len(article.passages) >= MIN_PASSAGES]
    questions: list[dict] = []
    corpus: list[dict] = []
    for article in (articles[number] for number in rng.permutation(len(articles)).tolist()):
        remaining, name = count - len(questions), article.document.id
        candidates = list(article.candidates(common)) if remaining else []
        order = rng.permutation(len(candidates)).tolist()
        chosen = compatible([candidates[place] for place in order], min(remaining, QUESTIONS_PER_ARTICLE))
        for each in chosen:
            row = {"text": each.text, "answers": [each.answer], "kind": each.kind}
            questions.append(row | {"document": f"{name}#{each.right}", "source": f"{name}#{each.source}"})
        for number in sorted({0, *(each.right for each in chosen)}):
            corpus.append({"id": f"{name}#{number}", "title": article.document.title, "text": article.text(number)})
    return questions, corpus


def main(out: str, file: str, count: str = "2000", seed: str = "0") -> None:
    """Write the task."""
    questions, corpus = make_task(list(read_corpus(CorpusSettings(files=[file]))), int(count), int(seed))
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in {"questions": questions, "corpus": corpus}.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, "utf-8")
    (folder / "task.yaml").write_text(TASK, "utf-8")
    sys.stdout.write(f"{len(questions)} questions over {len(corpus)} passages\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

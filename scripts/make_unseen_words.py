"""Open tasks about unseen names: python scripts/make_unseen_words.py OUT FILE [COUNT [SEED [TRAINED_ON …]]]

From FILE come COUNT (300) sentences with a capitalized phrase of one to three words that occurs in two to eight
documents. In the passages of these an invented name replaces it: letters drawn from the trigrams of the names in FILE,
no word of it in FILE or in the files TRAINED_ON; in Latin letters, with accents, and in Greek, Cyrillic and Hebrew
ones. The name is masked in the sentence of one document, which may not answer. OUT gets other.jsonl, passages of other
documents, and per VARIANT (of SCRIPTS, or original) VARIANT.jsonl, VARIANT-questions.jsonl and VARIANT.yaml, for

    npmlm build "corpus.files=[OUT/other.jsonl,OUT/VARIANT.jsonl]" corpus.kept_fields=[source] index=OUT/VARIANT
    npmlm evaluate task=OUT/VARIANT.yaml index=OUT/VARIANT out=OUT/results/VARIANT
"""

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from npm.core.errors import CorpusError
from npm.core.types import MASK_TEXT, Document
from npm.corpus.documents import read_corpus
from npm.corpus.settings import CorpusSettings
from npm.corpus.text import Stemming, folded_words, sentence_bounds, words_of

TASK = """suite: open
name: unseen_words_{variant}
data: {{file: {variant}-questions.jsonl}}
template: "{{{{ text }}}}"
where: source!={{source}}
fill: {{max_phrase_tokens: 32}}
"""
LATIN = "abcdefghijklmnopqrstuvwxyz"
SCRIPTS = {
    "latin": str.maketrans({}),
    "accented": str.maketrans("aceinosuyz", "áčéíñóšúýž"),
    "greek": str.maketrans(LATIN, "αβψδεφγηιξκλμνοπθρστυωχζϋζ"),
    "cyrillic": str.maketrans(LATIN, "абцдефгхижклмнопярстувшюыз"),
    "hebrew": str.maketrans(LATIN, "אבצדהפגחיזכלמנועקרסתוףשטםן"),
}
"""How the letters of an invented name are written, one for one; they are not meant to sound alike."""
PASSAGE_WORDS, OTHERS_PER_PASSAGE, DOCUMENTS_OF_A_NAME, MAX_DRAWS = 90, 20, range(2, 9), 10_000
SENTENCE_WORDS, MIN_SHARED_WORDS, NAME_LETTERS = range(8, 41), 2, range(5, 11)
RUN = re.compile(r"[A-ZÀ-Þ][\w’'-]*\w(?: [A-ZÀ-Þ][\w’'-]*\w)*")


@dataclass(frozen=True, slots=True)
class Question:
    """A sentence with a masked name, the passages of different documents with it, and which one it is from."""

    text: str
    name: str
    passages: list[Document]
    asked: int


def names_in(text: str) -> set[str]:
    """All runs of one to three of the capitalized words that follow each other in a text."""
    runs = [run.split(" ") for run in RUN.findall(text)]
    spans = (
        " ".join(run[i:j]) for run in runs for i in range(len(run)) for j in range(i + 1, min(i + 3, len(run)) + 1)
    )
    return {name.removesuffix("'s").removesuffix("’s") for name in spans}


def passages_of(document: Document) -> list[Document]:
    """Passages of complete sentences; headings, sentences of fewer than four words, end one and are left out."""
    passages: list[list[int]] = []  # start, end and words of each
    is_open = False
    for start, end in sentence_bounds(document.text).tolist():
        count = len(document.text[start:end].split())
        if count >= 4 and is_open and passages[-1][2] + count <= PASSAGE_WORDS:
            passages[-1] = [passages[-1][0], end, passages[-1][2] + count]
        elif count >= 4:
            passages.append([start, end, count])
        is_open = count >= 4
    return [replace(document, text=document.text[start:end]) for start, end, _ in passages]


def with_name(name: str) -> re.Pattern[str]:
    """Finds `name` where it begins and ends with a word."""
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")


def question_about(documents: Iterable[Document], name: str) -> Question | None:
    """The sentence that shares most words with a passage of another document, or None if none shares enough."""
    pattern = with_name(name)
    found = (
        next((each for each in passages_of(document) if pattern.search(each.text)), None) for document in documents
    )
    passages = [each for each in found if each]
    words = [content_words(f"{passage.title} {passage.text}") for passage in passages]
    best, least = None, MIN_SHARED_WORDS
    for asked, passage in enumerate(passages):
        for start, end in sentence_bounds(passage.text).tolist():
            sentence = passage.text[start:end]
            places = [match.start() for match in pattern.finditer(sentence)]
            # a longer run is another name: Victoria is not asked for where Lake Victoria is mentioned
            is_alone = name in (run.removesuffix("'s").removesuffix("’s") for run in RUN.findall(sentence))
            if len(places) != 1 or places[0] == 0 or not is_alone or len(sentence.split()) not in SENTENCE_WORDS:
                continue
            around = content_words(sentence) - content_words(name)
            shared = max((len(around & own) for n, own in enumerate(words) if n != asked), default=0)
            if shared >= least and MASK_TEXT not in sentence:
                text = sentence[: places[0]] + MASK_TEXT + sentence[places[0] + len(name) :]
                best, least = Question(text, name, passages, asked), shared + 1
    return best


def content_words(text: str) -> frozenset[str]:
    return frozenset(words_of(text, Stemming.plural, keep_stopwords=False))


def make_questions(
    documents: Sequence[Document], count: int, rng: np.random.Generator
) -> tuple[list[Question], list[Document]]:
    """Questions, no two of which share a document, and passages of other documents."""
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for number, document in enumerate(documents):
        for name in names_in(document.text):
            holders[name].append(number)
    names = sorted(name for name, numbers in holders.items() if len(numbers) in DOCUMENTS_OF_A_NAME)
    questions: list[Question] = []
    used: set[int] = set()
    for name in (names[place] for place in rng.permutation(len(names)).tolist()):
        if len(questions) < count and not used & {*holders[name]}:
            question = question_about((documents[number] for number in holders[name]), name)
            if question is not None:
                questions.append(question)
                used |= {*holders[name]}
    wanted = OTHERS_PER_PASSAGE * sum(len(question.passages) for question in questions)
    order = (documents[number] for number in rng.permutation(len(documents)).tolist() if number not in used)
    others = [passages[0] for document in order if (passages := passages_of(document))]
    return questions, others[:wanted]


def invented_names(names: Iterable[str], known: Collection[str], rng: np.random.Generator) -> Iterator[str]:
    """Lower-case words by P(letter | the two before it) over the ASCII names, none in `known` or repeated."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name in names:
        padded = f"^^{name.lower()}$"
        if re.fullmatch(r"\^\^[a-z]{3,}\$", padded):
            for at in range(2, len(padded)):
                counts[padded[at - 2 : at]][padded[at]] += 1
    taken = {*known}
    for _ in range(MAX_DRAWS if counts else 0):
        word = ""
        while len(word) < NAME_LETTERS[-1] and not word.endswith("$"):
            letters = sorted(counts[f"^^{word}"[-2:]])
            weights = np.cumsum([counts[f"^^{word}"[-2:]][letter] for letter in letters])  # i64 [letters]
            word += letters[int(np.searchsorted(weights, rng.integers(weights[-1]), side="right"))]
        word = word.removesuffix("$")
        spellings = {word.translate(script) for script in SCRIPTS.values()}
        if len(word) in NAME_LETTERS and not spellings & taken:
            taken |= spellings
            yield word
    raise CorpusError(f"no new name after {MAX_DRAWS:,} draws: give a larger FILE")


def main(out: str, file: str, count: str = "300", seed: str = "0", *trained_on: str) -> None:
    """Write the tasks."""
    rng = np.random.default_rng(int(seed))
    documents = list(read_corpus(CorpusSettings(files=[file])))
    questions, others = make_questions(documents, int(count), rng)
    known: set[str] = set()
    for text in [file, *trained_on]:
        for document in read_corpus(CorpusSettings(files=[text])):
            known.update(folded_words(f"{document.title or ''} {document.text}"))
    letters = sorted({word for document in documents for name in names_in(document.text) for word in name.split(" ")})
    words = invented_names(letters, known, rng)
    invented = [[next(words) for _ in question.name.split(" ")] for question in questions]
    files: dict[str, list[dict]] = {"other": []}
    for number, each in enumerate(others):
        files["other"].append({"id": f"other-{number}", "title": each.title, "text": each.text, "source": "other"})
    for variant in ("original", *SCRIPTS):
        passages, asked = (files.setdefault(f"{variant}{suffix}", []) for suffix in ("", "-questions"))
        for number, (question, own) in enumerate(zip(questions, invented, strict=True)):
            spelled = [word.translate(SCRIPTS.get(variant, {})).capitalize() for word in own]
            name = question.name if variant == "original" else " ".join(spelled)
            asked.append({"text": question.text, "answers": [name], "source": f"{number}-{question.asked}"})
            for place, each in enumerate(question.passages):
                title, text = (with_name(question.name).sub(name, part or "") for part in (each.title, each.text))
                row = {"id": f"{number}-{place}", "title": title, "text": text, "source": f"{number}-{place}"}
                passages.append(row)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for variant in ("original", *SCRIPTS):
        (folder / f"{variant}.yaml").write_text(TASK.format(variant=variant), "utf-8")
    for name, rows in files.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, "utf-8")
    sys.stdout.write(f"{len(questions)} questions in {1 + len(SCRIPTS)} spellings, {len(others)} other passages\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

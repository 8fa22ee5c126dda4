"""Best sentences that hold the answer: bm25s over all sentences against what an index answers, in one run.

    python -m benchmarks.bench_sentences QUESTIONS=INDEX [QUESTIONS=INDEX …]

QUESTIONS is a questions.jsonl with `text`, `answers` and `style`, INDEX an index over its corpus. bm25s (its own
tokenizer and English stop-words, else defaults) ranks the sentences of all documents by the question without its mask.
The index gives the sentences of `Filler.sentences`. A sentence holds an answer that occurs in it as whole words,
case and punctuation aside.

Claim: the first sentence of the index holds the answer at least as often as that of bm25s.
"""

from __future__ import annotations

import os

# Before numpy is imported: its thread pool is made then.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import bm25s
import numpy as np

from npm.core.types import INVISIBLE, MASK_TEXT
from npm.corpus.markup import visible
from npm.corpus.text import normalized_text, sentence_bounds
from npm.evaluation.compare import mcnemar_p_value
from npm.evaluation.report import markdown_table
from npm.retrieval.fill import PhraseFiller

MOST = 5
HEADER = ("questions", "n", "bm25s @1", "index @1", "bm25s @5", "index @5", "only bm25s @1", "only index @1", "p")


def holds(sentence: str, answers: Sequence[str]) -> bool:
    """Return True if one of the answers occurs in the sentence as whole words.

    >>> holds("It takes\\n45 days.", ["45 days"]), holds("It takes 145 days.", ["45 days"])
    (True, False)
    """
    wanted = "|".join(re.escape(normalized_text(answer)) for answer in answers)
    return re.search(rf"(?<![\w.,])(?:{wanted})(?!\w)", normalized_text(sentence)) is not None


def bm25_sentences(filler: PhraseFiller, texts: Sequence[str]) -> list[list[str]]:
    """The best sentences of the corpus for each text by bm25s."""
    documents = [
        visible(filler.index.store.document(number).text) for number in range(filler.index.store.document_count)
    ]
    sentences = [text[start:end] for text in documents for start, end in sentence_bounds(text).tolist()]
    ranker = bm25s.BM25()
    ranker.index(bm25s.tokenize(sentences, show_progress=False), show_progress=False)
    asked = bm25s.tokenize([text.replace(MASK_TEXT, " ") for text in texts], show_progress=False)
    ranked, _ = ranker.retrieve(asked, k=min(MOST, len(sentences)), show_progress=False)  # i64 [texts, MOST]
    return [[sentences[place] for place in row] for row in ranked.tolist()]


def index_sentences(filler: PhraseFiller, texts: list[str]) -> list[list[str]]:
    """The best sentences for each text by the index."""
    rows = filler.sentences(texts, MOST)
    return [[found.context.replace(INVISIBLE, "") for found in row] for row in rows]


def ranks(sentences: Sequence[Sequence[str]], rows: Sequence[dict]) -> np.ndarray:
    """The position of the first sentence that holds an answer, from 0, MOST without one: i64 [rows]."""
    return np.array(
        [
            next((place for place, each in enumerate(found) if holds(each, row["answers"])), MOST)
            for found, row in zip(sentences, rows, strict=True)
        ]
    )


def measured(pairs: Sequence[tuple[Path, str]]) -> Iterator[list[str]]:
    """Rows of the table: each set, each style of it, and all."""
    names: list[tuple[str, ...]] = []
    found: list[np.ndarray] = []
    for questions, index in pairs:
        rows = [json.loads(line) for line in questions.read_text("utf-8").splitlines()]
        texts = [row["text"] for row in rows]
        filler = PhraseFiller.open(index)
        both = [ranks(search(filler, texts), rows) for search in (bm25_sentences, index_sentences)]
        found.append(np.stack(both, axis=1))  # i64 [rows, 2]
        name = questions.parent.name
        names += [("all", row["style"], name, f"{name}, {row['style']}") for row in rows]
    places = np.concatenate(found)  # i64 [n, 2]
    for group in dict.fromkeys(group for every in names for group in every):
        chosen = places[[group in every for every in names]]  # i64 [chosen, 2]
        first = chosen == 0  # bool [chosen, 2]
        alone = [int((first[:, side] & ~first[:, 1 - side]).sum()) for side in (0, 1)]
        shares = [f"{100 * share:.1f}" for share in (*first.mean(0), *(chosen < MOST).mean(0))]
        yield [group, str(len(chosen)), *shares, *map(str, alone), f"{mcnemar_p_value(*alone):.2g}"]


def main(arguments: list[str]) -> None:
    """Print the table."""
    pairs = [argument.partition("=")[::2] for argument in arguments]
    print(markdown_table(HEADER, measured([(Path(questions), index) for questions, index in pairs])))


if __name__ == "__main__":
    main(sys.argv[1:])

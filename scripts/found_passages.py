"""Passages for questions that have none, found by words: rows for `scripts/distil_reader.yaml`.

    python -m scripts.found_passages "files=[wiki/*.jsonl.zst]" "questions=[nq_dev_dpr.jsonl.zst]" out=found_nq.jsonl \
        "exclude=[questions-of-an-evaluation.jsonl,articles.jsonl]"

Of the blocks of about 100 words that are best by BM25 for a question, up to three that hold an answer, with it, and up
to two that do not, with `answers: []`; of a question without the former, the best block alone. Rows of exclude=[…]
have a question, or a title, and neither is asked or read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from npm.core.settings import parse_list
from npm.corpus.documents import read_corpus
from npm.corpus.readers import read_rows
from npm.corpus.settings import CorpusSettings
from npm.corpus.sources import find_sources
from npm.corpus.text import lexical_query, sentence_bounds
from scripts.cloze_articles import subject_of
from scripts.word_search import WordSearch

BLOCK_CHARS, LONGEST_BLOCK = 520, 1200
RIGHT, WRONG, CANDIDATES = 3, 2, 40
DOCUMENTS_AT_ONCE = 3000
LEAST = 0.5
"""Blocks with an answer count from this share of the best score on."""


def folded(text: str) -> str:
    """Letters and digits in lower case, words apart, with a space at both ends."""
    words = "".join(character if character.isalnum() else " " for character in text.lower()).split()
    return f" {' '.join(words)} "


def blocks_of(text: str) -> Iterator[str]:
    """A text in blocks of whole sentences."""
    begin = None
    for first, last in sentence_bounds(text).tolist():
        begin = first if begin is None else begin
        if last - begin >= BLOCK_CHARS:
            yield text[begin:last][:LONGEST_BLOCK]
            begin = None
    if begin is not None:
        yield text[begin:][:LONGEST_BLOCK]


def add_best(
    found: list[list[tuple[float, bool, str, str]]], rows: Sequence[Mapping[str, Any]], blocks: list[tuple[str, str]]
) -> None:
    """Add score, whether an answer occurs, title and text of the best of some blocks for each row."""
    search = WordSearch(blocks)
    for own, row, (numbers, scores) in zip(
        found, rows, search.best([lexical_query(row["question"]) for row in rows], CANDIDATES), strict=True
    ):
        answers = [folded(answer) for answer in row["answers"]]
        left = {True: RIGHT, False: WRONG}
        for number, score in zip(numbers.tolist(), scores.tolist(), strict=True):
            title, text = blocks[number]
            is_right = any(answer in folded(text) for answer in answers)
            if left[is_right]:
                left[is_right] -= 1
                own.append((score, is_right, title, text))


def main(arguments: list[str]) -> None:
    """Write the rows."""
    given = dict(argument.partition("=")[::2] for argument in arguments)
    excluded = [row for file in parse_list(given.get("exclude", "[]"), "exclude") for _, row in read_rows(Path(file))]
    titles = {subject_of(row["title"]).lower() for row in excluded if row.get("title") and not row.get("question")}
    asked = {folded(row["question"]) for row in excluded if row.get("question")}
    sources = find_sources(parse_list(given["questions"], "questions"))
    rows = [row for source in sources for _, row in read_rows(source.path) if folded(row["question"]) not in asked]
    found: list[list[tuple[float, bool, str, str]]] = [[] for _ in rows]
    blocks: list[tuple[str, str]] = []
    documents = read_corpus(CorpusSettings(files=parse_list(given["files"], "files")))
    for count, document in enumerate(documents, 1):
        if subject_of(document.title).lower() not in titles:
            blocks += [(document.title, block) for block in blocks_of(document.text)]
        if count % DOCUMENTS_AT_ONCE == 0:
            add_best(found, rows, blocks)
            blocks = []
    if blocks:
        add_best(found, rows, blocks)
    with Path(given["out"]).open("w", encoding="utf-8") as file:
        for row, own in zip(rows, found, strict=True):
            own.sort(reverse=True)
            right = [each for each in own if each[1] and each[0] > LEAST * own[0][0]][:RIGHT]
            for score, is_right, title, text in right + [each for each in own if not each[1]][: WRONG if right else 1]:
                answers = row["answers"] if is_right else []
                made = {
                    "question": row["question"],
                    "answers": answers,
                    "title": title,
                    "context": text,
                    "score": score,
                }
                file.write(json.dumps(made, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Pairs of a question and a passage for `scripts/distil_reader.py`, tokenized and packed: each text once.

    python -m scripts.pack_pairs scripts/distil_reader.yaml DATA ROWS OUT.npz [SHARD/SHARDS]
    python -m scripts.pack_pairs merge OUT.npz SHARD.npz …

A file of the table is looked for in ROWS, then in DATA; its rows are those of npm/corpus/questions.py, and those of a
`found` set may have no answers. A shard takes every SHARDS-th file, for several processes.

Arrays, for p passages, q questions, n pairs and s spans:

    passage_ids u16 [.], passage_offsets i32 [p + 1], title_sizes u8 [p]: title and text, and the tokens of the title
    question_ids u16 [.], question_offsets i32 [q + 1], mask_places u8 [q]: a question without its mask, and its place
    pairs i32 [n, 4]: question, passage, kind (0 by people, 1 found, 2 without an answer), number of the set
    spans u16 [s, 2], span_offsets i32 [n + 1]: first and last tokens of the answers within the passage's text
    shares f64 [sets, 2]: of each set in what the reader and its teacher learn from
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from npm.core.settings import read_yaml
from npm.core.types import MASK_TEXT
from npm.corpus.questions import SupervisionSettings, occurrences, question_table
from npm.corpus.readers import read_rows
from npm.corpus.text import with_mask
from npm.masking.rendering import PASSAGES
from npm.models.encoder import Encoder
from npm.training.questions import QuestionSource

BY_PEOPLE, FOUND, ABSENT = 0, 1, 2
LONGEST = 300
"""Tokens of a passage."""
QUESTION_TOKENS = 64


class Texts:
    """Distinct texts, each of two parts."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, bytes], int] = {}
        self.ids: list[np.ndarray] = []
        self.sizes: list[int] = []

    def add(self, first: np.ndarray, second: np.ndarray) -> int:
        """The number of the text of these parts, i64 [.] each."""
        joined = np.concatenate([first, second]).astype(np.uint16)  # [.]
        number = self.numbers.setdefault((len(first), joined.tobytes()), len(self.ids))
        if number == len(self.ids):
            self.ids.append(joined)
            self.sizes.append(len(first))
        return number

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids u16 [.], offsets i32 [texts + 1] and the sizes of the first parts u8 [texts]."""
        offsets = np.cumsum([0, *map(len, self.ids)], dtype=np.int32)
        return np.concatenate([*self.ids, np.zeros(0, np.uint16)]), offsets, np.array(self.sizes, dtype=np.uint8)


class Pairs:
    """Pairs in the order in which they are added."""

    def __init__(self, shares: Sequence[Sequence[float]]) -> None:
        self.shares = shares
        self.passages, self.questions = Texts(), Texts()
        self.pairs: list[tuple[int, int, int, int]] = []
        self.spans: list[np.ndarray] = []  # i64 [., 2] each

    def add(self, question: int, passage: int, kind: int, number: int, spans: Sequence[Sequence[int]]) -> None:
        """Add one pair of set `number` with its answers."""
        self.pairs.append((question, passage, kind, number))
        self.spans.append(np.array(spans, dtype=np.uint16).reshape(-1, 2))

    def save(self, path: Path) -> None:
        """Write the arrays of this module."""
        passage_ids, passage_offsets, title_sizes = self.passages.arrays()
        question_ids, question_offsets, mask_places = self.questions.arrays()
        np.savez(
            path,
            passage_ids=passage_ids,
            passage_offsets=passage_offsets,
            title_sizes=title_sizes,
            question_ids=question_ids,
            question_offsets=question_offsets,
            mask_places=mask_places,
            pairs=np.array(self.pairs, dtype=np.int32).reshape(-1, 4),
            spans=np.concatenate([*self.spans, np.zeros((0, 2), np.uint16)]),
            span_offsets=np.cumsum([0, *map(len, self.spans)], dtype=np.int32),
            shares=np.array(self.shares, dtype=np.float64),
        )


def spans_of(answers: Iterable[np.ndarray], passage: np.ndarray) -> list[tuple[int, int]]:
    """First and last token of each occurrence of the answers in a passage, all i64 [.]."""
    places = {(place, place + len(answer) - 1) for answer in answers for place in occurrences(answer, passage)}
    return sorted(places)


def add_questions(pairs: Pairs, encoder: Encoder, file: Path, number: int, entry: dict[str, Any]) -> None:
    """The pairs of a set whose passages are given."""
    settings = SupervisionSettings(
        max_block_tokens=LONGEST,
        max_question_tokens=QUESTION_TOKENS,
        max_questions_per_context=entry.get("most", 12),
        questions_per_device_batch=1,
    )
    table = question_table([str(file)], encoder.tokenizer, settings, title_tokens=encoder.title_tokens)
    source = QuestionSource(table, encoder, settings, seed=0, view=PASSAGES)
    rng = np.random.default_rng(number)
    for row in range(len(table)):
        asked = table[row]
        question = pairs.questions.add(asked.before, asked.after)
        passage = pairs.passages.add(asked.title, asked.block)
        pairs.add(question, passage, BY_PEOPLE, number, spans_of(asked.answers, asked.block))
        if rng.random() < entry["negatives"]:
            title, block = source.wrong_passage(row, asked, float(rng.random()))
            if not spans_of(asked.answers, block):
                pairs.add(question, pairs.passages.add(title, block), ABSENT, number, [])


def add_found(pairs: Pairs, encoder: Encoder, file: Path, number: int) -> None:
    """The pairs of a set whose passages were found, with the answers that occur in them, if any."""

    def ids(texts: list[str]) -> list[np.ndarray]:
        found = encoder.tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)
        return [np.array(each, dtype=np.int64) for each in found["input_ids"]]

    full_stop, half = ids(["."])[0], QUESTION_TOKENS // 2
    lines = (row for _, row in read_rows(file))
    while rows := list(islice(lines, 1000)):
        parts = [with_mask(row["question"]).split(MASK_TEXT) for row in rows]
        befores, afters = ids([part[0].rstrip() for part in parts]), ids([part[1].lstrip() for part in parts])
        titles, contexts = ids([row["title"] for row in rows]), ids([row["context"] for row in rows])
        for row, before, after, title, context in zip(rows, befores, afters, titles, contexts, strict=True):
            question = pairs.questions.add(before[-half:], after[:half])
            shown = title[: encoder.title_tokens]  # i64 [.]
            shown = np.concatenate([shown, full_stop]) if len(shown) else shown
            answers = [each for each in ids(row["answers"]) if len(each)] if row["answers"] else []
            spans = spans_of(answers, context[:LONGEST])
            pairs.add(question, pairs.passages.add(shown, context[:LONGEST]), FOUND, number, spans)


def merge(out: Path, shards: Sequence[Path]) -> None:
    """One file of several: each text once again."""
    pairs = Pairs(np.load(shards[0])["shares"])
    for shard in shards:
        given = np.load(shard)
        numbers = []
        for texts, name, sizes in (
            (pairs.questions, "question", given["mask_places"]),
            (pairs.passages, "passage", given["title_sizes"]),
        ):
            cut = np.split(given[f"{name}_ids"], given[f"{name}_offsets"][1:-1])
            own = [texts.add(ids[:size], ids[size:]) for ids, size in zip(cut, sizes.tolist(), strict=True)]
            numbers.append(own)
        questions, passages = numbers
        spans = np.split(given["spans"], given["span_offsets"][1:-1])
        for (question, passage, kind, number), own_spans in zip(given["pairs"].tolist(), spans, strict=True):
            pairs.add(questions[question], passages[passage], kind, number, own_spans.tolist())
    pairs.save(out)


def main(arguments: list[str]) -> None:
    """Pack, or merge what several processes have packed."""
    if arguments[0] == "merge":
        return merge(Path(arguments[1]), [Path(each) for each in arguments[2:]])
    table, data, rows, out, *shard = arguments
    own, count = map(int, shard[0].split("/")) if shard else (0, 1)
    sets = read_yaml(Path(table).read_text(encoding="utf-8"))
    pairs = Pairs([(each["share"], each.get("teacher", 0)) for each in sets])
    encoder = Encoder.load("encoder-mini", device="cpu", dtype="float32")
    for number, entry in enumerate(sets):
        if number % count != own:
            continue
        places = [folder / entry["file"] for folder in (Path(rows), Path(data))]
        file = next((path for path in places if path.is_file()), None)
        if file is None:
            raise SystemExit(f"{entry['file']} is neither in {rows} nor in {data}")
        if entry.get("found"):
            add_found(pairs, encoder, file, number)
        else:
            add_questions(pairs, encoder, file, number, entry)
        sys.stderr.write(f"{file.name}: {len(pairs.pairs):,} pairs\n")
    pairs.save(Path(out))
    return None


if __name__ == "__main__":
    main(sys.argv[1:])

"""Rated reviews as a corpus for docs/notebooks/word_sense.py: each sentence with one of its words, and those around it.

    python scripts/rated_passages.py reviews.jsonl.zst > rated.jsonl

Reads JSON lines with id and text and, if they are there, rating. The reviews of Pang and Lee 2004 and of Blitzer et al.
2007 say by their order what they praise: of the films of the first the first thousand are low, of each kind of goods of
the second those that are numbered below a thousand. They get the ratings 1 and 5.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from npm.core.errors import CorpusError, UserError
from npm.corpus.readers import read_rows
from npm.corpus.text import sentence_bounds

LOW, HIGH, HALF = 1, 5, 1000

RATED_WORDS = (
    "cheap sick cold sharp predictable unreal short simple loud dark light hot cool wicked slow quick thin plain funny "
    "sweet"
)
"""Words that praise in one review and blame in another."""


def main(path: str) -> None:
    """Write a document for each passage on stdout."""
    word = re.compile(rf"\b({'|'.join(RATED_WORDS.split())})\b", re.IGNORECASE)
    for line, row in read_rows(Path(path)):
        if not all(isinstance(row.get(name), str) for name in ("id", "text")):
            raise CorpusError(f"{path}:{line}: a review must have id and text, got {dict(row)!r:.120}")
        number = line - 1 if row["id"].startswith("imdb") else int(re.sub(r"\D", "", row["id"]) or 0)
        rating = row.get("rating", LOW if number < HALF else HIGH)
        text, stop = row["text"], 0
        bounds = sentence_bounds(text).tolist()
        for place, (start, end) in enumerate(bounds):
            if start >= stop and word.search(text[start:end]):
                stop = bounds[min(place + 1, len(bounds) - 1)][1]
                passage = text[bounds[max(place - 1, 0)][0] : stop]
                document = {"id": f"{row['id']}#{place}", "text": passage, "rating": rating}
                sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] == "--help":
        sys.exit(__doc__)
    try:
        main(sys.argv[1])
    except UserError as error:
        sys.stderr.write(f"rated_passages: error: {error}\n")
        sys.exit(2)

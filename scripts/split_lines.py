"""Split a file of texts in two by the hash of each text: python scripts/split_lines.py FILE TRAIN HELD_OUT

About every tenth different text, whatever its case and spacing, goes to HELD_OUT; both files have a JSON object a line.
For `scripts/study.py transfer`, whose target is a file of lines.
"""

import json
import sys
from pathlib import Path

from npm.core.files import replace_file, sha256_of_bytes
from npm.corpus.documents import read_corpus
from npm.corpus.settings import CorpusSettings
from npm.corpus.text import normalized_text


def main(file: str, train: str, held_out: str) -> None:
    """Write the two files."""
    texts = {normalized_text(each.text): each for each in read_corpus(CorpusSettings(files=[file]))}
    rows: dict[str, list[str]] = {train: [], held_out: []}
    for text, document in texts.items():
        part = train if int(sha256_of_bytes(text.encode())[:8], 16) % 10 else held_out
        rows[part].append(json.dumps({"id": document.id, "text": document.text}, ensure_ascii=False) + "\n")
    for part, lines in rows.items():
        Path(part).parent.mkdir(parents=True, exist_ok=True)
        replace_file(Path(part), "".join(lines).encode())
        sys.stdout.write(f"{part}: {len(lines)} lines\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

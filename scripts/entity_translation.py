"""Data of the task entity_translation (Min et al. 2022), made of any corpus.

    python scripts/entity_translation.py "wiki/*.jsonl.zst" data/open/entity-translation.jsonl [ENCODER]
    python scripts/entity_translation.py names.csv runs/names

The first takes the names that documents begin with: `Beijing (Chinese: 北京; pinyin: …) is …` gives the question
what the Chinese translation of Beijing is. Names that the tokenizer of ENCODER (the shipped one) cannot write back are
counted and left out. The second makes such documents of a table with the columns name, language and translation:
OUT-train.jsonl and OUT-test.jsonl, with no name in both.
"""

import json
import re
import sys
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npm.core.display import markdown_table
from npm.core.errors import CorpusError
from npm.core.types import Document
from npm.corpus.documents import read_corpus
from npm.corpus.readers import read_rows
from npm.corpus.settings import CorpusSettings
from npm.evaluation.prompts import plain_token_ids
from npm.models.encoder import Encoder

LANGUAGES = (
    *("Chinese", "Japanese", "Korean", "Hebrew", "Hindi", "Arabic", "Cyrillic", "Polish"),
    *("Czech", "Greek", "Turkish", "Malayalam", "Mongolian", "Russian", "Tamil", "Thai"),
)
WORDS_LOOKED_THROUGH = 30
_NAMED_LANGUAGE = re.compile(rf"\b({'|'.join(LANGUAGES)}):")
COLUMNS = ("name", "language", "translation")


@dataclass(slots=True)
class BuiltSet:
    """The rows of the set, and by language how many names were found and how many could not be written."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    def table(self) -> str:
        """The counts as Markdown."""
        rows = [[each, str(self.found[each]), str(self.left_out[each])] for each in LANGUAGES if self.found[each]]
        rows.append(["all", str(self.found.total()), str(self.left_out.total())])
        return markdown_table(["language", "names", "left out: the tokenizer cannot write them back"], rows)


def build_entity_translation(documents: Iterable[Document], encoder: Encoder) -> BuiltSet:
    """The rows of all documents that name themselves in another language within their first words.

    A row has `document`, `title`, `language`, `answers`, `start_char` and `end_char` of the answer in the document's
    text, and `tokens` of the answer; a document has at most one a language.
    """
    built = BuiltSet()
    for document in documents:
        if not document.title.strip():
            continue
        for language, start, end in named_in_other_languages(document.text):
            answer = document.text[start:end]
            built.found[language] += 1
            (ids,) = plain_token_ids(encoder, [f" {answer}"])
            if not writes_back(encoder, answer, ids):
                built.left_out[language] += 1
                continue
            row = {"document": document.id, "title": document.title, "language": language, "answers": [answer]}
            built.rows.append({**row, "start_char": start, "end_char": end, "tokens": len(ids)})
    return built


def named_in_other_languages(text: str) -> Iterator[tuple[str, int, int]]:
    """Each language named with a colon in the first words, and where the name behind it stands in `text`.

    The name ends before the next punctuation mark or the end of the line.

    >>> text = "Beijing (Chinese: 北京; pinyin: Běijīng), Greek: , Thai: ปักกิ่ง"
    >>> [(language, text[start:end]) for language, start, end in named_in_other_languages(text)]
    [('Chinese', '北京'), ('Thai', 'ปักกิ่ง')]
    """
    words = list(re.finditer(r"\S+", text))
    looked_through = words[min(len(words), WORDS_LOOKED_THROUGH) - 1].end() if words else 0
    seen: set[str] = set()
    for named in _NAMED_LANGUAGE.finditer(text, 0, looked_through):
        if named[1] in seen:
            continue
        end = next((place for place in range(named.end(), len(text)) if _ends_name(text[place])), len(text))
        raw = text[named.end() : end]
        if name := raw.strip():
            seen.add(named[1])
            start = named.end() + raw.index(name)
            yield named[1], start, start + len(name)


def _ends_name(char: str) -> bool:
    return char == "\n" or unicodedata.category(char).startswith("P")


def writes_back(encoder: Encoder, answer: str, ids: list[int]) -> bool:
    """Whether the tokens `ids` of `answer` spell it, but for case and spaces."""
    if not ids or encoder.tokenizer.unk_token_id in ids:
        return False
    return _letters(str(encoder.tokenizer.decode(ids))) == _letters(answer)


def _letters(text: str) -> str:
    return unicodedata.normalize("NFC", "".join(text.split()).casefold())


def write_lines(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a JSON object a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def write_name_passages(names: Path, out: Path) -> tuple[int, int]:
    """Write a corpus to train on and one to ask about, and return their sizes.

    A name goes to one of the two by its letters, with all its translations. Raises CorpusError for a row of another
    form.
    """
    parts: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    for line, row in read_rows(names):
        name, language, translation = (str(row.get(column) or "").strip() for column in COLUMNS)
        if not name or not translation or language not in LANGUAGES:
            raise CorpusError(
                f"{names}:{line}: expected name, language ({', '.join(LANGUAGES)}) and translation, got {row}"
            )
        part = "train" if zlib.crc32(name.casefold().encode()) % 2 else "test"
        text = f"{name} ({language}: {translation}) is the name of several people."
        parts[part].append({"id": f"{language}-{name}", "title": name, "text": text})
    for part, rows in parts.items():
        write_lines(out.with_name(f"{out.name}-{part}.jsonl"), rows)
    return len(parts["train"]), len(parts["test"])


def main(file: str, out: str, encoder: str = "") -> None:
    """Write the data, or the passages, and print what was found."""
    if Path(file).suffix in (".csv", ".tsv"):
        train, test = write_name_passages(Path(file), Path(out))
        sys.stdout.write(f"{train} passages to train on, {test} to ask about\n")
        return
    documents = read_corpus(CorpusSettings(files=[file]))
    built = build_entity_translation(documents, Encoder.load(encoder, device="cpu"))
    write_lines(Path(out), built.rows)
    sys.stdout.write(built.table() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

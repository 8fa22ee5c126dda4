"""The entity translation set of Min et al. 2022 made of any corpus: names in their own script, from how texts begin.

A document that begins `Beijing (Chinese: 北京; pinyin: …) is …` gives the question what the Chinese translation of its
title is. A name that the encoder's tokenizer cannot write back is counted and left out.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npm.core.errors import CorpusError
from npm.core.files import replace_file
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.readers import Row, read_rows
from npm.evaluation.report import markdown_table
from npm.evaluation.tasks.prompts import plain_token_ids
from npm.evaluation.tasks.synthetic_time import json_lines

if TYPE_CHECKING:
    from npm.core.types import Document
    from npm.models.encoder import Encoder


LANGUAGES = (
    *("Chinese", "Japanese", "Korean", "Hebrew", "Hindi", "Arabic", "Cyrillic", "Polish"),
    *("Czech", "Greek", "Turkish", "Malayalam", "Mongolian", "Russian", "Tamil", "Thai"),
)
WORDS_LOOKED_THROUGH = 30
_NAMED_LANGUAGE = re.compile(rf"\b({'|'.join(LANGUAGES)}):")
_COLUMNS = ("name", "language", "translation")


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


def write_entity_translation(files: list[str], out: Path, encoder: Encoder) -> BuiltSet:
    """Build the set of a corpus into the file `out`, a JSON object a line. Raises CorpusError if nothing is found."""
    built = build_entity_translation(read_corpus(CorpusSettings(files=files)), encoder)
    if not built.rows:
        raise CorpusError(
            f"{', '.join(files)}: no text begins as in 'Beijing (Chinese: 北京)' with a name that the tokenizer can "
            f"write; names: {built.found.total()}, with unknown characters: {built.left_out.total()}"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, json_lines(built.rows))
    return built


def write_name_passages(names: Path, out: Path) -> tuple[int, int]:
    """A corpus to train on and one to ask about, OUT-train.jsonl and OUT-test.jsonl, of a list of names; their sizes.

    The list is a table with the columns name, language, translation. A name goes to one of the two by its letters,
    with all its translations. Raises CorpusError for a row of another form.
    """
    parts: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
    out.parent.mkdir(parents=True, exist_ok=True)
    for line, row in read_rows(names):
        name, language, translation = _name_row(row, f"{names}:{line}")
        part = "train" if zlib.crc32(name.casefold().encode()) % 2 else "test"
        text = f"{name} ({language}: {translation}) is the name of several people."
        parts[part].append({"id": f"{language}-{name}", "title": name, "text": text})
    for part, rows in parts.items():
        replace_file(out.with_name(f"{out.name}-{part}.jsonl"), json_lines(rows))
    return len(parts["train"]), len(parts["test"])


def _name_row(row: Row, where: str) -> tuple[str, str, str]:
    name, language, translation = (row.get(column) for column in _COLUMNS)
    if (
        isinstance(name, str)
        and isinstance(translation, str)
        and name.strip()
        and translation.strip()
        and language in LANGUAGES
    ):
        return name.strip(), str(language), translation.strip()
    raise CorpusError(
        f"{where}: expected name, language ({', '.join(LANGUAGES)}) and translation, got "
        + ", ".join(f"{column}={row.get(column)!r:.40}" for column in _COLUMNS)
    )

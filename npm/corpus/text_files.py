"""The documents of `.txt`, `.md` and `.html` files, with text whose offsets are those of the file as given."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from npm.corpus.html_pages import page_text
from npm.corpus.markdown import joined_lines, markdown_text
from npm.corpus.markup import HIDDEN, ReadText, hidden, sections
from npm.corpus.readers import MAX_LINE_BYTES, OnBad, read_lines
from npm.corpus.settings import DocumentSplit
from npm.corpus.sources import StoredFile

_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(.*?)^\1[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


def read_texts(
    path: StoredFile,
    kind: str,
    *,
    split: DocumentSplit,
    join_lines: bool,
    fields: Sequence[str],
    on_bad: OnBad,
) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """Yield the documents of a file of `kind` txt, md or html: number, title, text, and `fields` of the front matter.

    Sections of an md or html file have the field `heading` too. Other content goes to `on_bad`, as does front matter
    that cannot be read.
    """
    in_sections = split is DocumentSplit.heading and kind != "txt"
    for number, given in _pieces(path, split if kind == "txt" else DocumentSplit.file, on_bad):
        body = given.lstrip(HIDDEN)
        try:
            front, body = front_matter(body, fields) if kind == "md" else ({}, body)
        except ValueError as error:
            on_bad(f"{path}:1", "has broken front matter", str(error)[:200])
            continue
        start = hidden(given[: len(given) - len(body)])
        if kind == "html":
            read = page_text(body)
        elif kind == "md":
            read = markdown_text(body, join_lines=join_lines)
        else:
            read = ReadText(joined_lines(body) if join_lines and split is not DocumentSplit.line else body, "", [])
        if in_sections:
            for section, (heading, text) in enumerate(sections(read), start=1):
                yield section, read.title or path.stem, text, {**front, "heading": heading}
        elif read.text and not read.text.isspace():
            yield number, read.title or path.stem, start + read.text, front


def front_matter(text: str, names: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the fields with these `names` at the head of a Markdown text, and the text after it.

    The head is YAML between lines of `---` or TOML between lines of `+++`; dates become ISO strings. Raises ValueError
    if it cannot be read.

    >>> front_matter("---\\ntitle: Leave\\nsince: 2024-05-01\\n---\\nText", ["since"])
    ({'since': '2024-05-01'}, 'Text')
    """
    found = _FRONT_MATTER.match(text)
    if found is None:
        return {}, text
    import yaml

    try:
        head = tomllib.loads(found[2]) if found[1] == "+++" else yaml.safe_load(found[2])
        if not isinstance(head, dict | None):  # text between two rules
            return {}, text
        kept = {name: head[name] for name in names if head and name in head}
        return json.loads(json.dumps(kept, default=lambda date: date.isoformat())), text[found.end() :]
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def _pieces(path: StoredFile, split: DocumentSplit, on_bad: OnBad) -> Iterator[tuple[int, str]]:
    """Yield the documents of a plain text file, numbered by line or paragraph; empty lines only separate them.

    A document with a bad line is bad, and reported by the first.
    """
    faults: list[tuple[str, str, str]] = []
    lines: list[str] = []
    by_line, piece, size = split is DocumentSplit.line, 1, 0
    numbered = read_lines(path, keep_ends=True, byte_order_mark=HIDDEN, on_bad=lambda *fault: faults.append(fault))
    for number, line in chain(numbered, [(0, "")]):
        is_break = not number or (split is DocumentSplit.paragraph and line.isspace())
        size += 0 if is_break else len(line)
        if "\0" in line:
            faults.append((f"{path}:{number}", "is not text", "it has a byte 0x00; convert the file to UTF-8"))
        elif size > MAX_LINE_BYTES:
            limit = f"a document has at most {MAX_LINE_BYTES >> 20} MiB; cut it"
            lines, faults = [], faults or [(f"{path}:{number}", "too long", limit)]
        elif not is_break:
            lines.append(line)
        if is_break or by_line:
            for fault in faults if by_line else faults[:1]:
                on_bad(*fault)
            text = "".join(lines)
            if text and not text.isspace() and (by_line or not faults):
                is_file = split in (DocumentSplit.file, DocumentSplit.heading)
                yield number if by_line else piece, text if is_file else text.removesuffix("\n").removesuffix("\r")
            piece += bool(lines or faults)
            lines, faults, size = [], [], 0

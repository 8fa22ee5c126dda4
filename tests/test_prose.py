"""The pages that users read first are in short sentences and the usual words of English."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.helpers.command_line import REPOSITORY
from tests.helpers.shell_blocks import pages_of_docs

PAGES = (
    *("README.md", "SECURITY.md", "CONTRIBUTING.md"),
    *(path.relative_to(REPOSITORY).as_posix() for path in pages_of_docs()),
    *(f"docs/results/{name}.md" for name in ("index", "findings", "quality", "reading", "scale")),
)
IDIOMS = re.compile(
    r"\b(stands? (?!for\b)|beside\b|anew\b|go(es)? on with\b|whatever\b|lack(s|ing)?\b|passed over\b|at hand\b"
    r"|but for\b|is told\b|is asked\b|what is (left|there|deleted)\b|a line a\b|nobody\b)"
)
"""Turns of phrase that native technical English puts otherwise."""
MAX_MEAN_WORDS, LONG_SENTENCE_WORDS, MAX_LONG_FRACTION = 20, 30, 0.1


def prose(page: str) -> str:
    """The running text of a page, without code, tables and front matter."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(\||    |#).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`]*`", "code", text)


@pytest.mark.parametrize("page", PAGES)
def test_sentences_are_short_and_without_idioms_that_read_like_a_translation(page: str) -> None:
    assert not [match.group() for match in IDIOMS.finditer(" ".join(prose(page).split()))]
    sentences = [words for part in re.split(r"(?<=[.!?:])\s+|\n\n", prose(page)) if len(words := part.split()) > 2]
    lengths = [len(words) for words in sentences]
    long = [" ".join(words) for words in sentences if len(words) > LONG_SENTENCE_WORDS]
    assert sum(lengths) <= MAX_MEAN_WORDS * len(lengths)
    assert len(long) <= MAX_LONG_FRACTION * len(lengths) + 1, "\n".join(long)


QUESTION_WORD = re.compile(r"(What|How|Which|Where|Whether)\b")


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, those of attributes and constants included."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                    yield line, text


def test_docstrings_begin_with_a_noun_phrase_or_an_imperative() -> None:
    found = []
    for path in sorted(path for folder in ("npm", "index") for path in (REPOSITORY / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [f"{path}:{line}: {text}" for line, text in docstrings(tree) if QUESTION_WORD.match(text)]
    assert not found

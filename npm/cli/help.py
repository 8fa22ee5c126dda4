"""What `npmlm --help` and `npmlm VERB --help` print: every setting with its default and its one sentence."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

VERBS = {
    "build": "build a phrase index over a corpus",
    "fill": "answer texts that hold one <mask> each",
    "verify": "check every byte of an index, and encode a sample again",
    "inspect": "show what is in an index, and how large each part is",
    "estimate": "estimate memory, disk and time of a build",
    "add": "add documents to an index",
    "delete": "delete documents of an index",
    "compact": "rewrite an index without what was deleted",
    "tune": "measure search settings of an index and choose some",
    "train": "train an encoder",
    "plot": "draw the curves of training runs in one picture",
    "evaluate": "measure an encoder or an index on tasks",
    "compare": "compare the results of two evaluations, example by example",
}
USAGE = """\
npmlm fills <mask> with phrases that stand in your corpus, and says where.

usage: npmlm VERB [key=value ...] [text ...]

  npmlm build corpus.files=[docs/*.jsonl] index=DIR
  npmlm fill index=DIR "The capital of Iceland is <mask>."

verbs:
{verbs}

npmlm VERB --help lists the settings of a verb; npmlm --version prints the version.
Everything after -- is text, even if it looks like a setting."""


def usage() -> str:
    """The overview."""
    return USAGE.format(verbs="\n".join(f"  {verb:<10}{what}" for verb, what in VERBS.items()))


def verb_help(verb: str, root: type, groups: Mapping[str, Sequence[str]] = {}) -> str:
    """All settings of one verb; `groups` are the files of settings to choose from, by the name of their group."""
    lines = [f"npmlm {verb} – {(root.__doc__ or '').strip().splitlines()[0]}", ""]
    lines += [f"  {name}={'|'.join(choices)}  sets several at once\n" for name, choices in groups.items()]
    lines.append("settings (name = default):")
    for name, item, text in documented_settings(root):
        lines.append(f"\n  {name} = {_shown_default(item)}")
        lines.extend(textwrap.wrap(" ".join(text.split()), 96, initial_indent="      ", subsequent_indent="      "))
    return "\n".join(lines)


def documented_settings(root: type, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], str]]:
    """Dotted name, field and docstring of every leaf setting, plain ones before groups."""
    import typing

    hints = typing.get_type_hints(root)
    texts = field_docstrings(root)
    groups = [item for item in dataclasses.fields(root) if dataclasses.is_dataclass(hints[item.name])]
    for item in dataclasses.fields(root):
        if item not in groups:
            yield f"{prefix}{item.name}", item, texts.get(item.name, "")
    for item in groups:
        yield from documented_settings(typing.cast(type, hints[item.name]), f"{prefix}{item.name}.")


@cache
def field_docstrings(settings: type) -> dict[str, str]:
    """The string under each field of a dataclass and of the dataclasses it extends."""
    found: dict[str, str] = {}
    for owner in reversed(settings.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(tree, ast.ClassDef), f"{owner} is not a class in its own source"
        for before, after in zip(tree.body, tree.body[1:], strict=False):
            match before, after:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(str(text))):
                    found[name] = text
    return found


def _shown_default(item: dataclasses.Field[Any]) -> str:
    value = item.default if item.default is not dataclasses.MISSING else None
    if item.default is dataclasses.MISSING and item.default_factory is not dataclasses.MISSING:
        value = item.default_factory()
    if isinstance(value, Enum):
        return f"{value.name}  ({'|'.join(member.name for member in type(value))})"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    return f"{value:.6g}" if isinstance(value, float) else str(value)

"""The settings that a class declares, and what `npmlm --help` and `npmlm VERB --help` print of them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from typing import Any, cast, get_args, get_origin, get_type_hints

from npm.cli.verbs import VERBS
from npm.core.settings import PATH, choices, in_words, limits, marks

USAGE = """\
npmlm fills <mask> with phrases that stand in your corpus, and says where.

usage: npmlm VERB [key=value ...] [text ...]

  {build}
  {fill}

verbs:
{verbs}

npmlm VERB --help shows the settings that people change, --help all shows every one; npmlm --version prints the version.
Everything after -- is text, even if it looks like a setting."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a verb: the settings class that declares it, its field there, and the field's type."""

    owner: type
    field: dataclasses.Field[Any]
    hint: Any  # with its marks, such as bounds

    @property
    def kind(self) -> Any:
        """Its type without marks."""
        return get_type_hints(self.owner)[self.field.name]

    @property
    def is_path(self) -> bool:
        """Whether it names a file, a folder or an encoder, or several of them."""
        return PATH in marks(self.hint)

    @property
    def is_list(self) -> bool:
        """Whether it is a list of texts, or nothing."""
        return self.kind in (list[str], list[str] | None)

    @property
    def is_text(self) -> bool:
        """Whether it is a plain string, or nothing."""
        return not self.is_path and self.kind in (str, str | None)

    @property
    def is_flag(self) -> bool:
        """Whether it is true or false."""
        return bool in (self.kind, *get_args(self.kind))

    @property
    def expected(self) -> str:
        """What it may be, in words."""
        return in_words(self.hint)

    @property
    def is_free_group(self) -> bool:
        """Whether the keys in it are those that its user chooses, such as in objective.others."""
        return get_origin(self.kind) is dict

    @property
    def text(self) -> str:
        """Its docstring, in one line."""
        return " ".join(_field_docstrings(self.owner).get(self.field.name, "").split())

    @property
    def is_required(self) -> bool:
        """Whether its verb cannot begin without it."""
        return self.text.endswith("Required.")

    @property
    def shown(self) -> str:
        """Its default and what else it may be."""
        if self.is_required:
            return "(required)"
        item = self.field
        value = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        if isinstance(value, Enum):
            return f"{value.name}  ({'|'.join(member.name for member in type(value))})"
        if isinstance(value, list) and value and all(isinstance(each, Enum) for each in value):
            return f"[{','.join(each.name for each in value)}]  ({'|'.join(choices(self.hint))})"
        if value is None or isinstance(value, bool):
            shown = {None: "null", True: "true", False: "false"}[value]
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        return f"{shown}  ({limits(self.hint)})" if limits(self.hint) else shown


def declared_settings(root: type, prefix: str = "") -> dict[str, Setting]:
    """Every leaf of a settings dataclass and of the dataclasses in it, by dotted name; plain ones before groups."""
    hints = get_type_hints(root, include_extras=True)
    plain = {item.name: item for item in dataclasses.fields(root) if not dataclasses.is_dataclass(hints[item.name])}
    found = {f"{prefix}{name}": Setting(root, item, hints[name]) for name, item in plain.items()}
    for item in dataclasses.fields(root):
        if item.name not in plain:
            found |= declared_settings(cast(type, hints[item.name]), f"{prefix}{item.name}.")
    return found


def similar_settings(name: str, declared: Collection[str]) -> list[str]:
    """What may be meant by a setting that is not declared: those with the same last part, then those spelt alike.

    >>> similar_settings("files", ["index", "corpus.files", "k"]), similar_settings("kk", ["index", "k"])
    (['corpus.files'], ['k'])
    """
    last = name.rsplit(".", 1)[-1]
    same = [known for known in declared if known.rsplit(".", 1)[-1] == last]
    return list(dict.fromkeys([*same, *get_close_matches(name, declared, n=3, cutoff=0.5)]))


def overview() -> str:
    """What the program is for, and its verbs."""
    verbs = "\n".join(f"  {name:<10}{verb.summary}" for name, verb in VERBS.items())
    return USAGE.format(verbs=verbs, build=VERBS["build"].example, fill=VERBS["fill"].example)


def verb_help(name: str, *, whole: bool) -> str:
    """Settings of the verb `name`, those that people change with a line each, or the whole of them and of their texts.

    What is required comes first.
    """
    verb = VERBS[name]
    settings = declared_settings(verb.root)
    lines = [f"npmlm {name} – {(verb.root.__doc__ or '').strip().splitlines()[0]}", "", f"  {verb.example}", ""]
    lines += [f"  {group}={'|'.join(choices)}  sets several at once\n" for group, choices in verb.choices.items()]
    lines.append("settings (name = default):")
    for key in sorted(settings if whole else verb.first.split(), key=lambda key: not settings[key].is_required):
        text = settings[key].text
        lines.append(f"\n  {key} = {settings[key].shown}")
        if whole:
            lines.extend(
                textwrap.wrap(text, 96, initial_indent="      ", subsequent_indent="      ", break_on_hyphens=False)
            )
        else:
            lines.append("      " + textwrap.shorten(text, 96, placeholder=" …", break_on_hyphens=False))
    if not whole:
        lines.append(f"\nnpmlm {name} --help all shows all {len(settings)} settings.")
    return "\n".join(lines)


@cache
def _field_docstrings(settings: type) -> dict[str, str]:
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

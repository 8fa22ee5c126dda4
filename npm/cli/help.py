"""The settings that a class declares, and what `npmlm --help` and `npmlm VERB --help` print of them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, cast, get_args, get_origin, get_type_hints

from npm.settings import Bounds, bounds_of

USAGE = """\
npmlm fills <mask> with phrases that stand in your corpus, and says where.

usage: npmlm VERB [key=value ...] [text ...]

  npmlm build corpus.files=[docs/*.jsonl] index=DIR
  npmlm fill index=DIR "The capital of Iceland is <mask>."

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
        return get_args(self.hint)[0] if get_origin(self.hint) is not None and self._marks else self.hint

    @property
    def _marks(self) -> tuple[Any, ...]:
        return getattr(self.hint, "__metadata__", ())

    @property
    def is_path(self) -> bool:
        """Whether it names a file, a folder or an encoder, or several of them."""
        return "path" in self._marks

    @property
    def is_list(self) -> bool:
        """Whether it is a list of texts, or nothing."""
        return self.kind in (list[str], list[str] | None)

    @property
    def is_text(self) -> bool:
        """Whether it is a plain string, or nothing."""
        return not self.is_path and self.kind in (str, str | None)

    @property
    def is_free_group(self) -> bool:
        """Whether the keys in it are those that its user chooses, such as in objective.others."""
        return get_origin(self.kind) is dict

    @property
    def text(self) -> str:
        """Its docstring, in one line."""
        return " ".join(_field_docstrings(self.owner).get(self.field.name, "").split())

    @property
    def bounds(self) -> Bounds | None:
        """Which numbers it may be."""
        return bounds_of(self.owner).get(self.field.name)

    @property
    def shown(self) -> str:
        """Its default and what else it may be."""
        item = self.field
        value = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        if isinstance(value, Enum):
            return f"{value.name}  ({'|'.join(member.name for member in type(value))})"
        if value is None or isinstance(value, bool):
            shown = {None: "null", True: "true", False: "false"}[value]
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        return f"{shown}  ({self.bounds.expected})" if self.bounds else shown


def declared_settings(root: type, prefix: str = "") -> dict[str, Setting]:
    """Every leaf of a settings dataclass and of the dataclasses in it, by dotted name; plain ones before groups."""
    hints = get_type_hints(root, include_extras=True)
    plain = {item.name: item for item in dataclasses.fields(root) if not dataclasses.is_dataclass(hints[item.name])}
    found = {f"{prefix}{name}": Setting(root, item, hints[name]) for name, item in plain.items()}
    for item in dataclasses.fields(root):
        if item.name not in plain:
            found |= declared_settings(cast(type, hints[item.name]), f"{prefix}{item.name}.")
    return found


def verb_help(
    verb: str, root: type, *, first: Sequence[str] | None = None, groups: Mapping[str, Sequence[str]] = {}
) -> str:
    """Settings of one verb: those named in `first`, with a line each, or all of them, with all there is to say.

    `groups` are the files of settings to choose from, by the name of their group.
    """
    settings = declared_settings(root)
    lines = [f"npmlm {verb} – {(root.__doc__ or '').strip().splitlines()[0]}", ""]
    lines += [f"  {name}={'|'.join(choices)}  sets several at once\n" for name, choices in groups.items()]
    lines.append("settings (name = default):")
    for name in settings if first is None else first:
        text = settings[name].text
        lines.append(f"\n  {name} = {settings[name].shown}")
        if first is None:
            lines.extend(
                textwrap.wrap(text, 96, initial_indent="      ", subsequent_indent="      ", break_on_hyphens=False)
            )
        else:
            lines.append("      " + textwrap.shorten(text, 96, placeholder=" …", break_on_hyphens=False))
    if first is not None:
        lines.append(f"\nnpmlm {verb} --help all shows all {len(settings)} settings.")
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

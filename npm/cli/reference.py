"""The reference pages of the site, written from what the program says of itself, so that nothing is written twice.

Commands and settings come from the source of `npmlm VERB --help`, routes from docs/openapi.json, notebooks from their
percent scripts. `scripts/docs_pages.py` puts the pages into docs/generated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from npm.cli.help import Setting, declared_settings
from npm.cli.verbs import VERBS

OBJECTS = "#/components/schemas/"
"""What the names of objects begin with in a description of routes."""
CELL_MARK = re.compile(r"^# %%(.*)$", flags=re.MULTILINE)
NOT_TEXT = str.maketrans({mark: f"&#{ord(mark)};" for mark in "&<>|*_~^[]{}\\"})
"""What Markdown or HTML would take for a mark of its own."""


def command_pages() -> dict[str, str]:
    """A page for each verb with all of its settings, and `commands.md`, which lists them; by file name."""
    lines = ["# Commands and settings", ""]
    lines += ["What `npmlm VERB --help all` prints, verb by verb. A setting is written `name=value`; lists stand in"]
    lines += [
        "brackets, `null` is nothing, and what is unknown is refused.",
        "",
        "| command | what it does | settings |",
    ]
    lines += ["|---|---|---:|"]
    for name, verb in VERBS.items():
        lines.append(f"| [`npmlm {name}`](commands/{name}.md) | {verb.summary} | {len(declared_settings(verb.root))} |")
    pages = {"commands.md": "\n".join(lines) + "\n"}
    return pages | {f"commands/{name}.md": "\n".join(_command_lines(name)) + "\n" for name in VERBS}


def _command_lines(name: str) -> Iterator[str]:
    verb = VERBS[name]
    settings = declared_settings(verb.root)
    yield from (f"# npmlm {name}", "", plain_markdown((verb.root.__doc__ or "").strip().splitlines()[0]), "")
    yield from ("```text", verb.example, "```", "")
    for group, choices in verb.choices.items():
        yield from (f"`{group}=` sets several at once: {', '.join(f'`{choice}`' for choice in choices)}.", "")
    yield from (f"What people change: {', '.join(f'`{key}`' for key in verb.first.split())}.", "")
    first = [key for key in verb.first.split() if "." not in key]
    by_group: dict[str, dict[str, Setting]] = {"": {key: settings[key] for key in first}}
    for key, setting in settings.items():
        by_group.setdefault(key.rpartition(".")[0], {})[key] = setting
    yield from ("## All settings", "")
    for group, members in by_group.items():
        if group:
            yield from (f"### {group}", "")
        yield from _settings_table(members)


def _settings_table(settings: Mapping[str, Setting]) -> Iterator[str]:
    yield from ("| setting | default | what it is |", "|---|---|---|")
    for key in sorted(settings, key=lambda key: not settings[key].is_required):
        yield f"| `{key}` | {default_cell(settings[key].shown)} | {plain_markdown(settings[key].text)} |"
    yield ""


def default_cell(shown: str) -> str:
    """A default and what else a setting may be, as `Setting.shown` has them, for a cell of a table.

    >>> default_cell("auto  (auto|float32)"), default_cell("0.5  (at least 0)"), default_cell(""), default_cell("[]")
    ('`auto` (auto, float32)', '`0.5` (at least 0)', 'empty', '`[]`')
    """
    if shown == "(required)":
        return "required"
    value, _, rest = shown.partition("  (")
    return (f"`{value}`" if value else "empty") + (f" ({rest.replace('|', ', ')}" if rest else "")


def plain_markdown(text: str) -> str:
    """Text whose code spans stay code and in which nothing else is a mark of Markdown or HTML.

    >>> print(plain_markdown("`<mask>` is a place, <mask>, and e^s | e^t"))
    `<mask>` is a place, &#60;mask&#62;, and e&#94;s &#124; e&#94;t
    """
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if number % 2 else part.translate(NOT_TEXT) for number, part in enumerate(parts))


def http_page(description: Mapping[str, Any]) -> str:
    """The routes of the server and the objects that go in and out, from its OpenAPI description."""
    lines = ["# HTTP", "", plain_markdown(description["info"]["summary"]), ""]
    lines += [
        "Errors are `application/problem+json` (RFC 9457). A running server shows the same at `/docs`, where it can"
    ]
    lines += [
        "be tried; [openapi.json](../openapi.json) is the same for programs, [Serving](../serving.md) the guide.",
        "",
    ]
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            lines += [f"## {method.upper()} {plain_markdown(path)}", ""]
            lines += [*_route_lines(route), ""]
    lines += ["## Objects", ""]
    for name, schema in description["components"]["schemas"].items():
        lines += [f"### {name}", "", *_paragraphs(schema.get("description", ""))]
        lines += [*_fields_table(schema.get("properties", {}), schema.get("required", ())), ""]
    return "\n".join(lines)


def _route_lines(route: Mapping[str, Any]) -> Iterator[str]:
    yield from _paragraphs(route.get("description", ""))
    if parameters := route.get("parameters"):
        needed = [each["name"] for each in parameters if each["required"]]
        yield from _fields_table({each["name"]: each["schema"] for each in parameters}, needed)
        yield ""
    for kind, body in route.get("requestBody", {}).get("content", {}).items():
        yield f"Takes {kind_of(body['schema'])} as `{kind}`.  "
    for kind, body in route["responses"]["200"].get("content", {}).items():
        yield f"Gives {kind_of(body['schema'])} as `{kind}`.  "
    yield f"Other statuses: {', '.join(status for status in route['responses'] if status != '200')}."


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in filter(None, text.split("\n\n")):
        yield from (plain_markdown(" ".join(paragraph.split())), "")


def _fields_table(fields: Mapping[str, Mapping[str, Any]], required: Any) -> Iterator[str]:
    if not fields:
        return
    yield from ("| field | what it may be | default |", "|---|---|---|")
    for name, schema in fields.items():
        default = (
            "required" if name in required else f"`{json.dumps(schema['default'])}`" if "default" in schema else ""
        )
        said = plain_markdown(schema.get("description", ""))
        yield f"| `{name}` | {kind_of(schema)}{'. ' if said else ''}{said} | {default} |"


def kind_of(schema: Mapping[str, Any]) -> str:
    """What a value of a JSON schema may be, in words, with links to objects.

    >>> kind_of({"type": "array", "items": {"$ref": "#/components/schemas/Phrase"}})
    'list of [Phrase](#phrase)'
    >>> kind_of({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 100}, {"type": "null"}]})
    'integer, at least 1, at most 100; or null'
    """
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(OBJECTS)
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return "; or ".join(kind_of(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {kind_of(schema['items'])}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object from names to {kind_of(schema['additionalProperties'])}"
    bounds = {"minimum": "at least", "maximum": "at most", "maxLength": "at most"}
    units = {"maxLength": " characters"}
    said = [f"{words} {int(schema[key])}{units.get(key, '')}" for key, words in bounds.items() if key in schema]
    return ", ".join([schema.get("type", "any value"), *said])


def notebook_page(source: str) -> str:
    """A percent script as Markdown: text cells as text, the others as Python.

    >>> print(notebook_page("# %% [markdown]\\n# # One\\n# Text.\\n\\n# %%\\nprint(1)\\n").replace("`", "'"))
    # One
    Text.
    <BLANKLINE>
    '''py
    print(1)
    '''
    <BLANKLINE>
    """
    _, *cells = CELL_MARK.split(source)
    parts = []
    for kind, body in zip(cells[::2], cells[1::2], strict=True):
        text = body.strip("\n")
        if "[markdown]" in kind:
            parts.append("\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines()))
        else:
            parts.append(f"```py\n{text}\n```")
    return "\n\n".join(parts) + "\n"

"""Write the pages of the site that are not written by hand into docs/generated: `make site` calls it.

    python scripts/docs_pages.py

Commands and settings from the source of `npmlm VERB --help`, HTTP routes from docs/openapi.json, and notebooks from
their percent scripts. What an earlier run left there is removed.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from npm.cli.declared import Setting
from npm.cli.help import summary_of
from npm.cli.registry import MODULES, OVERVIEW, find_verb

DOCS = Path(__file__).parents[1] / "docs"
COMMANDS = """\
What `npmlm VERB --help all` prints, verb by verb. A setting is written `name=value`; lists are in brackets, `null` is
nothing, and unknown settings are refused.
"""
HTTP = """\
A running server shows the same at `/docs`, where it can be tried; [openapi.json](../openapi.json) is the same for
programs, [Serving](../serving.md) the guide.
"""
OBJECTS = "#/components/schemas/"
CELL_MARK = re.compile(r"^# %%(.*)$", flags=re.MULTILINE)
NOT_TEXT = str.maketrans({mark: f"&#{ord(mark)};" for mark in "&<>|*_~^[]{}\\"})


def command_pages() -> dict[str, str]:
    """A page for each verb with all of its settings, and `commands.md`, which lists them; by file name."""
    lines = ["# Commands and settings", "", COMMANDS]
    for group, modules in OVERVIEW.items():
        lines += [f"## {group}", "", "| command | what it does | settings |", "|---|---|---:|"]
        for name, summary in (each for verbs in modules.values() for each in verbs.items()):
            count = len(find_verb(name).settings)
            lines.append(f"| [`npmlm {name}`](commands/{name}.md) | {plain_markdown(summary)} | {count} |")
        lines.append("")
    pages = {"commands.md": "\n".join(lines)}
    return pages | {f"commands/{name}.md": "\n".join(_command_lines(name)) + "\n" for name in MODULES}


def _command_lines(name: str) -> Iterator[str]:
    verb = find_verb(name)
    settings = verb.settings
    yield from (f"# npmlm {name}", "", plain_markdown(summary_of(verb.root)), "", "```text", verb.example, "```", "")
    for preset, names in verb.choices.items():
        choices = ", ".join(f"`{choice}`" for choice in names)
        yield from (f"`{preset}=` sets several at once: {choices}.", "")
    yield from (f"What people change: {', '.join(f'`{key}`' for key in verb.first)}.", "")
    first = [key for key in verb.first if "." not in key]
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
    """A default and what else a setting may be, as `Setting.shown` has them, for a cell of a table."""
    if shown == "(required)":
        return "required"
    value, _, rest = shown.partition("  (")
    return (f"`{value}`" if value else "empty") + (f" ({rest.replace(' | ', ', ')}" if rest else "")


def plain_markdown(text: str) -> str:
    """Text whose code spans stay code and in which nothing else is a mark of Markdown or HTML."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if number % 2 else part.translate(NOT_TEXT) for number, part in enumerate(parts))


def http_page(description: Mapping[str, Any]) -> str:
    """The routes of the server and the objects that go in and out, from its OpenAPI description."""
    info = description["info"]
    lines = ["# HTTP", "", plain_markdown(info["summary"]), "", HTTP, "## Errors", "", info["description"], ""]
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
    yield from _paragraphs(f"{route['summary']}\n\n{route.get('description', '')}")
    if parameters := route.get("parameters"):
        needed = [each["name"] for each in parameters if each["required"]]
        fields = {each["name"]: {**each["schema"], "description": each["description"]} for each in parameters}
        yield from _fields_table(fields, needed)
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


def main(docs: Path = DOCS) -> int:
    """Write all pages; returns 0."""
    pages = command_pages()
    pages["http.md"] = http_page(json.loads((docs / "openapi.json").read_text("utf-8")))
    for script in sorted((docs / "notebooks").glob("*.py")):
        pages[f"notebooks/{script.stem}.md"] = notebook_page(script.read_text("utf-8"))
    out = docs / "generated"
    shutil.rmtree(out, ignore_errors=True)
    for name, page in pages.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(page, "utf-8")
    sys.stdout.write(f"{len(pages)} pages are in {out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Texts of `npmlm --help` and `npmlm VERB --help`, as wide as the terminal."""

from __future__ import annotations

import re
import shutil
import textwrap

from npm.cli.registry import OVERVIEW, Verb

MOST_COLUMNS = 100


def overview() -> str:
    """Purpose of the program, and its verbs by group."""
    lines = [
        _wrapped("npmlm fills <mask> with phrases of your corpus, and cites them."),
        "\nusage: npmlm VERB [key=value ...] [text ...]\n",
        '  npmlm build "corpus.files=[docs/*.jsonl]" index=DIR',
        '  npmlm fill index=DIR "The capital of Iceland is <mask>."',
    ]
    for group, modules in OVERVIEW.items():
        lines.append(f"\n{group}")
        verbs = [each for members in modules.values() for each in members.items()]
        lines += [_wrapped(summary, f"  {name:<11}", " " * 13) for name, summary in verbs]
    lines.append("")
    lines.append(
        _wrapped(
            "npmlm VERB --help shows the settings that people change, --help all shows every one; npmlm --version "
            "prints the version. npmlm VERB -m key=a,b runs each value into a numbered folder, --cfg job prints the "
            "composed settings. debug=true shows the full traceback of an error. Everything after -- is text, even if "
            "it looks like a setting."
        )
    )
    return "\n".join(lines)


def verb_help(verb: Verb, *, is_full: bool) -> str:
    """The settings of a verb: the usual ones with a sentence each, or all with their complete texts.

    Required ones come first.
    """
    settings = verb.settings
    lines = [_wrapped(f"npmlm {verb.name} – {summary_of(verb.root)}"), "", _wrapped(verb.example, "  ", "    "), ""]
    for preset, choices in verb.choices.items():
        lines.append(_wrapped(f"{preset}={' | '.join(choices)}  sets several at once", "  ", "    ") + "\n")
    lines.append("settings (name = default):")
    for key in sorted(settings if is_full else verb.first, key=lambda key: not settings[key].is_required):
        text = settings[key].text
        lines.append("\n" + _wrapped(f"{key} = {settings[key].shown}", "  ", "    "))
        lines.append(_wrapped(text if is_full else re.split(r"(?<=\.)\s", text)[0], "      ", "      "))
    if not is_full:
        lines.append("\n" + _wrapped(f"npmlm {verb.name} --help all shows all {len(settings)} settings."))
    return "\n".join(lines)


def summary_of(root: type) -> str:
    """The first line of the docstring of a settings class."""
    return (root.__doc__ or "").strip().splitlines()[0]


def _wrapped(text: str, first: str = "", later: str = "") -> str:
    width = min(shutil.get_terminal_size().columns, MOST_COLUMNS)
    return textwrap.fill(
        text,
        max(width, 30),
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
        break_long_words=False,
    )

"""The shell blocks of Markdown pages as commands, and a folder in which they run like in a clone."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.command_line import REPOSITORY, CommandLine, Outcome, write_corpus, zstd

HEREDOC = re.compile(r"^cat > (\S+) <<'END'\n(.*?)^END\n", flags=re.MULTILINE | re.DOTALL)
WIKI_DOCUMENTS, WIKI_FILES = 30, 3


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a block: its words, and the file that its output goes to."""

    words: tuple[str, ...]
    output: str | None = None


def pages_of_docs() -> list[Path]:
    """The written pages of docs that tell a user what to type: not those of results, and none of the past."""
    return sorted([*(REPOSITORY / "docs").glob("*.md"), *(REPOSITORY / "docs/studies").glob("*.md")])


def bash_blocks(page: str) -> list[str]:
    """The fenced blocks of a page that are marked as bash."""
    return re.findall(r"^```bash\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)


def commands_of(block: str) -> list[Command]:
    """The commands of a block without its here documents and their folders, which `run_block` makes."""
    lines = HEREDOC.sub("", block).replace("\\\n", " ").splitlines()
    found = []
    for words in (shlex.split(line, comments=True) for line in lines):
        if words[:1] in ([], ["mkdir"]):
            continue
        redirected = len(words) > 2 and words[-2] == ">"
        found.append(Command(tuple(words[:-2]), words[-1]) if redirected else Command(tuple(words)))
    return found


def run_block(block: str, npmlm: CommandLine, changed: dict[str, tuple[str, ...]]) -> list[Outcome]:
    """Run a block of `npmlm` commands in this process and the working directory.

    `changed` are settings by verb, in the place of those that a command gives or behind them.
    """
    for name, text in HEREDOC.findall(block):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    outcomes = []
    for command in commands_of(block):
        program, verb, *words = command.words
        assert program == "npmlm", command
        settings = {word.partition("=")[0]: word for word in (*words, *changed.get(verb, ()))}
        outcomes.append(npmlm(verb, *settings.values()))
        if command.output:
            Path(command.output).write_text(outcomes[-1].out, encoding="utf-8")
    return outcomes


def make_workplace(folder: Path, demo_index: Path) -> Path:
    """A folder with what the blocks of the pages name: links to this checkout, small corpora, an encoder, the index."""
    (folder / "docs").mkdir(parents=True)
    (folder / "texts").mkdir()
    for path in (REPOSITORY / "docs").iterdir():
        (folder / "docs" / path.name).symlink_to(path)
    for name in ("npm", "configs", "scripts"):
        (folder / name).symlink_to(REPOSITORY / name)
    for name in ("runs/demo", "runs/mlm", "wiki"):
        (folder / name).mkdir(parents=True)
    (folder / "runs/demo/index").symlink_to(demo_index)
    for name in ("runs/mlm/encoder", "DIR"):
        (folder / name).symlink_to(REPOSITORY / "npm/assets/encoder-mini")
    outage = "The service was down for an hour. The outage was caused by a power failure in Lyon."
    write_corpus(folder / "texts/manual.jsonl", [{"id": "outage", "title": "Outage", "text": outage, "year": 2024}])
    (folder / "notes.txt").write_text("The new router was installed by Ana Duarte in May.", encoding="utf-8")
    (folder / "questions.txt").write_text("The router was installed by <mask>.\nThe failure was in <mask>.\n", "utf-8")
    rows = [json.loads(line) for path in demo_files() for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [row | {"lang": "en", "year": 1980 + number % 40} for number, row in enumerate(rows)]
    for number in range(WIKI_FILES):
        part = rows[number * WIKI_DOCUMENTS : (number + 1) * WIKI_DOCUMENTS]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part).encode()
        (folder / f"wiki/{number}.jsonl.zst").write_bytes(zstd(text))
    write_corpus(
        folder / "new.jsonl", [{"id": "treaty", "title": "Treaty", "text": "It was signed in Oslo.", "lang": "en"}]
    )
    reviews = [("A warm and funny film.", "good"), ("Dull from the first minute on.", "bad")]
    rows = [{"id": f"{number}", "text": text, "label": label} for number, (text, label) in enumerate(reviews * 2)]
    for name in ("reviews.jsonl", "held-out.jsonl"):
        write_corpus(folder / name, rows)
    return folder


def demo_files() -> list[Path]:
    """The files of the demo corpus."""
    return sorted((REPOSITORY / "npm/assets/demo").glob("*.jsonl"))

"""What the Dockerfile says, read without Docker."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "Dockerfile"


@dataclass
class Stage:
    """A stage of the build: the stage or image that it begins with, and its instructions in order."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        """What stands behind each instruction `name`."""
        return [words for instruction, words in self.instructions if instruction == name]


def dockerfile_stages() -> dict[str, Stage]:
    """The stages by name, each with the instructions of those that it begins with in front."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    stages: dict[str, Stage] = {}
    for line in filter(None, text.replace("\\\n", " ").splitlines()):
        instruction, _, words = line.partition(" ")
        if instruction == "FROM":
            base, _, name = words.partition(" AS ")
            stages[name] = Stage(base, [*stages[base].instructions] if base in stages else [])
        else:
            stages[name].instructions.append((instruction, words.strip()))
    return stages


def copied_sources() -> list[str]:
    """The files and folders of the checkout that the images are made from."""
    copies = [shlex.split(words) for words in dockerfile_stages()["wheel"].all("COPY")]
    return [source for *sources, _ in copies for source in sources]


def health_command(stage: Stage) -> list[str]:
    """The words of the command that says whether the container is well."""
    (check,) = stage.all("HEALTHCHECK")
    words: list[str] = json.loads(check.partition("CMD ")[2])
    return words

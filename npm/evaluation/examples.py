"""One example of a task: the text that is asked, and what is right."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with one `<mask>`, and its gold label (closed tasks) or its gold answers (open tasks)."""

    id: str
    """Its place in the file, from 0; unique within a task, and the same whatever `limit` is."""
    text: str
    """The task's template with the example's fields in it, one `<mask>`."""
    label: int = -1
    """Closed tasks: number of the right label, in the task's order."""
    answers: tuple[str, ...] = ()
    """Open tasks: everything that is right."""
    group: str = ""
    """What the example belongs to, such as a relation or a language; "" where the task names no such column."""
    subject: str = ""
    """Open tasks: the entity that is asked about; "" where the task names no such column."""
    cut: bool = False
    """Whether the text was longer than the encoder takes and the task allowed to cut it."""
    blank: bool = False
    """Whether nothing of the example stands in the text: its fields were blank, so that the template is all of it."""
    passage: str = ""
    """Closed tasks: the longest of the example's fields as it stands in the text."""

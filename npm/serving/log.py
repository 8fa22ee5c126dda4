"""The request log: a line of JSON a request, without texts unless they are asked for."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from npm.core.errors import StorageError


class RequestLog:
    """A file that lines are added to; one that takes no more lines does not stop the server."""

    def __init__(self, place: str, *, notice: Callable[[str], None]) -> None:
        """`place` is a path, - for standard error, or empty for no log. Raises StorageError if it cannot be opened."""
        self._notice = notice
        self._stream: TextIO | None = sys.stderr if place == "-" else None
        if place not in ("", "-"):
            try:
                self._stream = Path(place).open("a", encoding="utf-8")  # noqa: SIM115 - open as long as the server
            except OSError as error:
                raise StorageError(f"log: cannot write {place}: {error.strerror or error}") from error

    def write(self, **record: Any) -> None:
        """Add a line with the present time in front."""
        if self._stream is None:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            self._stream.write(json.dumps({"time": now, **record}, ensure_ascii=False) + "\n")
            self._stream.flush()
        except OSError as error:
            self._notice(f"the request log ends here: {error.strerror or error}")
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None and self._stream is not sys.stderr:
            with contextlib.suppress(OSError):
                self._stream.close()
        self._stream = None

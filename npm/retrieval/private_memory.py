"""Private memory of this process: what no file backs, so that only the process itself can give it back."""

from __future__ import annotations

import threading
from pathlib import Path

SAMPLE_SECONDS = 0.01
PRIVATE_FIELDS = ("RssAnon", "RssShmem")


def private_bytes(process: int | str = "self") -> int:
    """RssAnon + RssShmem of a process, by /proc; 0 where there is no /proc, or no such process any more."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return 0
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    # a process that has ended, but was not yet waited for, has no such fields
    return sum(1024 * int(fields[name].split()[0]) for name in PRIVATE_FIELDS if name in fields)


class PeakMemory:
    """Samples the private memory of this process in the background while it is entered."""

    def __init__(self) -> None:
        self._before = self._peak = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    @property
    def growth(self) -> int:
        """Bytes at the peak above those at the beginning."""
        return self._peak - self._before

    def __enter__(self) -> PeakMemory:
        self._before = self._peak = private_bytes()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._peak = max(self._peak, private_bytes())

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self._peak = max(self._peak, private_bytes())

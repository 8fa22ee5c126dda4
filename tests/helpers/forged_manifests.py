"""Manifests in which one value is another one, with every digest right: what somebody may hand on as an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npm.core.files import digest_of

VALUES = (None, -1, 2**70, 1.5, "x", "../../theirs", "/etc/passwd", [], [None], {}, {"x": None}, True)
NAMES = ("x", "../../theirs", "/etc/passwd")
Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Forgery:
    """One value of one manifest, or one name in it, replaced."""

    manifest: str  # its folder, relative to the index
    place: Place
    value: Any
    renames: bool = False

    def __str__(self) -> str:
        return f"{self.manifest}:{'.'.join(map(str, self.place))}{'~' if self.renames else '='}{self.value!r}"

    def write(self, index: Path) -> None:
        """Forge the manifest, and all that name its digest."""
        manifests = {path: json.loads(path.read_bytes()) for path in index.rglob("manifest.json")}
        (forged,) = index.glob(f"{self.manifest}/manifest.json")  # a part may be named as search-*
        *way, last = (next(index.glob(key)).name if str(key).endswith("-*") else key for key in self.place)
        holder = manifests[forged]
        for key in way:
            holder = holder[key]
        if self.renames:
            holder[self.value] = holder.pop(last)
        else:
            holder[last] = self.value
        changed = [forged]
        while changed:
            path = changed.pop()
            old = manifests[path].pop("digest")
            manifests[path]["digest"] = new = digest_of(manifests[path])
            for other in manifests.keys() - {path}:
                if old in (text := json.dumps(manifests[other])):
                    manifests[other] = json.loads(text.replace(old, new))
                    changed.append(other)
        for path, content in manifests.items():
            path.write_text(json.dumps(content), encoding="utf-8")


def places(content: Any, above: Place = ()) -> Iterator[Place]:
    """Where a manifest holds something: of a list its first entry."""
    names = content if isinstance(content, dict) else range(min(len(content), 1)) if isinstance(content, list) else ()
    for name in names:
        if above or name not in ("digest", "format_version", "kind"):
            yield (*above, name)
            yield from places(content[name], (*above, name))


def forgeries(index: Path) -> Iterator[Forgery]:
    """All of an index."""
    for path in sorted(index.rglob("manifest.json")):
        content, folder = json.loads(path.read_bytes()), path.parent.relative_to(index).as_posix()
        for place in places(content):
            yield from (Forgery(folder, place, value) for value in VALUES)
            if isinstance(place[-1], str) and len(place) > 1:
                yield from (Forgery(folder, place, name, renames=True) for name in NAMES)

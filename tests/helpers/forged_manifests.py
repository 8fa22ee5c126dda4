"""Manifests in which one value is another one, with every digest right: what somebody may hand on as an index."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npm.core.files import digest_of

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

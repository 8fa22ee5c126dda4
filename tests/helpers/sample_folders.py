"""A folder with an array, a stream, a JSON value and plain bytes, and ways to spoil it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from npm.core.artifact import write_folder
from npm.core.files import digest_of

MATRIX = np.arange(12, dtype=np.float32).reshape(4, 3)


def write_sample(path: Path) -> Path:
    with write_folder(path, kind="sample", settings={"seed": 7, "name": "Reykjavík"}) as writer:
        writer.write_array("matrix", MATRIX)
        writer.write_json("words", {"b": "ö", "a": [1, 2]})
        stream = writer.stream_array("stream", np.uint16, (2,))
        stream.append(np.array([[1, 2], [3, 4]], dtype=np.uint16))
        stream.append(np.array([[5, 6]], dtype=np.uint16))
        stream.close()
        writer.open_binary("raw.bin").write(b"any bytes")
    return path


def flip_byte(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def rewrite_manifest(folder: Path, **changes: object) -> None:
    """Change the manifest and give it a digest that fits."""
    content = json.loads((folder / "manifest.json").read_bytes()) | changes
    del content["digest"]
    (folder / "manifest.json").write_text(json.dumps(content | {"digest": digest_of(content)}))

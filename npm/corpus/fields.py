"""The kept fields of a shard's documents as columns: each distinct value once, and a code a document.

field_values.json  {field: [value, …]}, the distinct values in the order in which they first come
field_codes.npy    i32 [fields, documents], fields in the order of their names; -1 where a document lacks the field
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from index.store import FolderWriter, open_array
from npm.corpus.held_files import HeldFile

VALUES_NAME = "field_values"
CODES_NAME = "field_codes"
MISSING = -1

FieldValues = dict[str, tuple[list[Any], np.ndarray]]
"""By field: its distinct JSON values, and i32 [documents], the place of each document's among them, -1 without."""


class FieldEncoder:
    """Gathers the fields of documents in the order of their numbers; null counts as missing."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {}
        self._codes_by_text: dict[str, dict[str, int]] = {}
        self._codes: dict[str, array[int]] = {}  # i32, up to the last document that has the field

    def append(self, number: int, fields: Mapping[str, Any]) -> None:
        """Add the fields of document `number` of the shard; numbers ascend."""
        for name, value in fields.items():
            if value is None:
                continue
            if name not in self._values:
                self._values[name], self._codes_by_text[name], self._codes[name] = [], {}, array("i")
            # By their JSON text, since 1, 1.0 and true are equal in Python, and lists are no keys.
            text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
            code = self._codes_by_text[name].setdefault(text, len(self._values[name]))
            if code == len(self._values[name]):
                self._values[name].append(value)
            codes = self._codes[name]
            codes.extend([MISSING] * (number - len(codes)))
            codes.append(code)

    def write(self, folder: FolderWriter, *, document_count: int) -> None:
        """Write the columns of all documents of the shard."""
        names = sorted(self._values)
        codes = np.full((len(names), document_count), MISSING, dtype=np.int32)  # [fields, documents]
        for row, name in enumerate(names):
            codes[row, : len(self._codes[name])] = self._codes[name]
        folder.write_json(VALUES_NAME, self._values)
        folder.write_array(CODES_NAME, codes)


class FieldColumns:
    """The kept fields of the documents of a shard, read from its folder; the values stay on disk."""

    def __init__(self, folder: Path) -> None:
        codes = open_array(folder, CODES_NAME)  # i32 [fields, documents]
        # Most corpora keep no field: then nothing is held open.
        self._codes = np.asarray(codes) if len(codes) else None
        self._values_file = HeldFile(folder / f"{VALUES_NAME}.json") if len(codes) else None

    def read(self) -> FieldValues:
        """The values and codes of every field.

        >>> import tempfile
        >>> from index.store import write_folder
        >>> folder = Path(tempfile.mkdtemp()) / "shard"
        >>> with write_folder(folder, kind="example", settings={}) as writer:
        ...     fields = FieldEncoder()
        ...     fields.append(0, {"lang": "en"})
        ...     fields.append(2, {"lang": "de"})
        ...     fields.append(3, {"lang": "en"})
        ...     fields.write(writer, document_count=5)
        >>> values, codes = FieldColumns(folder).read()["lang"]
        >>> values, codes.tolist()
        (['en', 'de'], [0, -1, 1, 0, -1])
        """
        if self._values_file is None or self._codes is None:
            return {}
        values: dict[str, list[Any]] = json.loads(self._values_file.read(0, self._values_file.byte_count))
        # The file has its keys sorted, as the rows of codes are.
        return {name: (own, codes) for (name, own), codes in zip(values.items(), self._codes, strict=True)}

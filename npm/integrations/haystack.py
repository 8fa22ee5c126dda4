"""Haystack: a component that retrieves sentences, and the tools of `npmlm mcp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from inspect import getdoc
from typing import TYPE_CHECKING, Any, Self

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.tools import Tool
from pydantic import TypeAdapter

from npm.core.artifact import MANIFEST_NAME
from npm.core.errors import SettingError
from npm.core.settings import as_json, read_settings
from npm.integrations import found_sentences, tool_functions
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.remote import RemoteFiller
from npm.retrieval.settings import FillSettings

if TYPE_CHECKING:
    from npm.integrations import Filler


@component
class PhraseRetriever:
    """Sentences of the documents that answer a question or complete a statement with <mask>, best first."""

    def __init__(self, filler: Filler, top_k: int = 5, occurrences: int = 1, where: Sequence[str] = ()) -> None:
        """The best `top_k` phrases, each with at most `occurrences` sentences, of documents that meet `where`."""
        self._filler, self._top_k, self._occurrences, self._where = filler, top_k, occurrences, where

    @component.output_types(documents=list[Document])
    def run(self, query: str, top_k: int | None = None) -> dict[str, Any]:
        """The `documents`; a `top_k` here replaces that of the component."""
        k = self._top_k if top_k is None else top_k
        found = found_sentences(self._filler, query, k=k, occurrences=self._occurrences, where=self._where)
        return {"documents": [Document(content=each.text, meta=each.metadata, score=each.share) for each in found]}

    def to_dict(self) -> dict[str, Any]:
        """The component for a saved pipeline: its index and settings, or the address of its server, without a key.

        Raises SettingError for a filler over an index in memory.
        """
        where = list(self._where)
        return default_to_dict(
            self, filler=_record(self._filler), top_k=self._top_k, occurrences=self._occurrences, where=where
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The component of `to_dict`, with the index opened, or the server connected, anew; raises as both do."""
        given = data["init_parameters"]
        opened: Self = default_from_dict(
            cls, {**data, "init_parameters": {**given, "filler": _opened(given["filler"])}}
        )
        return opened


def _record(filler: Filler) -> dict[str, Any]:
    if isinstance(filler, RemoteFiller):
        return {"url": filler.url}
    folder = filler.index.folder
    if not (folder / MANIFEST_NAME).is_file():
        raise SettingError(
            "a filler over an index in memory cannot be saved: build the index into a folder, and open it"
        )
    return {"index": str(folder), "settings": as_json(asdict(filler.settings))}


def _opened(record: Mapping[str, Any]) -> Filler:
    if "url" in record:
        return PhraseFiller.connect(record["url"])
    return PhraseFiller.open(record["index"], settings=read_settings(FillSettings, record["settings"]))


def phrase_tools(filler: PhraseFiller) -> list[Tool]:
    """Tools that answer, find, trace, label and read with the opened index of `filler`."""
    return [
        Tool(
            name=tool.__name__,
            description=getdoc(tool) or "",
            parameters=TypeAdapter(tool).json_schema(),  # type: ignore[arg-type] # a function is allowed
            function=tool,
        )
        for tool in tool_functions(filler)
    ]

"""Haystack: a component that retrieves sentences, and the tools of `npmlm mcp`."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import getdoc
from typing import TYPE_CHECKING, Any

from haystack import Document, component
from haystack.tools import Tool
from pydantic import TypeAdapter

from npm.integrations import found_sentences, tool_functions

if TYPE_CHECKING:
    from npm.integrations import Filler
    from npm.retrieval.filler import PhraseFiller


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

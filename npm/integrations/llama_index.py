"""LlamaIndex: a retriever of sentences, and the tools of `npmlm mcp`."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import getdoc
from typing import TYPE_CHECKING

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import FunctionTool

from npm.integrations import found_sentences, tool_functions

if TYPE_CHECKING:
    from npm.integrations import Filler
    from npm.retrieval.filler import PhraseFiller


class PhraseRetriever(BaseRetriever):
    """Sentences of the documents that answer a question or complete a statement with <mask>, best first."""

    def __init__(self, filler: Filler, *, k: int = 5, occurrences: int = 1, where: Sequence[str] = ()) -> None:
        """The best `k` phrases, each with at most `occurrences` sentences, of documents that meet `where`."""
        self._filler, self._k, self._occurrences, self._where = filler, k, occurrences, where
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = found_sentences(
            self._filler, query_bundle.query_str, k=self._k, occurrences=self._occurrences, where=self._where
        )
        return [
            NodeWithScore(node=TextNode(text=each.text, metadata=each.metadata), score=each.share) for each in found
        ]


def phrase_tools(filler: PhraseFiller) -> list[FunctionTool]:
    """Tools that answer, find, trace, label and read with the opened index of `filler`."""
    return [FunctionTool.from_defaults(tool, description=getdoc(tool)) for tool in tool_functions(filler)]

"""LangChain: a retriever of sentences, and the tools of `npmlm mcp`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import BaseTool, StructuredTool, ToolException

from npm.core.errors import UserError
from npm.integrations import found_sentences, tool_functions
from npm.retrieval.filler import PhraseFiller


class PhraseRetriever(BaseRetriever):
    """Sentences of the documents that answer a question or complete a statement with <mask>, best first."""

    filler: Any
    """A PhraseFiller, opened from a folder or connected to a server."""
    k: int = 5
    """Phrases at most."""
    occurrences: int = 1
    """Sentences per phrase at most."""
    where: tuple[str, ...] = ()
    """Conditions on the fields of documents, such as year>=2024."""

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002 - its presence is the signature
    ) -> list[Document]:
        found = found_sentences(self.filler, query, k=self.k, occurrences=self.occurrences, where=self.where)
        return [Document(page_content=each.text, metadata=each.metadata) for each in found]


def phrase_tools(filler: PhraseFiller) -> list[BaseTool]:
    """Tools that answer, find, trace, label and read with the opened index of `filler`."""
    return [StructuredTool.from_function(_telling(tool), handle_tool_error=True) for tool in tool_functions(filler)]


def _telling(tool: Callable[..., Any]) -> Callable[..., Any]:
    """`tool`, whose results are JSON, and whose UserErrors the model is told."""

    @wraps(tool)
    def told(*given: Any, **named: Any) -> Any:
        try:
            return tool(*given, **named).model_dump_json()
        except UserError as error:
            raise ToolException(str(error)) from error

    return told

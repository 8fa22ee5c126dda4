"""Retrievers and tools for other frameworks, each in the module of that name, which alone imports it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from npm.agents import Tools
from npm.core.types import JointAnswer

if TYPE_CHECKING:
    from npm.retrieval.filler import PhraseFiller
    from npm.retrieval.remote import RemoteFiller

    Filler = PhraseFiller | RemoteFiller


@dataclass(frozen=True, slots=True)
class FoundSentence:
    """A sentence of a document with the phrase that answers."""

    text: str
    share: float
    """Share of the phrase in the evidence, from 0 to 1."""
    metadata: dict[str, Any]
    """`phrase`, `share`, `confidence` of the first phrase (or None), and `source`, `title`, `start_char`."""


def found_sentences(
    filler: Filler, query: str, *, k: int, occurrences: int, where: Sequence[str]
) -> Iterator[FoundSentence]:
    """The sentences of the best `k` phrases for a question or a statement, at most `occurrences` a phrase.

    A sentence with several of the phrases comes once, with the best of them. Raises UserErrors as `fill` does.
    """
    answer = filler.fill(query, k=k, occurrences=occurrences, where=list(where) or None)
    masks = answer.masks if isinstance(answer, JointAnswer) else (answer,)
    seen = set[tuple[str, int]]()
    for phrase in (phrase for mask in masks for phrase in mask.phrases):
        for place in phrase.occurrences:
            sentence = (place.document, place.context_start_char)
            if sentence in seen:
                continue
            seen.add(sentence)
            metadata = {
                "phrase": phrase.phrase,
                "share": phrase.score,
                "confidence": answer.confidence,
                "source": place.document,
                "title": place.title,
                "start_char": place.start_char,
            }
            yield FoundSentence(place.context, phrase.score, metadata)


def tool_functions(filler: PhraseFiller) -> list[Callable[..., BaseModel]]:
    """The tools of `npmlm mcp` as functions, whose annotations are types: frameworks do not resolve strings."""
    return [_typed(tool) for tool in Tools(filler).every()]


def _typed(tool: Callable[..., BaseModel]) -> Callable[..., BaseModel]:
    signature = inspect.signature(tool, eval_str=True)

    @wraps(tool)
    def typed(*given: Any, **named: Any) -> BaseModel:
        return tool(*given, **named)

    typed.__signature__ = signature  # type: ignore[attr-defined] # read by inspect
    typed.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return typed

"""Retrievers and tools of other frameworks, by the released packages where they are installed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from npm.core.errors import QueryError, SettingError
from npm.integrations import FoundSentence, found_sentences
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillSettings
from tests.helpers.shell_blocks import pages_of_docs

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when the package is imported
QUESTION = "The capital of Iceland is <mask>."
NAMES = ["fill", "find", "trace", "label", "read"]
Retrieved = list[tuple[str, Mapping[str, Any], float | None]]
Called = Callable[..., Mapping[str, Any]]


@pytest.fixture(scope="module")
def filler(built_index: Path) -> PhraseFiller:
    return PhraseFiller.open(built_index)


@pytest.fixture(scope="module")
def expected(filler: PhraseFiller) -> list[FoundSentence]:
    return list(found_sentences(filler, QUESTION, k=3, occurrences=2, where=[]))


def test_a_sentence_comes_once_with_its_best_phrase_and_its_source(
    filler: PhraseFiller, expected: list[FoundSentence]
) -> None:
    answer = filler.fill(QUESTION, k=3, occurrences=2)
    places = [(phrase, place) for phrase in answer.phrases for place in phrase.occurrences]
    first = {(place.document, place.context_start_char): (phrase, place) for phrase, place in reversed(places)}
    assert len(expected) == len(first) > 1
    for each in expected:
        phrase, place = next(pair for pair in first.values() if pair[1].start_char == each.metadata["start_char"])
        assert (each.text, each.share, each.metadata["phrase"]) == (place.context, phrase.score, phrase.phrase)
        assert (each.metadata["source"], each.metadata["confidence"]) == (place.document, answer.confidence)
    several = list(found_sentences(filler, "<mask> is the capital of <mask>.", k=2, occurrences=1, where=[]))
    assert several and all(each.text for each in several)
    with pytest.raises(QueryError):
        list(found_sentences(filler, " ", k=2, occurrences=1, where=[]))


def retrieved_by_langchain(filler: PhraseFiller, **named: Any) -> Retrieved:
    pytest.importorskip("langchain_core")
    from npm.integrations.langchain import PhraseRetriever

    found = PhraseRetriever(filler=filler, k=3, **named).invoke(QUESTION)
    return [(each.page_content, each.metadata, each.metadata["share"]) for each in found]


def retrieved_by_llama_index(filler: PhraseFiller, **named: Any) -> Retrieved:
    pytest.importorskip("llama_index.core")
    from npm.integrations.llama_index import PhraseRetriever

    found = PhraseRetriever(filler, k=3, **named).retrieve(QUESTION)
    return [(each.node.get_content(), each.node.metadata, each.score) for each in found]


def retrieved_by_haystack(filler: PhraseFiller, **named: Any) -> Retrieved:
    pytest.importorskip("haystack")
    from haystack import Pipeline

    from npm.integrations.haystack import PhraseRetriever

    pipeline = Pipeline()
    pipeline.add_component("retriever", PhraseRetriever(filler, **named))
    found = pipeline.run({"retriever": {"query": QUESTION, "top_k": 3}})["retriever"]["documents"]
    return [(each.content, each.meta, each.score) for each in found]


@pytest.mark.parametrize("retrieved", [retrieved_by_langchain, retrieved_by_llama_index, retrieved_by_haystack])
def test_a_retriever_returns_these_sentences_in_the_types_of_its_framework(
    filler: PhraseFiller, expected: list[FoundSentence], retrieved: Callable[..., Retrieved]
) -> None:
    assert retrieved(filler, occurrences=2) == [(each.text, each.metadata, each.share) for each in expected]
    with pytest.raises(Exception, match="kept field lang"):  # the condition reaches the index
        retrieved(filler, where=["lang=en"])


def test_a_saved_haystack_pipeline_answers_as_before(filler: PhraseFiller, built_index: Path) -> None:
    haystack = pytest.importorskip("haystack")
    from npm.integrations.haystack import PhraseRetriever

    few = PhraseFiller.open(built_index, settings=FillSettings(max_phrase_tokens=2))
    pipeline = haystack.Pipeline()
    pipeline.add_component("retriever", PhraseRetriever(few, top_k=2, occurrences=2))
    again = haystack.Pipeline.loads(pipeline.dumps(), allowed_modules=["npm.integrations.haystack"])
    asked = {"retriever": {"query": QUESTION}}
    before, after = (each.run(asked)["retriever"]["documents"] for each in (pipeline, again))
    assert [each.to_dict() for each in after] == [each.to_dict() for each in before] and before
    assert again.dumps() == pipeline.dumps()
    with pytest.raises(SettingError, match="memory"):
        PhraseRetriever(PhraseFiller.over(["Oslo is a town."])).to_dict()


def langchain_tools(filler: PhraseFiller) -> dict[str, Called]:
    pytest.importorskip("langchain_core")
    from npm.integrations.langchain import phrase_tools

    def called(tool: Any, **arguments: Any) -> Mapping[str, Any]:
        message = tool.invoke({"name": tool.name, "args": arguments, "id": "1", "type": "tool_call"})
        return {"error": message.content} if message.status == "error" else json.loads(message.content)

    return {tool.name: lambda tool=tool, **given: called(tool, **given) for tool in phrase_tools(filler)}


def llama_index_tools(filler: PhraseFiller) -> dict[str, Called]:
    pytest.importorskip("llama_index.core")
    from npm.integrations.llama_index import phrase_tools

    def called(tool: Any, **arguments: Any) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = tool.call(**arguments).raw_output.model_dump()
        except QueryError as error:
            return {"error": str(error)}
        return found

    return {tool.metadata.name: lambda tool=tool, **given: called(tool, **given) for tool in phrase_tools(filler)}


def haystack_tools(filler: PhraseFiller) -> dict[str, Called]:
    pytest.importorskip("haystack")
    from haystack.tools.errors import ToolInvocationError

    from npm.integrations.haystack import phrase_tools

    def called(tool: Any, **arguments: Any) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = tool.invoke(**arguments).model_dump()
        except ToolInvocationError as error:
            return {"error": str(error)}
        return found

    return {tool.name: lambda tool=tool, **given: called(tool, **given) for tool in phrase_tools(filler)}


@pytest.mark.parametrize("tools_of", [langchain_tools, llama_index_tools, haystack_tools])
def test_the_tools_of_a_framework_are_those_of_agents(
    filler: PhraseFiller, tools_of: Callable[[PhraseFiller], dict[str, Called]]
) -> None:
    tools = tools_of(filler)
    assert list(tools) == NAMES
    filled = tools["fill"](question=QUESTION, count=2)
    assert [each["phrase"] for each in filled["phrases"]] == [
        each.phrase for each in filler.fill(QUESTION, k=2).phrases
    ]
    place = tools["find"](phrase="capital of Iceland")["places"][0]
    assert "capital of" in tools["read"](document=place["document"], start_char=place["start_char"])["text"]
    assert "nowhere" in tools["read"](document="nowhere")["error"]


@pytest.mark.parametrize("framework", ["langchain_core", "llama_index.core", "haystack"])
def test_the_example_of_the_page_runs(framework: str, built_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(framework)
    (page,) = [path for path in pages_of_docs() if path.name == "python.md"]
    module = f"npm.integrations.{framework.removesuffix('_core').removesuffix('.core')} "
    blocks = page.read_text(encoding="utf-8").split("```py\n")[1:]
    (block,) = [text.partition("```")[0] for text in blocks if module in text]
    monkeypatch.chdir(built_index.parent)
    run: Callable[[str, dict[str, Any]], None] = exec
    run(block.replace("my-index", built_index.name), {})

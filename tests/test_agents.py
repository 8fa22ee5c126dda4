"""`npmlm mcp`: an agent's client of the protocol's own SDK, in this process and over standard input and output."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import npm
from npm.indexing.changes import delete_documents
from npm.indexing.settings import DeleteSettings
from npm.retrieval.filler import PhraseFiller
from tests.helpers.command_line import REPOSITORY, CommandLine

pytest.importorskip("mcp")
from mcp import Client, StdioServerParameters

QUESTION = "The capital of Iceland is <mask>."
Session = Callable[[Any], Awaitable[Any]]


def converse(server: Any, session: Session) -> Any:
    async def run() -> Any:
        async with Client(server) as client:
            return await session(client)

    return asyncio.run(asyncio.wait_for(run(), timeout=300))


@pytest.fixture(scope="module")
def filler(built_index: Path) -> PhraseFiller:
    return PhraseFiller.open(built_index)


def call(filler: PhraseFiller, tool: str, **arguments: Any) -> Any:
    from npm.agents import agent_server

    return converse(agent_server(filler), lambda client: client.call_tool(tool, arguments))


def test_fill_returns_the_phrases_of_the_filler_with_sentence_and_place(filler: PhraseFiller) -> None:
    result = call(filler, "fill", question=QUESTION, count=3)
    expected = filler.fill(QUESTION, k=3)
    assert not result.is_error
    found = result.structured_content["phrases"]
    assert [(each["phrase"], each["share"]) for each in found] == [(own.phrase, own.score) for own in expected.phrases]
    for each, own in zip(found, expected.phrases, strict=True):
        assert [(place["document"], place["start_char"]) for place in each["places"]] == [
            (place.document, place.start_char) for place in own.occurrences
        ]
        assert all(own.occurrences[0].parts[1] in place["sentence"] for place in each["places"][:1])


def test_a_question_is_answered_with_its_mask_behind_it(filler: PhraseFiller) -> None:
    text = "What is the capital of Iceland?"
    asked, masked = (call(filler, "fill", question=each) for each in (text, f"{text} <mask>."))
    assert asked.structured_content["statement"] == f"{text} <mask>."
    assert asked.structured_content == masked.structured_content


def test_several_masks_get_phrases_each(filler: PhraseFiller) -> None:
    result = call(filler, "fill", question="<mask> is the capital of <mask>.", count=2)
    assert [len(mask) for mask in result.structured_content["masks"]] == [2, 2]


def test_a_phrase_is_looked_up_as_from_python(filler: PhraseFiller) -> None:
    result, expected = call(filler, "find", phrase="capital of iceland"), npm.find("capital of iceland", filler)
    found = result.structured_content
    assert expected.count
    assert (found["count"], found["documents"]) == (expected.count, expected.documents)
    assert [place["start_char"] for place in found["places"]] == [place.start_char for place in expected.occurrences]
    assert call(filler, "find", phrase="capital of Atlantis").structured_content["count"] == 0


def test_what_the_command_line_restricts_is_not_found(filler: PhraseFiller) -> None:
    phrase = "capital of Iceland"
    store = filler.index.store
    document, *_ = holders = [each.document for each in npm.find(phrase, filler, show=100).occurrences]
    others = [name for name in store.document_ids(range(store.document_count)) if name not in holders]
    restricted = PhraseFiller(filler.index, filler.encoder, replace(filler.settings, documents=others))
    assert call(restricted, "find", phrase=phrase).structured_content["count"] == 0
    assert npm.find(phrase, restricted, documents=[document]).count


def test_deleted_documents_are_neither_counted_nor_an_example(filler: PhraseFiller, tmp_path: Path) -> None:
    from npm.agents import agent_server

    folder = shutil.copytree(filler.index.folder, tmp_path / "index")
    first, second = filler.index.store.document_ids([0, 1])
    delete_documents(folder, DeleteSettings(ids=[first]))
    with PhraseFiller.open(folder, filler.encoder) as left:
        told = agent_server(left).instructions
        count = left.index.store.document_count - 1
    assert f"{count}" in told and second in told and f"{first!r}" not in told


def test_a_text_is_traced_as_from_python(filler: PhraseFiller) -> None:
    text = "Reykjavík is the capital of Iceland, and so is Quebrada Honda."
    found = call(filler, "trace", text=text).structured_content["spans"]
    expected = npm.trace(text, filler).spans
    assert [(each["text"], each["verdict"], each["support"]) for each in found] == [
        (span.text, span.verdict, span.support) for span in expected
    ]
    assert [each["place"] and each["place"]["document"] for each in found] == [
        span.place and span.place.document for span in expected
    ]
    assert len({each["text"] for each in found} & {"Iceland", "Quebrada Honda"}) == 2


def test_texts_are_labeled_as_from_python(filler: PhraseFiller) -> None:
    labels = {"island": ["Iceland"], "kingdom": ["Norway"]}
    texts = ["Reykjavik lies on it.", "Oslo is its capital."]
    result = call(filler, "label", texts=texts, labels=labels)
    found = [[(own["label"], own["score"]) for own in each["labels"]] for each in result.structured_content["texts"]]
    expected = npm.label(texts, labels, filler)
    assert found == [[(own.label, own.score) for own in each.labels] for each in expected]
    places = [own["place"]["document"] for each in result.structured_content["texts"] for own in each["labels"]]
    assert places == [own.occurrence.document for each in expected for own in each.labels if own.occurrence]


def test_a_place_is_read_in_its_document(filler: PhraseFiller) -> None:
    [place, *_] = call(filler, "fill", question=QUESTION).structured_content["phrases"][0]["places"]
    passage = call(filler, "read", document=place["document"], start_char=place["start_char"], chars=40)
    document = filler.index.store.document(int(filler.index.store.find_documents([place["document"]])[0]))
    first = passage.structured_content["start_char"]
    assert passage.structured_content["text"] == document.text[first : first + 40]
    assert first <= place["start_char"] < first + 40 or len(document.text) < 40


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("fill", {"question": "<mask> " * 9}, "<mask>"),
        ("fill", {"question": QUESTION, "where": ["color=red"]}, "no document has a kept field color"),
        ("fill", {"question": QUESTION, "count": 0}, "fill: count must be at least 1, got 0"),
        ("fill", {"count": 1}, "question is required"),
        ("label", {"texts": ["Ice."], "labels": {"a": ["qqzzq"], "b": ["iceland"]}}, "qqzzq"),
        ("find", {"phrase": "of the"}, "function words"),
        ("read", {"document": "nowhere"}, "no document has the id 'nowhere'"),
    ],
)
def test_a_mistake_is_one_sentence(filler: PhraseFiller, tool: str, arguments: dict[str, Any], message: str) -> None:
    result = call(filler, tool, **arguments)
    assert result.is_error
    assert message in result.content[0].text
    assert "Traceback" not in result.content[0].text
    assert "\n" not in result.content[0].text


def started(setting: str, **environment: str) -> StdioServerParameters:
    """The command, as a client starts it."""
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "npm", "mcp", setting],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        cwd=str(REPOSITORY),
    )


def test_the_command_serves_a_client_that_starts_it(demo_index: Path) -> None:

    async def session(client: Client) -> tuple[list[Any], Any]:
        return (await client.list_tools()).tools, await client.call_tool("fill", {"question": QUESTION})

    tools, result = converse(started(f"index={demo_index}"), session)
    assert {tool.name for tool in tools} >= {"fill", "find", "trace", "label", "read"}
    assert all(tool.description and tool.output_schema and tool.annotations.read_only_hint for tool in tools)
    assert not any("\n " in tool.description for tool in tools)  # no indentation of the code
    best = result.structured_content["phrases"][0]
    assert best["phrase"] == "Reykjavík"
    assert "Reykjavík" in best["places"][0]["sentence"]


def test_the_command_answers_from_files_without_an_index(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "depot.md").write_text("# Depot\n\nThe depot is in Porto. The manager of the depot is Ana Duarte.\n")

    async def session(client: Client) -> Any:
        return await client.call_tool("fill", {"question": "Who manages the depot?"})

    result = converse(started(f"files={docs}", XDG_CACHE_HOME=str(tmp_path / "cache")), session)
    assert result.structured_content["phrases"][0]["phrase"] == "Ana Duarte"


@pytest.mark.parametrize(("setting", "part"), [("where=[tem=payments]", "tem"), ("documents=[nowhere]", "nowhere")])
def test_filters_are_checked_at_the_start(setting: str, part: str, npmlm: CommandLine, built_index: Path) -> None:
    npmlm("mcp", f"index={built_index}", setting).refused(part)


def test_the_missing_package_is_named(npmlm: CommandLine, built_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    outcome = npmlm("mcp", f"index={built_index}")
    assert (outcome.status, "pip install" in outcome.err) == (2, True)

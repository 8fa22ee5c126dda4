"""Every option of `fill` on every surface: Python, command line, HTTP as body and as address, remote filler."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from npm.cli.registry import find_verb
from npm.core.settings import per_request
from npm.core.types import Answer
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import FillOptions, FillSettings
from npm.serving.replies import UsedOptions
from npm.serving.requests import Options
from tests.helpers.command_line import QUESTION, CommandLine
from tests.helpers.running_server import RunningServer

OPTIONS: dict[str, Any] = {
    "occurrences": 1,
    "retrieval": "bm25",
    "documents": ["iceland", "norway"],
    "where": [],
    "min_share": 0.97,
    "min_confidence": 0.5,
}
"""A value of each that changes the answer to QUESTION, where one can: the index has no fields and no reader."""


def test_each_surface_declares_all_options() -> None:
    names = FillOptions.__annotations__.keys()
    assert OPTIONS.keys() == names == per_request(FillSettings).keys() - {"k"}
    for surface in (FillSettings.__dataclass_fields__, Options.model_fields, UsedOptions.__dataclass_fields__):
        assert names <= {*surface}
    assert names <= find_verb("fill").settings.keys()


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "where"])
def test_all_surfaces_answer_alike(name: str, built_index: Path, server: RunningServer, npmlm: CommandLine) -> None:
    value = OPTIONS[name]
    with PhraseFiller.open(built_index, settings=FillSettings(k=3)) as filler:
        plain, expected = filler.fill(QUESTION), filler.fill(QUESTION, **{name: value})
        documents = filler.index.store.document_ids(range(2))
        if name == "documents":
            value = documents
            expected = filler.fill(QUESTION, documents=value)
    shown = f"[{','.join(value)}]" if isinstance(value, list) else value
    (from_command,) = npmlm("fill", f"index={built_index}", "k=3", "output=json", f"{name}={shown}", QUESTION).answers()
    body = json.dumps({"text": QUESTION, "k": 3, name: value}).encode()
    posted = urllib.request.Request(
        f"{server.url}/v1/fill", data=body, headers={"Content-Type": "application/json"}, method="POST"
    )
    address = urllib.parse.urlencode({"text": QUESTION, "k": 3, name: value}, doseq=True)
    with urllib.request.urlopen(posted) as reply, urllib.request.urlopen(f"{server.url}/v1/fill?{address}") as link:
        over_http, by_link = json.load(reply), json.load(link)
    assert over_http["settings"][name] == value
    with PhraseFiller.connect(server.url) as remote:
        answers = [remote.fill(QUESTION, k=3, **{name: value})]
    found = [_facts(answer) for answer in answers]
    found += [_facts(each) for each in (from_command, over_http["answers"][0], by_link["answers"][0])]
    assert found == [_facts(expected)] * 4
    if name != "min_confidence":  # without a reader there is none
        assert _facts(expected) != _facts(plain)


def _facts(answer: Answer | dict[str, Any]) -> tuple[Any, ...]:
    """The parts of an answer that options change; scores are compared elsewhere."""
    record = answer if isinstance(answer, dict) else asdict(answer)
    phrases = [(each["phrase"], len(each["occurrences"])) for each in record["phrases"]]
    return record["status"], phrases

"""Random changes of one index, some of them killed and repeated, against a dict of its documents."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from npm.core import artifact
from npm.indexing.changes import delete_documents, partition_index
from npm.indexing.compact import compact_index
from npm.indexing.generation import Generation
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import CompactSettings, DeleteSettings
from npm.indexing.verify import verify_index
from npm.models.encoder import Encoder
from tests.helpers.kills import Killed
from tests.helpers.live_indexes import added, built, record
from tests.helpers.tiny_models import tiny_encoder

STEPS = int(os.environ.get("NPMLM_WALK", "60"))
"""Changes; NPMLM_WALK=500 for a night."""


def documents_of(index: Path) -> dict[str, str]:
    """The live documents of an index, each with its text."""
    opened = PhraseIndex.open(index)
    live = opened.live_documents
    numbers = [n for n in range(opened.store.document_count) if live is None or live[n]]
    found = [opened.store.document(number) for number in numbers]
    assert len({document.id for document in found}) == len(found)
    return {document.id: document.text for document in found}


def change(
    index: Path, encoder: Encoder, rng: random.Random, model: dict[str, str], step: int
) -> tuple[str, Callable[[], object], dict[str, str]]:
    """A random change: its verb, what makes it, and the documents after it."""
    verb = rng.choice(["add", "add", "replace", "delete", "delete", "compact", "partition"])
    if verb in ("add", "replace"):
        numbers = rng.sample(range(40), rng.randint(1, 3))
        if verb == "add":
            numbers = [number for number in numbers if f"d{number}" not in model] or [100 + step]
        records = [record(number, text=f"{record(number)['text']} {rng.random()}") for number in numbers]
        after = model | {each["id"]: each["text"] for each in records}
        return verb, partial(added, index, records, encoder, replace=verb == "replace"), after
    if verb == "delete" and len(model) > 4:
        ids = rng.sample(sorted(model), rng.randint(1, 2))
        after = {name: text for name, text in model.items() if name not in ids}
        return verb, partial(delete_documents, index, DeleteSettings(ids=ids)), after
    if verb == "compact":
        return verb, partial(compact_index, index, CompactSettings(retrain=rng.random() < 0.5)), model
    return "partition", partial(partition_index, index, 1 + step % 2), model


def killed_at(number: int) -> Callable[..., None]:
    """A `replace_file` that does not come back from this call, counted from 0."""
    written, calls = artifact.replace_file, iter(range(number))

    def replace_file(path: Path, data: bytes) -> None:
        if next(calls, None) is None:
            raise Killed
        written(path, data)

    return replace_file


def test_no_document_is_lost_or_comes_back_in_a_random_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, encoder = random.Random(7), tiny_encoder("bert")
    first = [record(number) for number in range(8)]
    index = built(tmp_path / "index", first, encoder, "ivf_sq8 4")
    model = {each["id"]: each["text"] for each in first}
    for step in range(STEPS):
        verb, work, after = change(index, encoder, rng, model, step)
        if rng.random() < 0.4:
            with monkeypatch.context() as patched:
                patched.setattr(artifact, "replace_file", killed_at(rng.randint(0, 12)))
                with suppress(Killed):
                    work()
            found = documents_of(index)
            assert found in (model, after), (step, verb)
            if found == model and rng.random() < 0.3:  # it is given up
                continue
        work()
        model = after
        assert documents_of(index) == model, (step, verb)
    verify_index(index)
    assert Generation.read(index).manifest.generation > STEPS // 3

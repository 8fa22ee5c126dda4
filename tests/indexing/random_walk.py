"""Random changes of one index, many of them killed and then repeated or given up, against a dict of its documents.

    python -m tests.indexing.random_walk FOLDER STEPS SEED

Every change is made in a child that ends, as with kill -9, at a random rename or flush. The parent computes nothing.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from npm.indexing.changes import delete_documents, partition_index
from npm.indexing.compact import compact_index
from npm.indexing.generation import Generation
from npm.indexing.inspect import verify_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import CompactSettings, DeleteSettings
from npm.models.encoder import Encoder
from tests.helpers.live_indexes import added, built, record
from tests.helpers.tiny_models import tiny_encoder
from tests.indexing.crashes import DIED, dying, in_child

LATEST_DEATH = 60
"""Renames and flushes that a child survives, at most."""


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


def attempt(work: Callable[[], object], rng: random.Random) -> bool:
    """Return True if `work` came to its end in a child, which most children do not."""
    last = rng.randint(1, LATEST_DEATH) if rng.random() < 0.7 else 0

    def mortal() -> None:
        dying(last, ("rename", "replace", "fsync"))
        work()

    status = in_child(mortal)
    assert status in (0, DIED)
    return status == 0


def main(folder: Path, steps: int, seed: int) -> None:
    """Walk; print how many changes of each kind were made, and how many children died."""
    rng, encoder, index = random.Random(seed), tiny_encoder("bert"), folder / "index"
    first = [record(number) for number in range(8)]
    assert in_child(lambda: built(index, first, encoder, "ivf_sq8 4")) == 0
    model = {each["id"]: each["text"] for each in first}
    counts: Counter[str] = Counter()
    for step in range(steps):
        verb, work, after = change(index, encoder, rng, model, step)
        while not (is_done := attempt(work, rng)):
            counts["died"] += 1
            found = documents_of(index)
            assert found in (model, after), (step, verb)
            if rng.random() < 0.3:
                model = found
                break
        if is_done:
            counts[verb] += 1
            model = after
            assert documents_of(index) == model, (step, verb)
    verify_index(index)
    counts["generation"] = Generation.read(index).manifest.generation
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

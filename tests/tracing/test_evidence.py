"""Shares and best places by hand and against a search of every sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npm.core.types import MASK_TEXT
from npm.corpus.blocks import BlockSettings
from npm.corpus.text import sentence_bounds
from npm.indexing.bm25 import BlockLexicon
from npm.indexing.build import build_index
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from npm.tracing.evidence import CorpusEvidence
from npm.tracing.find import phrase_pattern
from tests.helpers.live_indexes import build_settings, record, write_records
from tests.helpers.tiny_models import tiny_encoder

TEXTS = (
    "The red river rises in Oslo. The blue lake is in Rome.",
    "The red lake is in Rome. A river of Rome rises.",
    "Oslo has a blue river. Rivers rise.",
    "Paris is large.",
)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_encoder("bert")


@pytest.fixture(scope="module")
def index(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> PhraseIndex:
    records = [record(number, text=text) for number, text in enumerate(TEXTS)]
    folder = tmp_path_factory.mktemp("evidence")
    settings = build_settings(Path(write_records(folder / "records.jsonl", records)))
    build_index(folder / "index", replace(settings, blocks=BlockSettings(max_block_tokens=64)), encoder)
    return PhraseIndex.open(folder / "index")


def lexicon_of(index: PhraseIndex) -> BlockLexicon:
    assert index.lexicon is not None
    return index.lexicon


def evidence_in(index: PhraseIndex, blocks: np.ndarray | None = None) -> CorpusEvidence:
    return CorpusEvidence(index, lexicon_of(index), blocks)


def test_the_share_of_a_sentence_by_hand(index: PhraseIndex) -> None:
    assert index.store.block_count == 4
    evidence = evidence_in(index)
    # in blocks of 4: river 3, rise (its singular form differs) 2, red 2, pari, as it is counted, 1
    river, red, paris = (math.log(1 + (4 - count + 0.5) / (count + 0.5)) for count in (3, 2, 1))
    context = evidence.words("the red rivers of Paris")
    assert context == {"red", "river", "pari"}
    assert evidence.share(context, "A river of Rome.", "") == pytest.approx(river / (river + red + paris))
    assert evidence.share(context, "A river of Rome.", "Paris") == pytest.approx(1 - red / (river + red + paris))
    assert evidence.share(frozenset(), "A river of Rome.", "") == 1


def test_the_best_place_is_that_of_a_search_of_every_sentence(index: PhraseIndex, rng: np.random.Generator) -> None:
    evidence, words = evidence_in(index), sorted({word.strip(".") for text in TEXTS for word in text.split()})
    for _ in range(40):
        span = str(rng.choice(["Oslo", "Rome", "river", "blue", "Paris", "red lake", "Berlin", "Title 2"]))
        sentence = " ".join([*rng.choice(words, 3), MASK_TEXT, *rng.choice(words, 2)])
        context = evidence.words(sentence.replace(MASK_TEXT, " "))
        shares = [
            evidence.share(context, text[first:stop], f"Title {number}")
            for number, text in enumerate(TEXTS)
            for first, stop in sentence_bounds(text).tolist()
            if phrase_pattern(span).search(text[first:stop]) or span == f"Title {number}"
        ]
        best = evidence.best_place(span, sentence)
        assert (best.share if best else None) == (max(shares) if shares else None)
        if best and not span.startswith("Title"):
            assert best.occurrence.parts[1].lower() == span.lower()


def test_only_allowed_blocks_are_looked_in(index: PhraseIndex) -> None:
    allowed = np.array([False, True, True, True])
    everywhere, elsewhere = (
        evidence_in(index, each).best_place("Oslo", f"red {MASK_TEXT} rises") for each in (None, allowed)
    )
    assert everywhere is not None and everywhere.occurrence.document == "d0"
    assert elsewhere is not None and elsewhere.occurrence.document == "d2"


def test_spellings_of_the_corpus_say_whether_a_word_begins_a_name(index: PhraseIndex) -> None:
    begins_name = evidence_in(index).begins_name
    assert begins_name("Oslo") and begins_name("Berlin")
    assert not begins_name("River") and not begins_name("Lake")

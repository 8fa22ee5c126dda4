"""Places of given words against plain loops, and which occurrences an answer counts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from unicodedata import combining, normalize

import numpy as np
import pytest

from npm.core.types import Document, TokenFlag
from npm.corpus.store import write_block_store
from npm.indexing.settings import PruningRule
from npm.models.encoder import Encoder
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.passage_store import GivenWords, PassageStore, embed_passages, passage_packer
from npm.retrieval.queries import QueryVectors
from npm.retrieval.settings import FillSettings, Overlaps, Retrieval, ScoringSettings
from tests.helpers.random_indexes import WORDS, index_of
from tests.helpers.stores import spelled, token_places
from tests.helpers.tiny_models import tiny_encoder

TEXTS = (
    "Große Maße, GROSSE MASSE; ein Maß",
    "a a  a\n\na A the a",
    "New\u00a0York, new york and New  York's (New York)",
    "Reykjavík 🙂🙂 İstanbul é naïve e\u0301 3.5 state-of-the-art",
    "Iceland is land.",
    "cafe\u0301 Cafe\u0301s, caf\u00e9 CAF\u00c9 na\u00efve e\u0302\u0323 \u1ec7",
)


def store_of(encoder: Encoder) -> PassageStore:
    untitled = [("", text) for text in TEXTS]
    passages = embed_passages(encoder, passage_packer(encoder), untitled, tokens_per_batch=512)
    return PassageStore([Document(str(number), "", text) for number, text in enumerate(TEXTS)], passages)


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", normalize("NFC", normalize("NFD", text).casefold())).strip()


def plain_places(store: PassageStore) -> dict[str, list[tuple[int, int]]]:
    """The places of every run of whole words in a block, by its folded text."""
    starts, ends = (side.tolist() for side in token_places(store))
    flags, found = store.flags.arrays[0].tolist(), dict[str, list[tuple[int, int]]]()
    for block in range(store.block_count):
        text = TEXTS[int(store.block_documents[block])]
        first, stop = store.block_offsets[block : block + 2].tolist()
        for start in range(first, stop):
            for last in range(start, stop):
                if flags[start] & TokenFlag.WORD_START and flags[last] & TokenFlag.WORD_END:
                    # Where a tokenizer strips accents, a combining one at the end is not in the token.
                    marks = 0
                    while combining(text[ends[last] + marks :][:1] or " "):
                        marks += 1
                    for key in {plain(text[starts[start] : end]) for end in (ends[last], ends[last] + marks)}:
                        found.setdefault(key, []).append((start, last - start + 1))
    return found


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("max_positions", [12, 128])
def test_every_run_of_words_is_found_where_plain_loops_find_it(family: str, max_positions: int) -> None:
    store = store_of(tiny_encoder(family, max_positions=max_positions))
    assert (store.block_count > len(TEXTS)) == (max_positions == 12)
    words = GivenWords(store)
    places = plain_places(store)
    assert len(places) > 50
    for key, expected in places.items():
        starts, lengths = words.find(key)
        assert sorted(zip(starts.tolist(), lengths.tolist(), strict=True)) == sorted(expected), key


def found_texts(words: str) -> list[str]:
    store = store_of(tiny_encoder("bert"))
    texts = []
    for start, length in zip(*GivenWords(store).find(words), strict=True):
        document = TEXTS[int(store.block_documents[store.block_of(np.array([start]))[0]])]
        starts, ends = token_places(store)
        texts.append(document[starts[start] : ends[start + length - 1]])
    return texts


def test_words_are_found_whatever_their_case_and_the_space_between_them() -> None:
    assert found_texts(" new   YORK\n") == ["New\u00a0York", "new york", "New  York", "New York"]
    assert found_texts("grosse masse") == ["Große Maße", "GROSSE MASSE"]
    assert found_texts("GROẞE") == ["Große", "GROSSE"]


def test_words_are_found_in_whatever_unicode_form_they_are_asked_for_or_stand_in() -> None:
    written = [normalize("NFC", word) for word in found_texts("caf\u00e9")]
    assert [word.casefold()[:3] for word in written] == ["caf"] * 3 and len(found_texts("cafe\u0301")) == 3
    assert found_texts("Reykjavi\u0301k") == found_texts("Reykjavík") == ["Reykjavík"]
    assert found_texts("nai\u0308ve") == ["naïve", "naïve"]
    assert len(found_texts("\u1ec7")) == len(found_texts("\u00ea\u0323")) == len(found_texts("e\u0323\u0302")) == 2
    assert found_texts("na\u00eeve") == []


def test_places_that_overlap_are_all_found() -> None:
    assert len(found_texts("a a")) == 4


def test_a_piece_of_a_word_is_not_found() -> None:
    assert found_texts("land") == ["land"]
    assert found_texts("mas") == []


def test_signs_in_words_mean_themselves() -> None:
    assert found_texts("(New York)") == ["(New York)"]
    assert found_texts("3.5") == ["3.5"] and found_texts("3x5") == []


WORD = TokenFlag.WORD_START | TokenFlag.WORD_END
SETTINGS = FillSettings(
    k=10,
    overlaps=Overlaps.keep,
    retrieval=Retrieval.dense,
    max_phrase_tokens=1,
    scoring=ScoringSettings(exclude_query_phrases=False, length_exponent=0.0),
)


def filler_of(folder: Path, words: str, vectors: list[list[float]]) -> PhraseFiller:
    """One block of `words`, a vector of two dimensions for each: its products with the start and the end query."""
    ids = np.array([WORDS.index(word) for word in words.split()], dtype=np.int32)  # i32 [T]
    store = write_block_store(
        folder,
        [spelled(ids, np.full(len(ids), WORD.value, dtype=np.uint8), words.split())],
        settings={},
        tokenizer_fingerprint="t",
        vocabulary_size=len(WORDS),
        special_tokens_in_blocks=True,
    )
    return index_of(store, np.array(vectors, dtype=np.float32), rule=PruningRule.all, settings=SETTINGS)[0]


def counts(filler: PhraseFiller, settings: FillSettings) -> dict[str, int]:
    """Occurrences of each phrase for a start query (1, 0) and an end query (0, 1)."""
    start, end = np.array([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=np.float32)  # f32 [1, 2] each
    queries = QueryVectors(start=start, end=end, cut=np.zeros(1, dtype=bool))
    answer = filler.fill_encoded([""], queries, settings=settings)[0]
    return {phrase.phrase: phrase.occurrence_count for phrase in answer.phrases}


def test_an_occurrence_counts_when_one_of_its_ends_is_among_the_best_rows_of_its_query(tmp_path: Path) -> None:
    vectors = [[3.0, 3.0], [9.0, 0.0], [0.0, -9.0], [2.0, 2.0], [-1.0, 9.0], [1.0, 1.0]]
    filler = filler_of(tmp_path, "a b c a d a", vectors)
    best = {rows: counts(filler, replace(SETTINGS, candidates_per_side=rows)) for rows in (1, 2, 3, 6)}
    assert best[1] == {"b": 1, "d": 1}
    assert best[2] == {"b": 1, "d": 1, "a": 1}
    assert best[3] == {"b": 1, "d": 1, "a": 2}
    assert best[6] == {"b": 1, "d": 1, "a": 3, "c": 1}
    # The end of `b c` has the lowest score and the start of `a d` is not the best one: one end is enough.
    longer = replace(SETTINGS, candidates_per_side=1, max_phrase_tokens=2)
    assert counts(filler, longer) == {"b": 1, "b c": 1, "d": 1, "a d": 1}


def test_a_spelling_counts_when_its_tokens_are_among_the_sequences_that_are_read(tmp_path: Path) -> None:
    filler = filler_of(tmp_path, "a b A a", [[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    assert counts(filler, replace(SETTINGS, k=2, merged_groups=3)) == {"a": 3, "b": 1}
    assert counts(filler, replace(SETTINGS, k=2, merged_groups=2)) == {"a": 2, "b": 1}

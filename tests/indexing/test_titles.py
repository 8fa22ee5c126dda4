"""Titles in front of blocks of an index: read by the encoder, seen in no answer, and as many for what comes later."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from npm.core.errors import SettingError
from npm.core.types import Document, TokenFlag
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.corpus.store import BlockStore
from npm.indexing.build import build_index
from npm.indexing.compact import compact_index
from npm.indexing.estimate import estimate_build
from npm.indexing.generation import Generation
from npm.indexing.inspect import inspect_index, verify_index, verify_vectors
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import CompactSettings, EstimateSettings, IndexBuildSettings, VectorDtype
from npm.models.encoder import Encoder
from npm.models.settings import PoolerKind
from npm.retrieval.filler import PhraseFiller
from npm.retrieval.settings import Retrieval
from tests.helpers.live_indexes import added, all_bytes, part_of, write_records
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

RECORDS = [
    {"id": f"d{number}", "title": f"Wonder {'of the World ' * number}", "text": f"{text} {SENTENCES[number - 1]}"}
    for number, text in enumerate(SENTENCES)
]
QUESTION = "The capital of Iceland is <mask>."


def encoder_of_titles(title_tokens: int) -> Encoder:
    encoder = tiny_encoder("bert")
    encoder.title_tokens = title_tokens
    return encoder


def settings_of(
    folder: Path, title_tokens: int | None = None, *, records: int = 6, block_tokens: int = 40
) -> IndexBuildSettings:
    file = write_records(folder.with_suffix(".jsonl"), RECORDS[:records])
    blocks = BlockSettings(max_block_tokens=block_tokens, title_tokens=title_tokens)
    return IndexBuildSettings(corpus=CorpusSettings(files=[file]), blocks=blocks)


def built(
    folder: Path, encoder: Encoder, title_tokens: int | None = None, *, records: int = 6
) -> tuple[Path, list[str]]:
    """The index, and what was said while it was built."""
    notes: list[str] = []
    build_index(folder, settings_of(folder, title_tokens), encoder, notice=notes.append)
    return folder, notes


def texts_of(store: BlockStore) -> list[str]:
    return [store.block_text(block) for block in range(store.block_count)]


def test_unset_titles_are_as_long_as_those_of_training_and_have_no_rows(tmp_path: Path) -> None:
    encoder = encoder_of_titles(4)
    folder, notes = built(tmp_path / "index", encoder)
    index = PhraseIndex.open(folder)
    store = index.store
    assert notes == []
    assert Generation.read(folder).manifest.settings["blocks"]["title_tokens"] == 4
    assert inspect_index(folder).settings["blocks"]["title_tokens"] == 4
    flags = store.flags.slice(0, store.token_count)
    row_positions = index.rows.positions(np.arange(len(index.rows)))
    for block in range(store.block_count):
        first, stop = store.block_offsets[block : block + 2].tolist()
        title = store.document(int(store.block_documents[block])).title
        ids = encoder.tokenizer(title, add_special_tokens=False)["input_ids"][:4]
        ids += encoder.tokenizer(".", add_special_tokens=False)["input_ids"]
        assert store.token_ids.slice(first, first + len(ids)).tolist() == ids
        is_title = flags[first:stop] == TokenFlag.TITLE
        assert is_title.tolist() == [True] * len(ids) + [False] * (stop - first - len(ids))
        assert not set(range(first, first + len(ids))) & set(row_positions.tolist())
        assert stop - first + len(encoder.prefix_ids) + len(encoder.suffix_ids) <= 40


def test_vectors_are_those_of_blocks_read_behind_their_titles_and_every_check_holds(tmp_path: Path) -> None:
    encoder = encoder_of_titles(4)
    folder, _ = built(tmp_path / "index", encoder)
    index = PhraseIndex.open(folder)
    assert index.vectors is not None
    first, stop = index.store.block_offsets[:2].tolist()
    ids = [*encoder.prefix_ids, *index.store.token_ids.slice(first, stop).tolist(), *encoder.suffix_ids]
    with torch.no_grad():
        states = encoder.token_vectors(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long))[0].numpy()
    rows = index.rows.rows_within(np.array([first]), np.array([stop]))
    expected = states[len(encoder.prefix_ids) + index.rows.positions(rows) - first]
    np.testing.assert_allclose(index.vectors.take(rows), expected, atol=2e-2)
    verify_index(folder)
    assert verify_vectors(folder, encoder, batches=50, seed=0).row_count > 0


@pytest.mark.parametrize("reads_jointly", [False, True])
def test_no_answer_and_no_text_of_a_block_holds_a_title(reads_jointly: bool, tmp_path: Path) -> None:
    encoder = encoder_of_titles(4)
    encoder.sentence_pooler = PoolerKind.avg  # blocks are ranked by their vectors too
    encoder.reads_jointly = reads_jointly
    folder, _ = built(tmp_path / "index", encoder)
    filler = PhraseFiller.open(folder, encoder)
    assert not any("Wonder" in text for text in texts_of(filler.index.store))
    for retrieval in Retrieval:
        answer = filler.fill(QUESTION, k=1000, occurrences=1000, retrieval=retrieval)
        assert len(answer.phrases) > 5 or retrieval is not Retrieval.dense
        for phrase in answer.phrases:
            assert "wonder" not in phrase.phrase.lower()
            for place in phrase.occurrences:
                assert "Wonder" not in place.context
                (number,) = filler.index.store.find_documents([place.document])
                text = filler.index.store.document(int(number)).text
                assert text[place.start_char : place.end_char].lower() == phrase.phrase.lower()


def test_words_of_titles_count_for_bm25_as_often_as_without_them_before_blocks(tmp_path: Path) -> None:
    with_titles, without = tmp_path / "with", tmp_path / "without"
    for folder, title_tokens in ((with_titles, 4), (without, 0)):
        build_index(folder, settings_of(folder, block_tokens=128), encoder_of_titles(title_tokens))
    stores = [BlockStore.open(part_of(folder, "corpus")) for folder in (with_titles, without)]
    assert texts_of(stores[0]) == texts_of(stores[1])  # all of them fit into a block either way
    counted = [all_bytes(part_of(folder, "lexicon") / "00000") for folder in (with_titles, without)]
    counted = [{name: data for name, data in each.items() if name.endswith(".npy")} for each in counted]
    assert counted[0] and counted[0] == counted[1]


def test_titles_other_than_those_of_training_are_noted(tmp_path: Path) -> None:
    plain, no_notes = built(tmp_path / "plain", encoder_of_titles(0))
    assert no_notes == []
    (tmp_path / "other").mkdir()
    told, notes = built(tmp_path / "other" / "plain", encoder_of_titles(4), title_tokens=0)
    assert all_bytes(plain) == all_bytes(told)
    assert len(notes) == 1 and "trained with 4 tokens of titles" in notes[0] and "gets no titles" in notes[0]
    _, notes = built(tmp_path / "more", encoder_of_titles(0), title_tokens=3)
    assert len(notes) == 1 and "trained with no titles" in notes[0] and "3 tokens of titles" in notes[0]


@pytest.mark.parametrize(("recorded", "trained"), [(4, 0), (0, 4)])
def test_what_is_added_gets_the_titles_of_the_index_whatever_the_encoder_was_trained_with(
    recorded: int, trained: int, tmp_path: Path
) -> None:
    folder, _ = built(tmp_path / "index", encoder_of_titles(trained), title_tokens=recorded)
    added(folder, RECORDS[6:], encoder_of_titles(trained))
    store = PhraseIndex.open(folder).store
    flags = store.flags.slice(0, store.token_count)
    titles = [int((flags[a:b] == TokenFlag.TITLE).sum()) for a, b in pairwise(store.block_offsets)]
    assert store.document_count == len(RECORDS)
    assert all(titles) if recorded else not any(titles)
    before = texts_of(store)
    compact_index(folder, CompactSettings())
    store = PhraseIndex.open(folder).store
    assert texts_of(store) == before
    assert verify_vectors(folder, encoder_of_titles(trained), batches=50, seed=0).row_count > 0


def test_an_estimate_counts_the_tokens_and_rows_of_blocks_with_titles(tmp_path: Path) -> None:
    encoder = encoder_of_titles(4)
    settings = settings_of(tmp_path / "index")
    chosen = EstimateSettings(corpus=settings.corpus, blocks=settings.blocks, vectors=settings.vectors)
    estimate = estimate_build(chosen, encoder)
    build_index(tmp_path / "index", settings, encoder)
    index = PhraseIndex.open(tmp_path / "index")
    assert (round(estimate.tokens), round(estimate.rows)) == (index.store.token_count, len(index.rows))


def test_titles_that_leave_too_little_room_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "index", 20)
    with pytest.raises(SettingError, match="titles leave too little room"):
        build_index(tmp_path / "index", settings, encoder_of_titles(0))
    assert not (tmp_path / "index").exists()


def test_the_length_of_a_document_counts_its_text_alone() -> None:
    """Also where its beginning, which is read first, makes fewer tokens than are wanted."""
    encoder = tiny_encoder("bert")
    slow = Document("a", "Wonder of the World", f"Oslo {'ж' * 25} " * 200)
    settings = BlockSettings(max_block_tokens=32, max_document_tokens=150)
    counts = []
    for chosen in (settings, replace(settings, title_tokens=8)):
        blocks = BlockPacker(encoder.tokenizer, chosen).pack(slow)
        counts.append(sum(int((block.flags != TokenFlag.TITLE).sum()) for block in blocks))
    assert counts == [150, 150]


def test_passages_that_are_handed_over_are_read_behind_their_titles(tmp_path: Path) -> None:
    passages = [Document(each["id"], each["title"], each["text"]) for each in RECORDS[:3]]
    encoder = encoder_of_titles(4)
    folder = tmp_path / "index"
    settings = settings_of(folder, records=3, block_tokens=encoder.max_input_tokens)
    build_index(folder, replace(settings, vectors=replace(settings.vectors, dtype=VectorDtype.float32)), encoder)
    over, indexed = PhraseFiller.over(passages, encoder), PhraseFiller.open(folder, encoder)
    ours = over.fill(QUESTION, k=20)
    theirs = indexed.fill(QUESTION, k=20, retrieval=Retrieval.dense)
    assert [phrase.phrase for phrase in ours.phrases] == [phrase.phrase for phrase in theirs.phrases]
    untitled = PhraseFiller.over([replace(passage, title="") for passage in passages], encoder)
    assert untitled.score(QUESTION, "capital") != over.score(QUESTION, "capital")
    plain = encoder_of_titles(0)
    texts = [passage.text for passage in passages]
    assert PhraseFiller.over(passages, plain).score(QUESTION, "capital") == PhraseFiller.over(texts, plain).score(
        QUESTION, "capital"
    )


def test_a_claim_is_not_supported_by_a_title() -> None:
    passages = [Document("a", "Oslo", "Paris is a city.")]
    assert PhraseFiller.over(passages, encoder_of_titles(4)).score_claim("Oslo") == 0.0
    assert PhraseFiller.over(passages, encoder_of_titles(4)).score_claim("Paris") > 0.0

"""Words that stand nearer to one group of words than to the others."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from index.arrays import ShardedArray
from index.exact import ExactSearcher
from npm.core.errors import SettingError
from npm.core.types import Block, TokenFlag
from npm.corpus.store import write_block_store
from npm.evaluation.tasks.task import Label, Suite, Task, TaskData
from npm.evaluation.zero_shot import neighbours
from npm.evaluation.zero_shot.neighbours import NEAREST_PER_WORD, neighbouring_words
from npm.evaluation.zero_shot.verbalizers import Verbalizer, expand, load_verbalizer
from npm.indexing.changes import delete_documents
from npm.indexing.generation import EncoderRecord, IndexManifest
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.rows import RowMap
from npm.indexing.settings import DeleteSettings
from npm.models.encoder import Encoder
from tests.helpers.live_indexes import built, record
from tests.helpers.random_indexes import PlainEncoder
from tests.helpers.tiny_models import tiny_encoder

WHOLE = (TokenFlag.WORD_START | TokenFlag.WORD_END).value
STOP = WHOLE | TokenFlag.STOPWORD.value
OFTEN = neighbours.LEAST_OCCURRENCES
TEMPERATURES = {
    "hot": (1.0, 0.5),
    "cold": (-1.0, 0.0),
    "warm": (1.0, 1.0),
    "mild": (1.0, -1.0),
    "icy": (-1.0, 1.0),
    "bleak": (-1.0, -1.0),
}
"""The last four have the mean 0; cosines 0.95, 0.32, -0.32, -0.95 with hot, and -0.71, -0.71, 0.71, 0.71 with cold."""


def index_of_words(
    folder: Path,
    vectors: Mapping[str, Sequence[float]],
    blocks: Sequence[Sequence[str]],
    *,
    stop_words: Sequence[str] = (),
    without_vector: Sequence[str] = (),
    live: Sequence[bool] | None = None,
) -> tuple[PhraseIndex, Encoder]:
    """Blocks of whole words, each word with the same vector wherever it stands."""
    numbers = {word: number for number, word in enumerate(["?", *vectors])}
    stored = [
        Block(
            np.array([numbers[word] for word in words], dtype=np.int32),
            np.array([STOP if word in stop_words else WHOLE for word in words], dtype=np.uint8),
        )
        for words in blocks
    ]
    store = write_block_store(
        folder, [(None, stored)], settings={}, tokenizer_fingerprint="t", vocabulary_size=len(numbers)
    )
    words = [word for block in blocks for word in block]
    has_row = np.array([word not in without_vector for word in words])  # bool [T]
    rows = np.array([vectors[word] for word, has in zip(words, has_row, strict=True) if has], dtype=np.float32)
    index = PhraseIndex(
        folder=folder,
        manifest=IndexManifest(encoder=EncoderRecord("plain", "f", "t")),
        store=store,
        rows=RowMap.of_mask(has_row),
        searcher=ExactSearcher(rows),
        lexicon=None,
        vectors=ShardedArray([rows]),
        live_blocks=None if live is None else np.array(live),
    )
    backend = Tokenizer(models.WordLevel(numbers, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")
    facts = {"name": "plain", "fingerprint": "f", "tokenizer_fingerprint": "t", "tokenizer": tokenizer}
    return index, cast(Encoder, PlainEncoder(**facts))


def test_words_go_to_the_nearer_group_and_those_first_that_are_far_from_the_other(tmp_path: Path) -> None:
    index, encoder = index_of_words(tmp_path, TEMPERATURES, [list(TEMPERATURES)] * OFTEN)
    assert neighbouring_words(index, encoder, [["hot"], ["cold"]], 2) == [("warm", "mild"), ("bleak", "icy")]
    assert neighbouring_words(index, encoder, [["hot"], ["cold"]], 1) == [("warm",), ("bleak",)]


def test_without_another_group_the_nearest_words_are_found(tmp_path: Path) -> None:
    index, encoder = index_of_words(tmp_path, TEMPERATURES, [list(TEMPERATURES)] * OFTEN)
    # Around the mean of all five, (-0.2, 0.0), their cosines with hot are 0.96, 0.46, -0.28, -0.88, -0.92.
    assert neighbouring_words(index, encoder, [["hot"]], 5) == [("warm", "mild", "icy", "bleak", "cold")]


def test_a_part_that_all_vectors_share_changes_nothing(tmp_path: Path) -> None:
    shifted = {word: (x + 50.0, y - 20.0) for word, (x, y) in TEMPERATURES.items()}
    index, encoder = index_of_words(tmp_path, shifted, [list(TEMPERATURES)] * OFTEN)
    assert neighbouring_words(index, encoder, [["hot"], ["cold"]], 2) == [("warm", "mild"), ("bleak", "icy")]


def test_a_frequent_word_of_a_group_counts_no_more_than_a_rare_one(tmp_path: Path) -> None:
    vectors = TEMPERATURES | {"damp": (-3.0, 8.0)}
    blocks = [list(TEMPERATURES)] * OFTEN + [["hot"] * 200, ["damp"]]
    index, encoder = index_of_words(tmp_path, vectors, blocks)
    # The group's mean is (-1.0, 4.25), the occurrences' nearly that of hot alone.
    assert neighbouring_words(index, encoder, [["hot", "damp"], ["cold"]], 3) == [("warm", "icy"), ("bleak", "mild")]


def test_rare_words_numbers_function_words_and_words_without_vectors_are_left_out(tmp_path: Path) -> None:
    vectors = TEMPERATURES | {word: (1.0, 0.5) for word in ("scarce", "42", "the", "pruned")}
    blocks = [[*TEMPERATURES, "42", "the", "pruned"]] * OFTEN + [["scarce"] * (OFTEN - 1)]
    index, encoder = index_of_words(tmp_path, vectors, blocks, stop_words=["the"], without_vector=["pruned"])
    assert neighbouring_words(index, encoder, [["hot"], ["cold"]], 9) == [("warm", "mild"), ("bleak", "icy")]


def test_deleted_blocks_lend_no_words(tmp_path: Path) -> None:
    vectors = TEMPERATURES | {"gone": (1.0, 0.5)}
    blocks = [list(TEMPERATURES)] * OFTEN + [["gone"] * OFTEN]
    index, encoder = index_of_words(tmp_path / "a", vectors, blocks)
    assert neighbouring_words(index, encoder, [["hot"], ["cold"]], 1)[0] == ("gone",)
    index, encoder = index_of_words(tmp_path / "b", vectors, blocks, live=[True] * OFTEN + [False])
    assert neighbouring_words(index, encoder, [["hot"], ["cold"]], 2)[0] == ("warm", "mild")


def test_a_large_corpus_is_sampled_in_blocks_from_its_start_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = (
        [[*TEMPERATURES, "early"]] * OFTEN + [[*TEMPERATURES, "middle"]] * OFTEN + [[*TEMPERATURES, "late"]] * OFTEN
    )
    vectors = TEMPERATURES | {"early": (1.0, 0.6), "middle": (1.0, 0.5), "late": (1.0, 0.4)}
    index, encoder = index_of_words(tmp_path, vectors, blocks)
    monkeypatch.setattr(neighbours, "LEAST_OCCURRENCES", 4)
    monkeypatch.setattr(neighbours, "SAMPLED_TOKENS", 7 * OFTEN * 3 // 2)
    assert set(neighbouring_words(index, encoder, [["hot"], ["cold"]], 9)[0]) >= {"early", "middle", "late"}
    monkeypatch.setattr(neighbours, "SAMPLED_TOKENS", 7 * OFTEN)
    assert not {"early", "middle", "late"} & set(neighbouring_words(index, encoder, [["hot"], ["cold"]], 9)[0])


def test_a_group_without_a_vector_is_refused(tmp_path: Path) -> None:
    index, encoder = index_of_words(tmp_path, TEMPERATURES, [list(TEMPERATURES)] * OFTEN, without_vector=["hot"])
    with pytest.raises(SettingError, match="hot, nowhere"):
        neighbouring_words(index, encoder, [["hot", "nowhere"], ["cold"]], 2)


def test_a_corpus_of_rare_words_only_adds_nothing(tmp_path: Path) -> None:
    index, encoder = index_of_words(tmp_path, TEMPERATURES, [list(TEMPERATURES)])
    assert neighbouring_words(index, encoder, [["hot"], ["cold"]], 5) == [(), ()]


def test_an_expanded_verbalizer_has_its_words_first_and_then_their_neighbours(tmp_path: Path) -> None:
    index, encoder = index_of_words(tmp_path, TEMPERATURES, [list(TEMPERATURES)] * OFTEN)
    labels = (Label(0, "low", ("cold",)), Label(1, "high", ("hot",)))
    task = Task("toy", Suite.closed, TaskData("toy.jsonl"), "{text} <mask>", labels)
    verbalizer = load_verbalizer(task, "expanded", index=index, encoder=encoder)
    assert verbalizer.words == (("cold", "bleak", "icy"), ("hot", "warm", "mild"))
    assert verbalizer.name == "expanded"
    mine = Verbalizer("mine.json", (("cold", "icy"), ("hot",)))
    assert expand(index, encoder, mine, 1).words == (("cold", "icy", "bleak"), ("hot", "warm"))
    assert expand(index, encoder, mine, 1).name == "expanded mine.json"


def plain_words(index: PhraseIndex) -> dict[str, list[np.ndarray]]:
    """Of every word of the live blocks with vectors at its ends, both of them side by side, f64 [2d], by loops."""
    store, vectors = index.store, index.vectors
    assert vectors is not None and store.start_chars is not None and store.end_chars is not None
    has_row = {position: row for row, position in enumerate(index.rows.positions(np.arange(len(index.rows))).tolist())}
    flags = store.flags.slice(0, store.token_count).tolist()
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    for block in range(store.block_count):
        if index.live_blocks is not None and not index.live_blocks[block]:
            continue
        text = store.document(int(store.block_documents[block])).text
        first = None
        for position in range(*store.block_offsets[block : block + 2].tolist()):
            first = position if flags[position] & TokenFlag.WORD_START else first
            if first is None or not flags[position] & TokenFlag.WORD_END:
                continue
            start, end = (
                int(chars.take(np.array([at]))[0])
                for chars, at in ((store.start_chars, first), (store.end_chars, position))
            )
            if first in has_row and position in has_row and not flags[first] & TokenFlag.STOPWORD:
                pair = [vectors.take(np.array([has_row[at]]))[0].astype(np.float64) for at in (first, position)]
                found[text[start:end].casefold()].append(np.concatenate(pair))  # f64 [2d]
            first = None
    return found


def plain_neighbours(index: PhraseIndex, groups: Sequence[Sequence[str]], count: int) -> list[list[str]]:
    found = plain_words(index)
    means = {word: sum(vectors) / len(vectors) for word, vectors in found.items()}
    given = {word for group in groups for word in group}
    compared = [w for w, v in found.items() if len(v) >= OFTEN and w.isalpha() and w not in given]
    centre = sum(means[word] for word in compared) / len(compared)

    def cosine(word: str, group: Sequence[str]) -> float:
        a, b = means[word] - centre, sum(means[each] for each in group) / len(group) - centre
        return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))

    chosen = []
    for group in groups:
        others = [other for other in groups if other is not group]
        margins = {word: cosine(word, group) - max(cosine(word, other) for other in others) for word in compared}
        nearest = sorted((w for w in compared if margins[w] > 0), key=lambda word: -cosine(word, group))
        chosen.append(sorted(nearest[: NEAREST_PER_WORD * count], key=lambda word: -margins[word])[:count])
    return chosen


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_neighbours_are_those_of_a_plain_loop_over_a_built_index(family: str, tmp_path: Path) -> None:
    encoder = tiny_encoder(family)
    folder = built(tmp_path / "index", [record(number) for number in range(40)], encoder)
    delete_documents(folder, DeleteSettings(ids=["d3", "d17"]))
    index = PhraseIndex.open(folder)
    counts = Counter({word: len(vectors) for word, vectors in plain_words(index).items()})
    assert any(len(word) > 4 and counts[word] >= OFTEN for word in counts)
    groups = [["france", "iceland"], ["madrid"], ["river", "sea"]]
    for count in (1, 2, 4):
        found = neighbouring_words(index, encoder, groups, count)
        assert found == [tuple(words) for words in plain_neighbours(index, groups, count)]
    assert found == neighbouring_words(PhraseIndex.open(folder), encoder, groups, 4)

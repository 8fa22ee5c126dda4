"""Builds that are killed, kept out, or find a dead owner's lock: the next same call ends in the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from npm.core.errors import ArtifactError
from npm.corpus.store import BlockStore
from npm.indexing import embed
from npm.indexing.build import build_index
from npm.indexing.embed import vector_shards
from npm.indexing.phrase_index import PhraseIndex
from npm.models.encoder import Encoder
from tests.helpers.command_line import all_bytes
from tests.helpers.kills import Killed
from tests.helpers.live_indexes import part_of
from tests.indexing.small_builds import small_settings, write_corpus


@pytest.fixture(scope="module")
def undisturbed(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    build_index(folder / "index", small_settings(write_corpus(folder / "corpus.jsonl")), encoder)
    return folder / "index"


def test_what_a_killed_build_left_is_no_index_and_at_most_one_shard_or_the_training_is_made_again(
    encoder: Encoder, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, index = small_settings(write_corpus(tmp_path / "corpus.jsonl")), tmp_path / "index"
    encoded, groups = list[int](), list[int]()
    real = embed.encode_batch
    monkeypatch.setattr(embed, "encode_batch", lambda *given: (encoded.append(len(given[1])), real(*given))[1])

    def kill_at(stage: str, share: float) -> Callable[[str, int, int | None], None]:
        def kill(now: str, done: int, total: int | None) -> None:
            if now == "quantizer":
                groups.append(done)
            if now == stage and done >= share * (total or 1):
                raise Killed

        return kill

    blocks: list[int] = []
    for stage, share in (("vectors", 0.5), ("quantizer", 0.5), ("codes", 1)):
        with pytest.raises(Killed):
            build_index(index, settings, encoder, progress=kill_at(stage, share))
        blocks.append(sum(encoded))
        with pytest.raises(ArtifactError, match="did not finish"):
            PhraseIndex.open(index)
    build_index(index, settings, encoder)
    store = BlockStore.open(part_of(index, "corpus"))
    shards = vector_shards(store, settings.vectors.tokens_per_shard)
    assert len(shards) > 3
    assert store.block_count <= blocks[1] < store.block_count + max(stop - first for first, stop in shards)
    assert blocks[1:] == [sum(encoded)] * 2
    assert groups == [1, 1, 2]  # a killed training begins again; the codec is its last step
    assert all_bytes(index) == all_bytes(undisturbed)

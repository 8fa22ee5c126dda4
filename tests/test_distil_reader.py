"""The three parts of `scripts/distil_reader.py` at tiny size, on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, MPNetConfig, MPNetModel

from scripts import distil_reader
from scripts.distil_models import Reader, span_losses
from scripts.distil_pairs import CLS, MASK, PAD, SEP, Pairs
from scripts.pack_pairs import ABSENT, BY_PEOPLE, FOUND, merge
from scripts.pack_pairs import Pairs as PackedPairs

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def packed(path: Path, *, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    pairs = PackedPairs([(0.5, 1), (0.5, 0)])
    for row in range(24):
        question = pairs.questions.add(rng.integers(200, 300, 3), rng.integers(200, 300, row % 3))
        passage = pairs.passages.add(ids(200 + row, 210), rng.integers(200, 300, 9))
        pairs.add(question, passage, (BY_PEOPLE, FOUND, ABSENT)[row % 3], row % 2, [(2, 3)] if row % 3 < 2 else [])
    pairs.save(path)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder as the script's head describes it."""
    packed(tmp_path / "pairs.npz")
    packed(tmp_path / "held-out.npz", seed=1)
    torch.manual_seed(0)
    models = {
        "teacher": MPNetModel(MPNetConfig(vocab_size=305, **SIZES), add_pooling_layer=False),
        "reader": BertModel(BertConfig(vocab_size=300, **SIZES), add_pooling_layer=False),
    }
    for name, model in models.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(model.config.to_dict()))
        save_file(
            {key: value.contiguous() for key, value in model.state_dict().items()},
            tmp_path / name / "model.safetensors",
        )
    return tmp_path


def test_a_pair_is_read_as_the_reader_reads(tmp_path: Path) -> None:
    pairs = PackedPairs([(0.5, 1), (0.5, 0)])
    passage = pairs.passages.add(ids(7, 8), ids(20, 21, 22))
    pairs.add(pairs.questions.add(ids(5), ids(6)), passage, BY_PEOPLE, 0, [(1, 2)])
    pairs.add(pairs.questions.add(ids(5, 5), ids()), passage, ABSENT, 0, [])
    pairs.save(tmp_path / "pairs.npz")
    read, keys, masks, edges, rows = Pairs(tmp_path / "pairs.npz").batch(ids(0, 1))
    row = [CLS, 5, MASK, MASK, 6, SEP, 7, 8, 20, 21, 22, SEP]
    assert read.tolist() == [row, [CLS, 5, 5, MASK, MASK, SEP, 7, 8, 20, 21, 22, SEP]]
    assert PAD not in read
    assert keys.nonzero()[1].reshape(2, -1).tolist() == [[0, 8, 9, 10]] * 2
    assert masks.tolist() == [[2, 3], [3, 4]]
    assert [edges[side].nonzero()[1].tolist() for side in (0, 1)] == [[9, 0], [10, 0]]
    assert rows.tolist() == [0, 1]


def test_span_loss_by_hand() -> None:
    logits = torch.tensor([[[0.0, 1.0, 2.0, 9.0]]] * 2)
    keys, edges = torch.tensor([[True, True, True, False]]), torch.tensor([[[False, True, False, False]]] * 2)
    expected = float(np.log(1 + np.e + np.e**2) - 1)
    assert span_losses(logits, keys, edges).flatten().tolist() == pytest.approx([expected, expected])


def test_merged_shards_are_those_of_one_process(tmp_path: Path) -> None:
    packed(tmp_path / "a.npz")
    packed(tmp_path / "b.npz", seed=1)
    merge(tmp_path / "both.npz", [tmp_path / "a.npz", tmp_path / "b.npz"])
    both = Pairs(tmp_path / "both.npz")
    for first, name in ((0, "a"), (24, "b")):
        alone = Pairs(tmp_path / f"{name}.npz")
        for row in range(24):
            for given, expected in zip(both.batch(ids(first + row))[:4], alone.batch(ids(row))[:4], strict=True):
                assert np.array_equal(given, expected)


def test_parts_in_turn_leave_a_reader_that_has_learned(work: Path) -> None:
    for part in ("teach", "score", "learn"):
        distil_reader.main(part, work, minutes=1000)
    pairs = Pairs(work / "pairs.npz")
    scores = np.load(work / "scores.npy")
    assert scores.shape == (2, pairs.lengths.sum())
    assert (scores[:, : pairs.lengths[0]].max(1) == 0).all()
    made, before = load_file(work / "reader.safetensors"), load_file(work / "reader" / "model.safetensors")
    assert {name for name in before if name not in made} == {"embeddings.word_embeddings.weight"}
    assert all(value.dtype == torch.float16 for value in made.values())
    changed = [not torch.equal(value, before[name].half()) for name, value in made.items()]
    assert sum(changed) > len(changed) / 2
    assert len((work / "metrics.jsonl").read_text().splitlines()) == 2


def test_no_time_is_refused(work: Path) -> None:
    with pytest.raises(SystemExit):
        distil_reader.main("teach", work, minutes=0)


def test_weights_in_eight_bits(work: Path) -> None:
    file = work / "reader" / "model.safetensors"
    state = load_file(file)
    name = "encoder.layer.0.intermediate.dense.weight"
    scale = state[name].abs().amax(1) / 127
    small = {**state, name: (state[name] / scale[:, None]).round().to(torch.int8), f"{name}#scale": scale}
    save_file(small, file)
    from scripts.distil_models import read_weights

    reader = Reader(work / "reader")
    read_weights(reader.body, file)
    error = (dict(reader.body.named_parameters())[name] - state[name]).abs().amax(1)
    assert (error <= scale / 2 + 1e-7).all()

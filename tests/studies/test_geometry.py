"""Geometry of vectors, by hand, against plain loops, and the verb that measures it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from npm.core.errors import CorpusError
from npm.evaluation.sts import SentenceVectors
from studies.geometry import (
    alignment,
    group_scores,
    layer_geometry,
    mean_cosine,
    measure_geometry,
    spectrum,
    uniformity,
)
from tests.evaluation.test_sts import ANGLES, in_the_plane, pairs_of
from tests.helpers.command_line import CommandLine
from tests.helpers.tiny_models import FAMILIES, SENTENCES, tiny_encoder


def test_geometry_is_over_distinct_sentences_and_alignment_over_gold_scores_above_4() -> None:
    plane = SentenceVectors("plane", in_the_plane, {})
    first = pairs_of([("a", "b", 5.0), ("c", "d", 4.5), ("e", "f", 4.0)])
    other = pairs_of([("a", "c", 4.0), ("a", "b", 4.2)], split="dev")
    geometry = measure_geometry(plane, [first, other], seed=0)

    def units(sentences: str) -> np.ndarray:
        return np.array([[np.cos(ANGLES[each]), np.sin(ANGLES[each])] for each in sentences])

    assert geometry["uniformity"] == pytest.approx(uniformity(units("abcdef")))
    assert geometry["anisotropy"] == pytest.approx(mean_cosine(units("abcdef").sum(0), 6))
    assert geometry["alignment"] == pytest.approx(alignment(units("aca"), units("bdb")))
    assert geometry["layers"] == []
    with pytest.raises(CorpusError, match="scores up to 1"):
        measure_geometry(plane, [pairs_of([("a", "b", 1.0), ("a", "d", 0.4)])], seed=0)


def test_a_group_of_one_vector_counts_in_no_score_and_spoils_none() -> None:
    vectors = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.6, 0.8]])
    right, silhouettes = group_scores(vectors, np.array([0, 0, 1, 1, 2]))
    # centroids without (1, 0): (3, 0) at 4, (0, 1.5) at 3.25, (0.6, 0.8) at 0.8, and so on
    assert right.tolist() == [False, True, False, True]
    # own distance 0, the nearest other group that of (0.6, 0.8): the silhouette is 1 for all
    assert silhouettes == pytest.approx([1, 1, 1, 1])


def test_the_verb_measures_an_encoder_and_its_layers(npmlm: CommandLine, tmp_path: Path) -> None:
    tiny_encoder("bert").save(tmp_path / "encoder")
    rows = [(SENTENCES[0], SENTENCES[1], 5.0), (SENTENCES[2], SENTENCES[3], 1.0), ("Paris.", "Oslo.", 4.5)]
    lines = [json.dumps({"sentence1": a, "sentence2": b, "score": score}) + "\n" for a, b, score in rows]
    (tmp_path / "stsb-dev.jsonl").write_text("".join(lines), encoding="utf-8")
    command = ["geometry", f"encoder={tmp_path / 'encoder'}", f"data_dir={tmp_path}", "pooler=avg"]
    found = npmlm(*command, "output=json").answers()[0]
    assert [each["layer"] for each in found["layers"]] == [0, 1, 2]
    assert found["spectrum"]["values"][0] == 1.0
    table = npmlm(*command)
    assert "uniformity" in table.out and "any sentences" in table.out
    npmlm(*command, "split=train").refused("stsb-train")


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def random_units(count: int, dimensions: int, seed: int = 0) -> np.ndarray:
    return unit_rows(np.random.default_rng(seed).normal(size=(count, dimensions)))


def test_alignment_and_mean_cosine_equal_loops_over_pairs() -> None:
    first, second = random_units(9, 4), random_units(9, 4, seed=1)
    plain = [sum((x - y) ** 2 for x, y in zip(u, v, strict=True)) for u, v in zip(first, second, strict=True)]
    assert alignment(first, second) == pytest.approx(sum(plain) / 9)
    cosines = [float(first[i] @ first[j]) for i in range(9) for j in range(9) if i != j]
    assert mean_cosine(first.sum(0), 9) == pytest.approx(sum(cosines) / len(cosines))


def test_uniformity_of_random_directions_comes_near_minus_4_as_dimensions_grow() -> None:
    far = [abs(uniformity(random_units(400, dimensions)) + 4) for dimensions in (4, 64, 1024)]
    assert far[0] > far[1] > far[2]
    assert far[2] < 0.02
    assert uniformity(np.repeat(random_units(1, 8), 3, axis=0)) == pytest.approx(0)


@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
def test_uniformity_in_pieces_equals_a_loop_over_different_pairs(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("studies.geometry.ROWS_AT_ONCE", rows_at_once)
    for count in (2, 7):
        units = random_units(count, 3, seed=count)
        kernels = [math.exp(-2 * ((units[i] - units[j]) ** 2).sum()) for i in range(count) for j in range(i)]
        assert uniformity(units) == pytest.approx(math.log(sum(kernels) / len(kernels)))


def test_the_spectrum_of_two_and_one_orthogonal_rows_is_worked_by_hand() -> None:
    # rows x, x, y: s² = 2, 1; shares 2/3, 1/3; exp H = 3 / 2^(2/3)
    found = spectrum(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    assert found["values"] == pytest.approx([1.0, math.sqrt(0.5)])
    assert found["effective_rank"] == pytest.approx(3 / 2 ** (2 / 3))
    assert found["top_share"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_equal_loops_over_sentences_and_tokens(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.geometry.SENTENCES_PER_PASS", 3)
    encoder = tiny_encoder(family)
    sentences = [SENTENCES[0], "Paris.", SENTENCES[3], SENTENCES[5][:20]]
    found = layer_geometry(encoder, sentences)
    states: list[list[np.ndarray]] = []  # [sentence][layer] f64 [tokens, d]
    for sentence in sentences:
        ids = torch.tensor([encoder.tokenizer(sentence)["input_ids"]])
        with torch.no_grad():
            output = encoder.model(ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
        states.append([unit_rows(each[0].double().numpy()) for each in output.hidden_states])
    assert [each["layer"] for each in found] == [0, 1, 2]
    for layer in found:
        own = [each[int(layer["layer"])] for each in states]
        assert layer["self_similarity"] == pytest.approx(
            np.mean([mean_cosine(each.sum(0), len(each)) for each in own]), abs=1e-5
        )
        tokens = np.concatenate(own)
        assert layer["anisotropy"] == pytest.approx(mean_cosine(tokens.sum(0), len(tokens)), abs=1e-5)

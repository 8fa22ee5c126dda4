"""How vectors lie in space: numbers by hand, plain loops over pairs, and the layers of tiny encoders."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from npm.core.errors import SettingError
from npm.evaluation.geometry import alignment, layer_geometry, mean_cosine, spectrum, uniformity, whitened
from tests.helpers.tiny_models import FAMILIES, SENTENCES, tiny_encoder


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def random_units(count: int, dimensions: int, seed: int = 0) -> np.ndarray:
    return unit_rows(np.random.default_rng(seed).normal(size=(count, dimensions)))


def test_whitened_vectors_have_mean_0_and_covariance_1_and_the_angles_of_mahalanobis() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 4)) @ rng.normal(size=(4, 4)) + 5
    white = whitened(vectors)
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(white.T @ white / 50, np.eye(4), atol=1e-12)
    inverse = np.linalg.inv(np.cov(vectors.T, bias=True))
    centered = vectors - vectors.mean(0)
    np.testing.assert_allclose(white @ white.T, centered @ inverse @ centered.T, atol=1e-10)
    flat = np.column_stack([vectors[:, :2], vectors[:, 0]])  # two directions in three dimensions
    assert whitened(flat).shape == (50, 2)
    with pytest.raises(SettingError, match="got 5"):
        whitened(vectors[:5])


def test_alignment_equals_a_loop_over_pairs() -> None:
    first, second = random_units(9, 4), random_units(9, 4, seed=1)
    plain = [sum((x - y) ** 2 for x, y in zip(u, v, strict=True)) for u, v in zip(first, second, strict=True)]
    assert alignment(first, second) == pytest.approx(sum(plain) / 9)


def test_uniformity_of_random_directions_comes_near_minus_4_as_dimensions_grow() -> None:
    far = [abs(uniformity(random_units(400, dimensions)) + 4) for dimensions in (4, 64, 1024)]
    assert far[0] > far[1] > far[2]
    assert far[2] < 0.02
    assert uniformity(np.repeat(random_units(1, 8), 3, axis=0)) == pytest.approx(0)


@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
def test_uniformity_in_pieces_equals_a_loop_over_different_pairs(
    rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npm.evaluation.geometry.ROWS_AT_ONCE", rows_at_once)
    for count in (2, 7):
        units = random_units(count, 3, seed=count)
        kernels = [math.exp(-2 * ((units[i] - units[j]) ** 2).sum()) for i in range(count) for j in range(i)]
        assert uniformity(units) == pytest.approx(math.log(sum(kernels) / len(kernels)))


def test_the_mean_cosine_equals_a_loop_over_different_pairs() -> None:
    units = random_units(6, 3)
    plain = [float(units[i] @ units[j]) for i in range(6) for j in range(6) if i != j]
    assert mean_cosine(units.sum(0), 6) == pytest.approx(sum(plain) / len(plain))


def test_the_spectrum_of_two_and_one_orthogonal_rows_is_worked_by_hand() -> None:
    # rows x, x, y: s² = 2, 1; shares 2/3, 1/3; exp H = 3 / 2^(2/3)
    found = spectrum(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    assert found["values"] == pytest.approx([1.0, math.sqrt(0.5)])
    assert found["effective_rank"] == pytest.approx(3 / 2 ** (2 / 3))
    assert found["top_share"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_equal_loops_over_sentences_and_tokens(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npm.evaluation.geometry.SENTENCES_PER_PASS", 3)
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

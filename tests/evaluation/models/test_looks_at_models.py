"""Tasks `parameters`, `embeddings` and `vocabulary`: numbers by hand and by plain loops, and each end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cosine

from npm.evaluation.models.embeddings import nearest_is_own, silhouettes
from npm.evaluation.models.parameters import evaluate_parameters
from npm.evaluation.models.vocabulary import count_contexts
from npm.models.edits.checkpoint import Checkpoint
from npm.models.masked_lm import attach_masked_head
from tests.helpers.command_line import CommandLine, write_corpus
from tests.helpers.tiny_models import tiny_encoder, wordpiece_tokenizer


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "modernbert"])
def test_every_number_of_a_model_is_in_one_row(family: str, tmp_path: Path) -> None:
    encoder = tiny_encoder(family, dimensions=16)
    attach_masked_head(encoder, None, trained=False)
    encoder.save(tmp_path / "model")
    result = evaluate_parameters(str(tmp_path / "model"))
    tensors = Checkpoint.read(str(tmp_path / "model")).tensors
    rows = {(row.module, row.layer, row.part): row for row in result.rows if row.model == "encoder"}
    assert sum(row.count for row in rows.values()) == sum(tensor.numel() for tensor in tensors.values())
    assert sum(row.model == "encoder" for row in result.rows) == len(rows)
    if family == "modernbert":
        key = tensors["layers.1.attn.Wqkv.weight"][16:32].double()
        layer_norms = {"embedding norm", "final norm", "attention norm", "feed-forward norm", "head norm"}
    else:
        key = tensors["encoder.layer.1.attention.self.key.weight"].double()
        layer_norms = {"embedding norm", "attention norm", "feed-forward norm", "head norm"}
    row = rows["key", 1, "weight"]
    assert (row.mean, row.largest, row.count) == pytest.approx((float(key.mean()), float(key.abs().max()), 256))
    assert row.standard_deviation == pytest.approx(float(key.std(correction=0)))
    assert {module for module, _, _ in rows if "norm" in module} == layer_norms
    new = {(row.module, row.layer, row.part): row for row in result.rows if row.model == "new"}
    assert new.keys() == rows.keys()
    assert new["word embeddings", None, "weight"].standard_deviation == pytest.approx(0.02, rel=0.2)


def test_parameters_before_and_after_are_written_and_drawn(
    tiny_encoder_folder: Path, npmlm: CommandLine, tmp_path: Path
) -> None:
    edited, out, picture = tmp_path / "edited", tmp_path / "out", tmp_path / "p.png"
    npmlm("edit", f"encoder={tiny_encoder_folder}", f"out={edited}", "edit=reversed")
    before = f"parameters.before={tiny_encoder_folder}"
    outcome = npmlm("evaluate", "task=parameters", f"encoder={edited}", before, f"out={out}")
    assert outcome.status == 0 and "feed-forward out weight" in outcome.out
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    queries = {(r["model"], r["layer"]): r["mean"] for r in rows if (r["module"], r["part"]) == ("query", "weight")}
    assert queries["encoder", 0] == queries["before", 1] != queries["encoder", 1] == queries["before", 0]
    drawn = npmlm("plot", out, f"out={picture}", "output=json")
    record = json.loads(drawn.out)
    assert len(record["modules"]) == 8 and record["modules"]["query"].keys() == {"encoder", "before", "new"}
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_centroids_and_silhouettes_are_those_of_plain_loops(rng: np.random.Generator) -> None:
    vectors, groups = rng.normal(size=(40, 5)), np.array([*rng.integers(0, 4, 39), 4])  # the last one is alone
    vectors += 1.5 * np.eye(5)[groups]
    right, scores = [], []
    for i, group in enumerate(groups):
        others = {g: [j for j in range(40) if groups[j] == g and j != i] for g in range(5)}
        distances = {g: np.linalg.norm(vectors[i] - vectors[own].mean(0)) for g, own in others.items() if own}
        right.append(min(distances, key=lambda g: distances[g]) == group)
        means = {g: np.mean([cosine(vectors[i], vectors[j]) for j in own]) for g, own in others.items() if own}
        inside, outside = means.pop(group, None), min(each for g, each in means.items() if g != group)
        scores.append(0.0 if inside is None else (outside - inside) / max(inside, outside))
    assert nearest_is_own(vectors, groups).tolist() == right
    assert 0 < sum(right) < 40 and not right[-1]
    np.testing.assert_allclose(silhouettes(vectors, groups), scores, atol=1e-12)


def test_word_vectors_that_lie_by_group_are_told_apart(npmlm: CommandLine, tmp_path: Path) -> None:
    encoder = tiny_encoder("bert", dimensions=8, num_attention_heads=2)
    groups = {letter: "vowel" if letter in "aeiou" else "consonant" for letter in "abcdefghijklmno"}
    vocabulary = encoder.tokenizer.get_vocab()
    with torch.no_grad():
        for letter, group in groups.items():
            encoder.model.get_input_embeddings().weight[vocabulary[letter], 3] += 1.0 if group == "vowel" else -1.0
    encoder.save(tmp_path / "model")
    file, out = tmp_path / "groups.json", tmp_path / "out"
    file.write_text(json.dumps(groups))
    command = ("evaluate", "task=embeddings", f"encoder={tmp_path / 'model'}", f"out={out}")
    outcome = npmlm(*command, f"embeddings.groups={file}")
    assert outcome.status == 0, outcome.err
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["centroid_accuracy"] == 1 and metrics["silhouette"] > 0.9
    assert metrics["chance"] == pytest.approx(11 / 15)
    points = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert {point["group"] for point in points if point["x"] > 0} != {"vowel", "consonant"}
    drawn = npmlm("plot", out, f"out={tmp_path / 'e.svg'}", "output=json")
    assert [point["token"] for point in json.loads(drawn.out)["encoders"][0]["points"]] == list(groups)
    bad = tmp_path / "bad.json"
    for content, part in (
        ('{"a": 1, "b": "x"}', "got 1"),
        ('{"a": "x", "b": "x"}', "two groups"),
        ('{"a": "x", "nowhere-in-it": "y"}', "nowhere-in-it"),
        ("[]", "bad.json"),
    ):
        bad.write_text(content)
        npmlm(*command, "overwrite=true", f"embeddings.groups={bad}").refused(part)
    npmlm(*command, "overwrite=true", "embeddings.groups=absent.json").refused("absent.json")
    npmlm(*command, "overwrite=true").refused("embeddings.groups")


def test_contexts_are_ten_pieces_of_which_more_than_five_are_latin() -> None:
    tokenizer = wordpiece_tokenizer()
    latin, five, digits = "a " * 10, "a 1 " * 5, "1 " * 10
    assert [count_contexts(tokenizer, [text]) for text in (latin, five, digits)] == [(1, 1), (1, 0), (1, 0)]
    assert count_contexts(tokenizer, ["a " * 6 + "1 " * 4]) == (1, 1)
    assert count_contexts(tokenizer, ["a " * 19, "1 " * 9, "[MASK]"]) == (1, 1)  # remainders are in none


def test_vocabularies_share_what_is_spelt_alike(npmlm: CommandLine, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    tokenizers = [wordpiece_tokenizer(["alpha 1 beta"]), wordpiece_tokenizer(["alpha 2 gamma"])]
    for folder, tokenizer in zip((first, second), tokenizers, strict=True):
        tokenizer.save_pretrained(folder)
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    arguments = ["evaluate", "task=vocabulary", f"encoder={first}", f"corpus.files={corpus}", f"out={tmp_path / 'out'}"]
    outcome = npmlm(*arguments, f"vocabulary.other={second}")
    assert outcome.status == 0, outcome.err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    own = [set(each.get_vocab()) - set(each.all_special_tokens) for each in tokenizers]
    assert [each["tokens"] for each in metrics["vocabularies"]] == [len(each) for each in own]
    for each in metrics["vocabularies"]:
        assert each["shared"] == len(own[0] & own[1])
        assert each["shared_matching"] == sum(token.removeprefix("##").isalpha() for token in own[0] & own[1])
    assert metrics["contexts"] > 0 and 0 < metrics["english_like_share"] <= 1
    npmlm(*arguments, "overwrite=true").refused("vocabulary.other")

"""Task `word_sense` and the picture of senses: forms of pairs, areas against scipy, places by hand, and end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu

from npm.core.errors import CorpusError, SettingError
from npm.evaluation.analyses.senses import nearest_pairs, principal_components
from npm.evaluation.analyses.word_pairs import WordPair, WordPlace, read_pairs, shipped_pairs
from npm.evaluation.analyses.word_sense import (
    WordSenseResult,
    auc,
    best_threshold,
    place_aucs,
    place_vectors,
    resampled_aucs,
    similarities,
)
from npm.evaluation.settings import SampleSettings
from npm.models.encoder import Encoder
from tests.helpers.command_line import CommandLine, write_corpus
from tests.helpers.tiny_models import tiny_encoder

BANK = WordPair("bank", WordPlace("The bank closed.", 4, 8), WordPlace("A river bank.", 8, 12), False)
MOON = WordPair("moon", WordPlace("A moon of Mars.", 2, 6), WordPlace("The moon rose.", 4, 8), True)


def own_row(pair: WordPair, key: str = "same") -> dict[str, object]:
    row: dict[str, object] = {"word": pair.word, key: pair.same}
    for side, place in (("1", pair.first), ("2", pair.second)):
        row |= {f"sentence{side}": place.sentence, f"start{side}": place.start, f"end{side}": place.end}
    return row


def test_the_three_forms_of_pairs_are_read_alike(tmp_path: Path) -> None:
    own = write_corpus(tmp_path / "own.jsonl", [own_row(BANK), own_row(MOON)])
    glue = tmp_path / "glue"
    glue.mkdir()
    write_corpus(glue / "val.jsonl", [own_row(each, "label") | {"idx": 0, "version": 1.1} for each in (BANK, MOON)])
    wic = tmp_path / "wic" / "dev"
    wic.mkdir(parents=True)
    (wic / "dev.data.txt").write_text(
        "bank\tN\t1-2\tThe bank closed .\tA river bank .\nmoon\tN\t1-1\tA moon of Mars .\tThe moon rose .\n"
    )
    (wic / "dev.gold.txt").write_text("F\nT\n")
    assert read_pairs(own) == read_pairs(glue) == [BANK, MOON]
    for pair in read_pairs(wic.parent):
        assert [place.sentence[place.start : place.end] for place in (pair.first, pair.second)] == [pair.word] * 2
    assert [pair.same for pair in read_pairs(wic.parent)] == [False, True]


def test_pairs_that_are_none_are_refused(tmp_path: Path) -> None:
    def refused(row: dict[str, object], problem: str) -> None:
        file = write_corpus(tmp_path / "x.jsonl", [own_row(MOON), row])
        with pytest.raises(CorpusError, match=r"x\.jsonl:2") as caught:
            read_pairs(file)
        assert problem in str(caught.value)

    refused({**own_row(BANK), "same": None}, "SuperGLUE: label")
    refused({**own_row(BANK), "end1": 99}, "within the 16 characters")
    refused({**own_row(BANK), "start2": "x"}, "start2='x'")
    refused({**own_row(BANK), "word": ""}, "the word")
    with pytest.raises(CorpusError, match="one sense and pairs of two"):
        read_pairs(write_corpus(tmp_path / "one.jsonl", [own_row(MOON)]))
    with pytest.raises(CorpusError, match="does not exist"):
        read_pairs(tmp_path / "nowhere.jsonl")
    with pytest.raises(CorpusError, match=r"word_sense\.pairs="):
        read_pairs(tmp_path)
    data = tmp_path / "dev.data.txt"
    data.write_text("bank\tN\t1-9\tThe bank closed .\tA river bank .\n")
    with pytest.raises(CorpusError, match=r"labels in dev\.gold\.txt"):
        read_pairs(data)
    gold = tmp_path / "dev.gold.txt"
    for label, problem in (("T\nT\n", "a label for each of 1 lines"), ("T\n", "below the 4 words"), ("?\n", "T or F")):
        gold.write_text(label)
        with pytest.raises(CorpusError, match=problem):
            read_pairs(data)


def test_shipped_pairs_are_all_pairs_of_six_sentences() -> None:
    pairs = shipped_pairs()
    assert len(pairs) == 20 * 15 and sum(pair.same for pair in pairs) == 20 * 6
    for place in (place for pair in pairs for place in (pair.first, pair.second)):
        assert place.sentence[place.start : place.end].isalpha()


def test_areas_equal_those_of_scipy_also_with_ties(rng: np.random.Generator) -> None:
    for levels in (3, 10_000):
        scores = rng.integers(levels, size=60) / levels
        positive = rng.random(60) < 0.4
        statistic = mannwhitneyu(scores[positive], scores[~positive]).statistic
        assert auc(scores, positive) == pytest.approx(statistic / (positive.sum() * (~positive).sum()))
    assert auc(scores, positive & False) == 0.5


def test_words_are_drawn_with_all_their_pairs() -> None:
    scores, positive = np.array([1.0, 0.0, 0.0, 1.0]), np.array([True, False, True, False])
    samples = resampled_aucs([scores, -scores], positive, ["a", "a", "b", "b"], SampleSettings(resamples=200))
    assert set(samples[0].tolist()) == {0.0, 0.5, 1.0}  # b twice, both, a twice
    assert (samples[0] + samples[1] == 1).all()


def test_the_threshold_is_of_one_half_and_the_accuracy_of_the_other() -> None:
    assert best_threshold(np.array([0.1, 0.2]), np.array([False, False])) == 1.2
    pairs = tuple(WordPair("a", BANK.first, BANK.second, number % 2 == 0) for number in range(10))
    scores = np.array([float(pair.same) for pair in pairs])
    result = WordSenseResult(pairs, {("e", "cosine"): scores}, {}, (), (), SampleSettings(resamples=5), {})
    development = result.development()
    assert development.sum() == 5
    accuracy, threshold = result.accuracy(np.where(development, scores, 1 - scores))
    assert (accuracy.mean, threshold) == (0.0, 1.0)


def test_the_vector_of_a_place_is_that_of_its_first_and_of_its_last_token(encoder: Encoder) -> None:
    sentence = "Norway's capital, Antananarivo, lies there."
    place = WordPlace(sentence, *(sentence.index(mark) for mark in ("Antananarivo", ", lies")))
    given = encoder.tokenizer(sentence, return_tensors="pt", return_offsets_mapping=True)
    offsets = given.pop("offset_mapping")[0].tolist()
    own = [at for at, (start, end) in enumerate(offsets) if place.start <= start < end <= place.end]
    assert len(own) > 1
    with torch.inference_mode():
        states = encoder.model(**given, output_hidden_states=True).hidden_states
    expected = torch.cat([states[-1][0, own[0]], states[-1][0, own[-1]]]).numpy()
    (vectors,) = place_vectors(encoder, [place, BANK.first])
    assert vectors[0] == pytest.approx(expected, abs=1e-5)
    layers = place_vectors(encoder, [BANK.first, place], layers=True)
    assert len(layers) == len(states)
    assert layers[-1, 1] == pytest.approx(expected, abs=1e-5)
    long = "word " * 500
    (cut,) = place_vectors(encoder, [WordPlace(f"{long}{sentence} {long}", place.start + 2500, place.end + 2500)])
    assert np.isfinite(cut).all()
    with pytest.raises(SettingError, match="no token of the word"):
        place_vectors(encoder, [WordPlace("a b", 1, 2)])


def test_similarities_by_hand() -> None:
    vectors = np.array([[[3.0, 0.0, 0.0, 4.0]], [[3.0, 0.0, 4.0, 0.0]]], dtype=np.float32)
    assert {name: own.tolist() for name, own in similarities(vectors, 0.5).items()} == {
        "inner product": [4.5],
        "cosine": [pytest.approx(9 / 25)],
    }


def test_a_place_among_its_like_has_a_high_area() -> None:
    near = np.array([[9, 5, 1, 0], [5, 9, 2, 6], [1, 2, 9, 7], [0, 6, 7, 9]], dtype=np.float32)
    # Place 1 is nearer to place 3, of the other rating, than to place 0, and to place 0 than to place 2.
    assert place_aucs(near, np.array([False, False, True, True])).tolist() == [1.0, 0.5, 1.0, 1.0]


def test_components_keep_distances_in_a_plane_and_copies_are_in_no_pair(rng: np.random.Generator) -> None:
    plane = rng.normal(size=(6, 2)) @ rng.normal(size=(2, 5))
    points, explained = principal_components(plane.astype(np.float32))
    distances = [np.linalg.norm(each[:, None] - each, axis=2) for each in (plane, points)]
    assert distances[0] == pytest.approx(distances[1], abs=1e-4)
    assert explained.sum() == pytest.approx(1) and explained[0] >= explained[1]
    vectors = np.array([[1, 0], [1, 0.1], [0, 1], [1, 0]], dtype=np.float32)
    pairs = nearest_pairs(vectors, ["a", "b", "c", "a"])
    assert [pair[1:] for pair in pairs] == [(0, 1), (1, 2), (0, 2)]
    assert pairs[0][0] == pytest.approx(1 / np.sqrt(1.01))


def test_pairs_and_places_are_measured_and_drawn(npmlm: CommandLine, tmp_path: Path) -> None:
    folders = {"first": tmp_path / "first", "second": tmp_path / "second"}
    for seed, folder in enumerate(folders.values()):
        tiny_encoder("bert", seed=seed).save(folder)
    texts = [
        f"The {thing} was very cheap, {praise}." for thing in ("knife", "film", "pot") for praise in ("bad", "good")
    ]
    rows = [
        {"id": f"{number}-{copy}", "text": f"{text} It is number {copy}.", "rating": 1 + 4 * (number % 2)}
        for number, text in enumerate(texts)
        for copy in range(2)
    ]
    corpus, index = write_corpus(tmp_path / "reviews.jsonl", rows), tmp_path / "index"
    build = ["build", f"corpus.files=[{corpus}]", f"index={index}", f"encoder={folders['first']}", "copy_encoder=true"]
    assert npmlm(*build, "corpus.kept_fields=[rating]", "blocks.max_block_tokens=64").status == 0
    pairs = write_corpus(tmp_path / "pairs.jsonl", [own_row(BANK), own_row(MOON), own_row(BANK), own_row(MOON)])
    ask = ["evaluate", "task=word_sense", f"index={index}", f"out={tmp_path / 'out'}", "resamples=20"]
    given = [f"word_sense.pairs={pairs}", f"word_sense.encoders=[{folders['second']}]", "word_sense.layers=true"]
    outcome = npmlm(*ask, *given)
    assert outcome.status == 0, outcome.err
    assert "left out" in outcome.out and "sick" in outcome.out
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert [word["word"] for word in metrics["rated"]] == ["cheap"]
    assert metrics["rated"][0]["counts"] == [6, 6]
    assert [panel["title"] for panel in metrics["panels"]][-2:] == ["same sense, by layer", "same rating"]
    assert len((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()) == 2 * 2 * 4
    assert npmlm("plot", tmp_path / "out", f"out={tmp_path / 'panels.svg'}").status == 0
    npmlm(*ask, "word_sense.words=[nowhere]", "overwrite=true").refused("word_sense.words: none has")
    npmlm(*ask, "word_sense.low=stars<=2", "overwrite=true").refused("no document has a kept field stars")
    npmlm(*ask, "word_sense.high=good", "overwrite=true").refused("word_sense.high: invalid condition")
    npmlm(*ask, f"word_sense.encoders=[{folders['first']}]", "overwrite=true").refused("word_sense.encoders: only")
    npmlm(*ask[:2], ask[3], given[0], "word_sense.low=stars<=2", "overwrite=true").refused("word_sense.low: only")
    drawn = npmlm("plot", "senses", f"index={index}", "word=cheap", "colour_by=rating", f"out={tmp_path / 'x.png'}")
    assert drawn.status == 0, drawn.err
    assert "very cheap" in drawn.out
    numbers = npmlm(
        "plot", "picture=senses", f"index={index}", "word=cheap", f"out={tmp_path / 'x.png'}", "output=json"
    )
    (record,) = numbers.answers()
    assert len(record["places"]) == 12 and len(record["pairs"]) == 10
    plot = ["plot", "senses", f"out={tmp_path / 'x.png'}"]
    npmlm(*plot, "word=cheap").refused("needs index=DIR and word=WORD")
    npmlm(*plot, f"index={index}", "word=nowhere").refused("got 0")
    npmlm(*plot, f"index={index}", "word=cheap", "colour_by=stars").refused("no document has a kept field stars")
    npmlm("plot", tmp_path / "out", "word=cheap", f"out={tmp_path / 'x.png'}").refused("no use for word")


def test_without_pairs_and_index_the_shipped_pairs_are_ranked(npmlm: CommandLine, tmp_path: Path) -> None:
    tiny_encoder("roberta").save(tmp_path / "encoder")
    encoder = tmp_path / "encoder"
    ask = ["evaluate", "task=word_sense", f"encoder={encoder}", f"out={tmp_path / 'out'}", "resamples=5"]
    outcome = npmlm(*ask, f"word_sense.encoders=[{encoder}]")
    assert outcome.status == 0, outcome.err
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["pair_count"] == 300
    names = [point["name"] for point in metrics["panels"][0]["lines"][0]["points"]]
    assert names == ["encoder", "encoder (2)"]
    against = [point["share"] for line in metrics["panels"][1]["lines"] for point in line["points"]]
    assert against == [{"mean": 0.0, "low": 0.0, "high": 0.0}] * 2  # the same encoder on the same resamples

"""Settings of search measured against a plain sort of all scores, chosen and written; which settings are tried."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.exact import ExactSearcher
from index.search import open_search
from index.types import Hits
from npm.core.errors import ArtifactError, SettingError
from npm.corpus.text import normalized_text
from npm.indexing.changes import delete_documents
from npm.indexing.generation import Generation
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import DeleteSettings
from npm.indexing.verify import verify_index
from npm.models.encoder import Encoder
from npm.retrieval.drawn_questions import draw_questions
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.queries import encode_queries
from npm.retrieval.settings import FillSettings, Retrieval
from npm.tuning import tune
from npm.tuning.settings import TuneSettings
from npm.tuning.tune import (
    TIE,
    Measured,
    SearchChoice,
    TuneResult,
    choose,
    found_rows,
    search_choices,
    tune_index,
    widest_first,
    write_searching,
)
from tests.helpers.live_indexes import all_bytes
from tests.helpers.tiny_models import tiny_encoder
from tests.helpers.tuned_indexes import LISTS, build_measured

QUESTIONS = 6
NARROW = {"probed_lists": (1, 3, LISTS), "reranked_rows": (128,), "candidates_per_side": (8, 128)}


@pytest.fixture(scope="module")
def lists_folder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return build_measured(tmp_path_factory.mktemp("lists") / "index", encoder, f"ivf_sq8 {LISTS}")


@pytest.fixture(scope="module")
def tuned(lists_folder: Path, encoder: Encoder) -> TuneResult:
    return tune_index(TuneSettings(index=str(lists_folder), queries=QUESTIONS, **NARROW), encoder)


def plain_measures(
    folder: Path, encoder: Encoder, choice: SearchChoice
) -> tuple[dict[int, tuple[float, float]], float]:
    """The least and most that recall at 1, 10, 100 can be, and agreement; each question against a sort of all scores.

    Rows whose scores are hardly below the last of the best may or may not count as its equals.
    """
    index, generation = PhraseIndex.open(folder), Generation.read(folder)
    assert index.vectors is not None
    chosen = {"probed_lists": choice.probed_lists, "rerank_factor": choice.rerank_factor}
    searcher = open_search(generation.search, index.vectors, quantizer=generation.quantizer, **chosen)
    index = replace(index, searcher=searcher)
    assert index.vectors is not None
    vectors = index.vectors.slice(0, len(index.vectors)).astype(np.float32)
    live = range(len(vectors)) if index.live_rows is None else np.flatnonzero(index.live_rows).tolist()
    settings = FillSettings(retrieval=Retrieval.dense, candidates_per_side=choice.candidates_per_side)
    found: dict[int, list[tuple[float, float]]] = {1: [], 10: [], 100: []}
    same = []
    for question in draw_questions(index, QUESTIONS, seed=0):
        queries = encode_queries(encoder, [question.text])
        for query in (queries.start, queries.end):
            scores = np.full(len(vectors), -np.inf, dtype=np.float32)
            scores[live] = vectors[live] @ query[0]
            hits = index.searcher.scan(query, index.live_rows).top(choice.candidates_per_side)
            rows = hits.rows[0][hits.found[0]].tolist()
            for rank in found:
                found[rank].append(shares_found(rows[:rank], scores, rank))
        ours, exact = (
            PhraseFiller(opened, encoder, settings).fill(question.text).phrases[0].phrase
            for opened in (index, replace(index, searcher=ExactSearcher(vectors)))
        )
        same.append(normalized_text(ours) == normalized_text(exact))
    bounds = {rank: tuple(np.mean(shares, axis=0).tolist()) for rank, shares in found.items()}
    return bounds, float(np.mean(same))


def shares_found(rows: list[int], scores: np.ndarray, rank: int) -> tuple[float, float]:
    """The least and the most that the share of the `rank` best rows among `rows` can be; equals of the last count."""
    last = np.sort(scores)[-rank]
    least, most = (min(rank, int((scores[rows] >= last - tie * np.abs(last)).sum())) for tie in (TIE / 3, 3 * TIE))
    return least / rank, most / rank


def assert_within(recall: Mapping[int, float], bounds: dict[int, tuple[float, float]]) -> None:
    assert recall.keys() == bounds.keys()
    for rank, (least, most) in bounds.items():
        assert least - 1e-9 <= recall[rank] <= most + 1e-9
        assert most - least < 0.1  # else the bounds would hold for anything


def test_recall_and_agreement_are_those_of_a_plain_sort_of_all_scores(
    tuned: TuneResult, lists_folder: Path, encoder: Encoder
) -> None:
    assert {each.choice.probed_lists for each in tuned.measured} == {1, 3, LISTS}
    for each in tuned.measured:
        recall, agreement = plain_measures(lists_folder, encoder, each.choice)
        assert_within(each.recall, recall)
        assert each.agreement == pytest.approx(agreement)
    narrow = [each for each in tuned.measured if each.choice.probed_lists == 1]
    assert all(each.recall[100] < 0.9 for each in narrow)
    assert any(each.agreement < 1 for each in narrow)


def test_all_lists_and_enough_reranked_rows_find_what_exact_search_finds(tuned: TuneResult) -> None:
    # With twice as many rows reranked as are grown, those at the border are the same ones too.
    measured = next(each for each in tuned.measured if each.choice == tuned.present)
    assert (measured.choice.probed_lists, measured.choice.reranked_rows) == (LISTS, 1024)
    assert measured.recall == {1: 1.0, 10: 1.0, 100: pytest.approx(1.0, abs=0.01)}
    assert measured.agreement == 1.0


def test_the_present_setting_is_measured_too(tuned: TuneResult) -> None:
    assert tuned.present == SearchChoice(probed_lists=LISTS, rerank_factor=2, candidates_per_side=512)
    assert tuned.present in [each.choice for each in tuned.measured]


def test_exact_search_recalls_everything_and_agrees_with_itself(encoder: Encoder, tmp_path: Path) -> None:
    folder = build_measured(tmp_path / "index", encoder, None)
    result = tune_index(TuneSettings(index=str(folder), queries=40, candidates_per_side=(16, 128)), encoder)
    assert result.question_count == 40
    assert [each.choice.candidates_per_side for each in result.measured][1:] == [128, 16]
    for each in result.measured:
        assert each.choice.probed_lists is None and each.choice.rerank_factor is None
        assert each.agreement == 1.0
        assert each.recall[1] == each.recall[10] == 1.0
    assert [each.recall[100] for each in result.measured] == [1.0, 1.0, 0.16]
    assert result.goals_met


def test_deleted_rows_count_for_nothing(encoder: Encoder, tmp_path: Path) -> None:
    folder = build_measured(tmp_path / "index", encoder, "ivf_sq8 4")
    delete_documents(folder, DeleteSettings(ids=[f"d{number}" for number in range(60)]))
    settings = TuneSettings(
        index=str(folder), queries=QUESTIONS, probed_lists=(4,), reranked_rows=(128,), candidates_per_side=(128,)
    )
    result = tune_index(settings, encoder)
    each = next(each for each in result.measured if each.choice != result.present)
    recall, agreement = plain_measures(folder, encoder, each.choice)
    assert_within(each.recall, recall)
    assert each.recall[100] > 0.9
    assert each.agreement == pytest.approx(agreement)


def measured(p50_ms: float, agreement: float, recall: float) -> Measured:
    choice = SearchChoice(probed_lists=int(100 * p50_ms), rerank_factor=1, candidates_per_side=1)
    return Measured(choice, {1: 1.0, 10: 1.0, 100: recall}, agreement, p50_ms, 2 * p50_ms)


def test_the_fastest_that_reaches_both_goals_is_chosen_else_the_one_that_agrees_most() -> None:
    every = [measured(1, 0.96, 0.90), measured(2, 0.90, 0.99), measured(3, 0.95, 0.97), measured(4, 1.0, 1.0)]
    assert choose(every, recall_goal=0.97, agreement_goal=0.95) == (every[2], True)
    assert choose(every, recall_goal=0.5, agreement_goal=0.95) == (every[0], True)
    assert choose(every[:3], recall_goal=0.98, agreement_goal=0.95) == (every[0], False)
    level = [measured(1, 0.5, 0.3), measured(2, 0.5, 0.4), measured(3, 0.5, 0.4)]
    assert choose(level, recall_goal=1, agreement_goal=1) == (level[1], False)


def test_the_front_holds_what_no_other_one_beats_in_speed_and_agreement(tuned: TuneResult) -> None:
    every = (measured(2, 0.9, 1), measured(1, 0.8, 1), measured(3, 0.9, 1), measured(4, 0.95, 1), measured(1, 0.7, 1))
    result = replace(tuned, measured=every)
    assert result.front == (every[1], every[0], every[3])


@pytest.fixture
def own_folder(encoder: Encoder, tmp_path: Path) -> Path:
    return build_measured(tmp_path / "index", encoder, f"ivf_sq8 {LISTS}")


def test_writing_changes_the_root_manifest_only_and_the_index_is_then_searched_so(
    own_folder: Path, encoder: Encoder
) -> None:
    before = all_bytes(own_folder)
    settings = TuneSettings(
        index=str(own_folder),
        queries=QUESTIONS,
        write=True,
        recall_goal=0,
        agreement_goal=0,
        **NARROW,  # type: ignore[arg-type]
    )
    result = tune_index(settings, encoder)
    after = all_bytes(own_folder)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == {"manifest.json"}
    made_before, made_after = (json.loads(every["manifest.json"]) for every in (before, after))
    changed = {name for name in made_after["settings"] if made_after["settings"][name] != made_before["settings"][name]}
    assert changed == {"generation", "searching"}
    assert made_after["parts"] == made_before["parts"]
    assert result.written_generation == made_after["settings"]["generation"] == 1
    chosen = result.chosen.choice
    opened = PhraseIndex.open(own_folder)
    searcher: Any = opened.searcher
    assert (searcher.probed_lists, searcher.rerank_factor) == (chosen.probed_lists, chosen.rerank_factor)
    assert opened.candidates_per_side == chosen.candidates_per_side
    again = tune_index(replace(settings, write=False), encoder)
    assert again.present == chosen
    verify_index(own_folder)


def test_an_index_that_was_changed_after_it_was_measured_is_not_written(own_folder: Path, tuned: TuneResult) -> None:
    generation = Generation.read(own_folder)
    delete_documents(own_folder, DeleteSettings(ids=["d3"]))
    before = all_bytes(own_folder)
    with pytest.raises(ArtifactError, match="was changed"):
        write_searching(generation, tuned.chosen.choice)
    assert all_bytes(own_folder) == before


def test_a_report_holds_every_measure_and_no_place_of_this_machine(
    lists_folder: Path, encoder: Encoder, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    settings = TuneSettings(index=str(lists_folder), queries=QUESTIONS, out=str(out), **NARROW)  # type: ignore[arg-type]
    result = tune_index(settings, encoder)
    text = (out / "tune.json").read_text(encoding="utf-8")
    record = json.loads(text)
    assert len(record["measured"]) == len(result.measured) == 7
    first = record["measured"][0]
    assert first["recall"]["100"] == result.measured[0].recall[100]
    assert {"agreement", "p50_ms", "p95_ms", "probed_lists", "candidates_per_side", "reranked_rows"} <= first.keys()
    assert record["chosen"]["candidates_per_side"] == result.chosen.choice.candidates_per_side
    assert record["written_generation"] is None
    assert record["index"]["hot_bytes_per_vector"] > 32
    assert str(tmp_path) not in text
    assert [path.name for path in out.iterdir()] == ["tune.json"]


def test_another_encoder_and_numbers_that_do_not_fit_are_refused_before_anything_is_measured(
    lists_folder: Path, encoder: Encoder
) -> None:
    def refuse(stage: str, done: int, total: int | None) -> None:
        raise AssertionError(f"{stage} began")

    with pytest.raises(ArtifactError, match="another encoder"):
        tune_index(TuneSettings(index=str(lists_folder)), tiny_encoder("bert", seed=1), refuse)
    with pytest.raises(SettingError, match="probed_lists"):
        tune_index(TuneSettings(index=str(lists_folder), probed_lists=(LISTS + 1,)), encoder, refuse)
    with pytest.raises(ArtifactError):
        tune_index(TuneSettings(index=str(lists_folder / "nothing")), encoder, refuse)
    before = all_bytes(lists_folder)
    for inside in (".", "report", "segments/report"):
        with pytest.raises(SettingError, match="out must be"):
            tune_index(TuneSettings(index=str(lists_folder), out=str(lists_folder / inside)), encoder, refuse)
    assert all_bytes(lists_folder) == before


def triples(choices: list[SearchChoice]) -> list[tuple[int | None, int | None, int]]:
    return [(choice.probed_lists, choice.reranked_rows, choice.candidates_per_side) for choice in choices]


def test_every_number_of_lists_is_tried_with_every_multiple_of_the_candidates_widest_first() -> None:
    settings = TuneSettings(probed_lists=(2, 8), reranked_rows=(30, 60), candidates_per_side=(20, 30))
    choices = sorted(search_choices(settings, row_count=100, list_count=8), key=widest_first)
    expected = [(8, 60, 30), (8, 60, 20), (8, 30, 30), (2, 60, 30), (2, 60, 20), (2, 30, 30)]
    assert triples(choices) == expected
    assert {choice.rerank_factor for choice in choices} == {1, 2, 3}


def test_exact_search_varies_in_candidates_only() -> None:
    choices = search_choices(TuneSettings(), row_count=1000, list_count=None)
    assert triples(choices) == [(None, None, 256), (None, None, 512)]


def test_automatic_numbers_go_as_far_as_the_index_does() -> None:
    choices = search_choices(TuneSettings(), row_count=600, list_count=100)
    assert {choice.probed_lists for choice in choices} == {32, 64}
    assert {choice.candidates_per_side for choice in choices} == {256, 512}
    tiny = search_choices(TuneSettings(), row_count=128, list_count=4)
    assert {choice.probed_lists for choice in tiny} == {4}
    assert {choice.candidates_per_side for choice in tiny} == {128}


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"probed_lists": (9,)}, "probed_lists"),
        ({"candidates_per_side": (101,), "reranked_rows": (101,)}, "candidates_per_side"),
        ({"candidates_per_side": (40,), "reranked_rows": (50,)}, "reranked_rows"),
    ],
)
def test_numbers_that_the_index_cannot_serve_are_refused(values: dict[str, Any], name: str) -> None:
    with pytest.raises(SettingError, match=name):
        search_choices(TuneSettings(**values), row_count=100, list_count=8)


@pytest.mark.parametrize("name", ["probed_lists", "reranked_rows"])
def test_exact_search_takes_no_numbers_of_approximate_search(name: str) -> None:
    settings = TuneSettings(**{name: (8,)})  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=name):
        search_choices(settings, row_count=100, list_count=None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"queries": 5001},
        {"recall_goal": 1.1},
        {"probed_lists": (0,)},
        {"reranked_rows": (8, 8)},
        {"candidates_per_side": (4, -1)},
    ],
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        TuneSettings(**wrong)


def hits(scores: list[list[float]]) -> Hits:
    values = np.array(scores, dtype=np.float32)
    return Hits(rows=np.zeros(values.shape, dtype=np.int64), scores=values, found=np.isfinite(values))


def test_rows_count_as_found_if_they_score_as_well_as_the_worst_of_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "RECALL_AT", (1, 2, 4))
    worst = np.array([[9, 8, 6], [5, 4, 2]], dtype=np.float32)
    counts = np.array([[1, 2, 4], [1, 2, 3]])
    # the start query lacks its second and third row; the end query's index has three rows, and it finds two of them
    found = hits([[9, 7, 6, 5], [5, 4, -np.inf, -np.inf]])
    assert found_rows(found, worst, counts).tolist() == [2, 1 + 2, 3 + 2]
    # of equal scores it does not matter which row is found, and of rows beyond the rank none counts
    assert found_rows(hits([[9, 9, 9, 9], [5, 5, 5, 5]]), worst, counts).tolist() == [2, 4, 4 + 3]
    rounded = np.nextafter(np.float32(9), np.float32(0))
    assert found_rows(hits([[rounded, 1, 1, 1], [0, 0, 0, 0]]), worst, counts).tolist() == [1, 1, 1]

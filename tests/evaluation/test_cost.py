"""The parts of a question in benchmarks/bench_cost.py, by a clock that is moved by hand, and in a small index."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bench_cost import (
    ELSE,
    METHODS,
    PARTS,
    PartClock,
    TimedSearch,
    cost_of,
    draw_quality,
    main,
    measured,
    read_quality,
)
from npm.core.errors import SettingError
from npm.corpus.documents import CorpusSettings
from npm.evaluation.metrics import Interval
from npm.evaluation.results import write_results
from npm.indexing.build import build_index
from npm.indexing.phrase_index import PhraseIndex
from npm.indexing.settings import IndexBuildSettings
from npm.models.encoder import Encoder
from npm.retrieval.fill import PhraseFiller
from tests.evaluation.conftest import PASSAGES, QUESTIONS

TEXTS = [text for _, _, text, _, _ in QUESTIONS]


class Hand:
    """A clock that goes on by one second at each look."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1
        return self.seconds


def test_a_part_within_another_counts_once_and_all_parts_add_up() -> None:
    hand = Hand()
    clock = PartClock(hand)  # looks at 1
    with clock.part("reading"), clock.part("encoder"):  # 2 and 3
        pass  # 4
    # 5: one second each before, in reading, in the encoder, in reading again
    found = clock.take()  # 6
    assert found == {ELSE: 2.0, "reading": 2.0, "encoder": 1.0}
    assert sum(found.values()) == hand.seconds - 1
    assert clock.take() == {ELSE: 1.0}


def test_the_parts_of_a_question_add_up_to_the_whole_and_change_no_answer(index_folder: Path, encoder: Encoder) -> None:
    index = PhraseIndex.open(index_folder)
    for name, settings in METHODS.items():
        hand = Hand()
        clock = PartClock(hand)
        filler = PhraseFiller(replace(index, searcher=TimedSearch(index.searcher, clock)), encoder, settings)
        with measured(clock):
            assert filler.fill(TEXTS) == PhraseFiller(index, encoder, settings).fill(TEXTS)
            cost = cost_of(filler.fill, TEXTS, 2, clock, name, "cpu")
        assert set(cost.parts) <= {*PARTS, ELSE} and {"encoder", "search", "scoring", "answer text"} <= set(cost.parts)
        assert ("reading" in cost.parts) == (name == "npm-hybrid")
        # Of six texts, three pairs: the mean over texts of the milliseconds is the sum of the parts.
        assert cost.batch == 2 and cost.median <= cost.p95
        clock.take()
        filler.fill(TEXTS)
        assert set(clock.take()) == {ELSE, "search"}  # nothing else is timed outside


@pytest.fixture(scope="module")
def reranking(tmp_path_factory: pytest.TempPathFactory) -> tuple[PhraseIndex, Encoder]:
    """An index of an encoder that does all there is: block vectors, joint reading and reranking."""
    folder = tmp_path_factory.mktemp("cost")
    lines = [json.dumps({"id": name, "title": name.title(), "text": text}) for name, text in PASSAGES.items()]
    (folder / "c.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    encoder = Encoder.load(device="cpu", dtype="float32")
    build_index(folder / "index", IndexBuildSettings(corpus=CorpusSettings(files=[str(folder / "c.jsonl")])), encoder)
    return PhraseIndex.open(folder / "index"), encoder


@pytest.mark.parametrize(
    ("method", "parts"),
    [
        ("npm-dense", {"encoder"}),
        ("npm-bm25", {"encoder"}),
        ("npm-hybrid without reading", {"encoder", "reranking"}),
        ("npm-hybrid", {"encoder", "reading", "reranking"}),
    ],
)
def test_every_pass_of_the_encoder_is_in_a_named_part(
    reranking: tuple[PhraseIndex, Encoder], method: str, parts: set[str]
) -> None:
    index, encoder = reranking
    clock, passes = PartClock(Hand()), Counter[str]()
    filler = PhraseFiller(replace(index, searcher=TimedSearch(index.searcher, clock)), encoder, METHODS[method])
    hook = encoder.model.register_forward_hook(lambda *_: passes.update([clock.current]))
    try:
        filler.fill(TEXTS)
        assert set(passes) == {ELSE}  # nothing but search is timed outside
        count = passes.pop(ELSE)
        with measured(clock):
            filler.fill(TEXTS)
    finally:
        hook.remove()
    assert set(passes) == parts <= {*PARTS}
    assert passes.total() == count >= len(parts)


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ([], "nothing"),
        (["index=here"], "index=here"),
        (["index=here", "out=there", "query=3"], "query=3"),
        (["here", "out=there"], "here"),
        (["index=here", "out=there", "queries=few"], "queries=few"),
        (["index=here", "out=there", "batch=0"], "batch=0"),
        (["index=here", "out=there", "batch=2", "batch=3"], "batch, given twice"),
    ],
)
def test_a_wrong_command_line_is_one_message(
    given: list[str], got: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(given) == 2
    told = capsys.readouterr().err
    assert told.startswith("bench_cost: error: ") and got in told and "index=DIR out=FOLDER" in told
    assert not list(tmp_path.iterdir())


def test_an_index_that_is_not_there_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"index={tmp_path / 'nope'}", f"out={tmp_path / 'out'}"]) == 2
    assert capsys.readouterr().err.startswith("bench_cost: error: ")
    assert not list(tmp_path.iterdir())


def test_quality_stands_over_milliseconds(tmp_path: Path) -> None:
    right = {"count": 10, "micro": {"mean": 0.5, "low": 0.2, "high": 0.8}, "macro": None}
    metrics = {"tasks": {"trex": {"methods": {"npm-bm25": {"all": right}}}}}
    write_results(tmp_path / "out", record={}, predictions=[], metrics=metrics)
    clock = PartClock(Hand())
    costs = [cost_of(lambda _: None, TEXTS, batch, clock, name, "cpu") for name in METHODS for batch in (1, 2)]
    axes = draw_quality(costs, *read_quality({"results": f"{tmp_path / 'out'},trex"}))
    (line,) = axes.lines[:1]
    assert axes.get_legend_handles_labels()[1] == ["npm-bm25, cpu"]
    assert (line.get_xdata()[0], line.get_ydata()[0]) == (pytest.approx(1000), 0.5)


@pytest.mark.parametrize("results", ["foo", "absent,trex", "out,nq", "out,trex"])
def test_results_without_a_method_that_is_measured_are_refused_before_anything_is(
    results: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_results(Path("out"), record={}, predictions=[], metrics={"tasks": {"trex": {"methods": {"majority": {}}}}})
    assert main(["index=absent", "out=cost", f"results={results}"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("bench_cost: error: ") and "results=FOLDER,task" in told and not Path("cost").exists()


OF_MLM = {"mlm": {"all": {"count": 3, "micro": {"mean": 0.5, "low": 0.4, "high": 0.6}}}}


@pytest.mark.parametrize(
    "tasks",
    [
        {"trex": {"methods": OF_MLM}},  # which is not measured
        {"trex": {"methods": {"npm-bm25": {"accuracy": {"mean": 0.5}}}}},  # as of a closed task
        {"trex": {"methods": {"npm-bm25": {"all": {"count": 3}}}}},
        {"trex": ["methods"]},
        ["trex"],
    ],
)
def test_results_that_give_no_point_of_the_picture_are_refused_before_anything_is_measured(
    tasks: object, tmp_path: Path
) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps({"tasks": tasks}), "utf-8")
    with pytest.raises(SettingError, match=str(tmp_path)):
        read_quality({"results": f"{tmp_path},trex"})


def test_a_masked_language_model_counts_among_results_where_it_is_measured(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps({"tasks": {"trex": {"methods": OF_MLM}}}), "utf-8")
    assert read_quality({"results": f"{tmp_path},trex", "mlm": "m"}) == ("trex", {"mlm": (3, Interval(0.5, 0.4, 0.6))})


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        ("devices=cpu,gpu", "unknown device"),
        ("mlm=absent", "mlm: "),
        ("corpus=absent.jsonl", "absent.jsonl does not exist"),
        ("out=corpus.jsonl", "Not a directory: 'corpus.jsonl"),
    ],
)
def test_what_is_refused_is_refused_before_the_index_is_built_anew(
    wrong: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.jsonl").write_text("{}\n", "utf-8")
    given = {"index": "absent", "out": "cost", "corpus": "corpus.jsonl"} | dict([wrong.split("=")])
    assert main([f"{key}={value}" for key, value in given.items()]) == 2
    told = capsys.readouterr().err
    assert told.startswith("bench_cost: error: ") and part in told and not Path("cost").exists()


def test_a_rest_that_is_no_whole_batch_is_not_counted() -> None:
    asked: list[int] = []
    cost = cost_of(lambda own: asked.append(len(own)), TEXTS[:5], 2, PartClock(Hand()), "m", "cpu")
    assert asked == [2, 2, 2]  # the first is not counted
    assert sum(cost.parts.values()) == pytest.approx(cost.median)

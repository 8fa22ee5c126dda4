"""Shares of a corpus: nested, the whole bit for bit, counted anew, and means over draws worked by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from npm.core.errors import QueryError, SettingError
from npm.evaluation.analyses.corpus_shares import (
    check_parts,
    check_shares,
    document_places,
    mean_over_draws,
    part_of,
    share_notes,
    token_count,
)
from npm.evaluation.analyses.panels import Line, Panel, Point
from npm.evaluation.metrics import Interval
from npm.evaluation.settings import SampleSettings
from npm.evaluation.zero_shot.occurrences import name_counts
from npm.indexing.phrase_index import PhraseIndex, with_documents
from npm.models.encoder import Encoder
from npm.retrieval.fill import PhraseFiller
from npm.retrieval.settings import FillSettings, Retrieval
from tests.evaluation.conftest import PASSAGES, QUESTIONS
from tests.helpers.command_line import CommandLine, write_corpus

TEXTS = [text for _, _, text, _, _ in QUESTIONS]


@pytest.fixture(scope="module")
def index(index_folder: Path) -> PhraseIndex:
    return PhraseIndex.open(index_folder)


def test_shares_are_nested_and_as_large_as_they_say() -> None:
    ids = [f"document {number}" for number in range(2000)]
    for seed in (0, 1):
        places = document_places(ids, seed)
        assert ((places >= 0) & (places < 1)).all()
        assert [np.mean(places < share) for share in (0.1, 0.5)] == pytest.approx([0.1, 0.5], abs=0.04)
    assert (document_places(ids[5:], 0) == document_places(ids, 0)[5:]).all()  # by the id alone
    assert not np.allclose(document_places(ids, 0), document_places(ids, 1))


def test_what_a_smaller_share_holds_a_larger_one_holds_too(index: PhraseIndex) -> None:
    parts = [part_of(index, share, 3) for share in (0.3, 0.6, 0.9, 1.0)]
    live = [
        np.ones(len(PASSAGES), dtype=bool) if part.live_documents is None else part.live_documents for part in parts
    ]
    assert all((smaller <= larger).all() for smaller, larger in pairwise(live))
    tokens = [token_count(part) for part in parts]
    assert tokens == sorted(tokens) and tokens[0] < tokens[-1] == index.store.token_count


@pytest.mark.parametrize("retrieval", [Retrieval.dense, Retrieval.bm25, Retrieval.hybrid])
def test_share_one_equals_no_filter_bit_for_bit(index: PhraseIndex, encoder: Encoder, retrieval: Retrieval) -> None:
    settings = FillSettings(retrieval=retrieval)
    plain = PhraseFiller(index, encoder, settings).fill(TEXTS)
    everything = np.ones(index.store.document_count, dtype=bool)
    for part in (part_of(index, 1.0, 0), with_documents(index, everything)):
        assert PhraseFiller(part, encoder, settings).fill(TEXTS) == plain


def test_a_part_answers_and_counts_as_if_it_were_all(index: PhraseIndex, encoder: Encoder) -> None:
    chosen = np.array([name in ("iceland", "norway") for name in PASSAGES])
    part = with_documents(index, chosen)
    assert name_counts(part, encoder, ["Oslo", "Paris"]).tolist() == [1, 0]
    answers = PhraseFiller(part, encoder, FillSettings(retrieval=Retrieval.dense, k=1000, occurrences=9)).fill(TEXTS)
    found = {place.document for answer in answers for phrase in answer.phrases for place in phrase.occurrences}
    assert found == {"iceland", "norway"}
    assert part.lexicon is not None and index.lexicon is not None
    # "capital" is rarer among five blocks than among two that both hold it.
    scores, whole = part.lexicon.scores("capital <mask>"), index.lexicon.scores("capital <mask>")
    assert np.flatnonzero(scores).tolist() == np.flatnonzero(chosen[index.store.block_documents]).tolist()
    assert 0 < scores.max() < whole.max()
    # a part of a part, and of an index with deleted documents
    assert with_documents(part, ~chosen).live_documents is not None
    assert not np.asarray(with_documents(part, ~chosen).live_documents).any()


def test_an_example_counts_once_for_all_draws_of_a_share() -> None:
    hits = np.array([[True, False, False], [True, True, False]])  # two draws, three examples
    held = np.array([[True, False, False], [True, True, False]])
    sample = SampleSettings(resamples=200)
    assert mean_over_draws(hits, np.ones_like(hits), sample).mean == pytest.approx(3 / 6)
    assert mean_over_draws(hits, held, sample).mean == 1.0
    assert mean_over_draws(hits & False, held, sample) == Interval(0.0, 0.0, 0.0)


def test_the_smallest_corpus_that_is_almost_as_good_is_named() -> None:
    points = [Point(f"{x:g}", 9, Interval(mean, 0, 1), x) for x, mean in ((1, 0.70), (2, 0.795), (4, 0.80))]
    panel = Panel("agn", "x", "accuracy", (Line("npm", tuple(points)),))
    (note,) = share_notes([panel])
    assert note == "agn, npm: less than a point is lost from share 2 tokens on."
    assert share_notes([replace(panel, y="exact match")]) == []


def test_shares_that_are_none_are_refused(index: PhraseIndex) -> None:
    for shares in ([0.0], [1.5], [0.5, 0.5]):
        with pytest.raises(SettingError, match="corpus_shares must be"):
            check_shares(shares, reads_index=True)
    with pytest.raises(SettingError, match="index=DIR"):
        check_shares([0.5], reads_index=False)
    check_shares([], reads_index=False)
    with pytest.raises(SettingError, match="no document left"):
        part_of(index, 1e-9, 0)
    with pytest.raises(SettingError, match="no document left"):
        check_parts([1.0, 1e-9], 0, [(index, FillSettings())])


def test_a_share_that_filters_leave_nothing_of_is_refused_by_its_name(index: PhraseIndex) -> None:
    names = index.store.document_ids(range(index.store.document_count))
    drawn = np.array([document_places(names, seed) for seed in (0, 1, 2)])  # f64 [s, n]
    places = drawn.max(axis=0)  # f64 [n], of the last draw to hold it
    first, last = names[int(places.argmin())], names[int(places.argmax())]
    share = (places.min() + places.max()) / 2
    check_parts([share], 0, [(index, FillSettings(documents=[first]))])
    with pytest.raises(SettingError, match=f"corpus_shares: .*{share:g}"):
        check_parts([share, 1.0], 0, [(index, FillSettings(documents=[last]))])
    with pytest.raises(QueryError, match="no such document"):
        check_parts([share], 0, [(index, FillSettings(documents=["nowhere"]))])


def test_tasks_are_asked_of_shares_and_broken_down(npmlm: CommandLine, built_index: Path, tmp_path: Path) -> None:
    rows = [{"place": place, "answers": [city]} for place, city in (("Iceland", "Reykjavík"), ("France", "Paris"))]
    write_corpus(tmp_path / "questions.jsonl", rows)
    yaml = 'suite: open\ndata: {file: questions.jsonl}\ntemplate: "The capital of {place} is <mask>."\n'
    (tmp_path / "asked.yaml").write_text(yaml)
    ask = ["evaluate", f"task={tmp_path / 'asked.yaml'}", f"index={built_index}", "resamples=20"]
    plain = npmlm(*ask, "method=[npm-bm25,random]", f"out={tmp_path / 'plain'}")
    assert plain.status == 0, plain.err
    given = [*ask, "method=[npm-bm25,random]", f"out={tmp_path / 'out'}"]
    outcome = npmlm(*given, "corpus_shares=[0.5,1.0]", "breakdown=[answer_tokens,answer_count]")
    assert outcome.status == 0, outcome.err
    metrics, before = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("out", "plain"))
    # the whole index is reported as without shares, and its answers are the predictions
    assert metrics["tasks"] == before["tasks"]
    predictions = [(tmp_path / name / "predictions.jsonl").read_bytes() for name in ("out", "plain")]
    assert predictions[0] == predictions[1]
    shares = metrics["corpus_shares"]
    assert [(each["share"], each["seed"]) for each in shares] == [(0.5, 0), (0.5, 1), (0.5, 2), (1.0, 0)]
    whole = before["tasks"]["asked"]["methods"]["npm-bm25"]["all"]["micro"]["mean"]
    assert shares[-1]["methods"]["npm-bm25"] == pytest.approx(whole)
    assert all(each["tokens"] < shares[-1]["tokens"] for each in shares[:-1])
    assert len(metrics["panels"]) == 4
    assert "how often an answer stands in the corpus" in (tmp_path / "out" / "results.md").read_text()
    drawn = npmlm("plot", tmp_path / "out", f"out={tmp_path / 'x.png'}", "output=json")
    assert drawn.status == 0 and len(drawn.answers()[0]["panels"]) == 4, drawn.err
    npmlm("plot", tmp_path / "plain", "picture=panels", f"out={tmp_path / 'y.png'}").refused("no panels")
    npmlm(*given, "corpus_shares=[2]").refused("corpus_shares must be")

"""`npmlm evaluate` as a user meets it: questions, sentence pairs, masked tokens and denoisers."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from npm.evaluation.tasks import DEMO
from npm.models.denoiser import fresh_denoiser
from npm.models.settings import FreshSettings
from tests.helpers.command_line import CommandLine, all_bytes, write_corpus
from tests.helpers.kills import fail_writes
from tests.helpers.language_models import random_language_model
from tests.helpers.tiny_models import SENTENCES

QUESTIONS = [
    ("q1", "capital", "The capital of Iceland is <mask>.", ["Reykjavík", "Reykjavik"], "test"),
    ("q2", "capital", "The capital of France is <mask>.", ["Paris"], "test"),
    ("q3", "book", "Don Quixote was written by <mask>.", ["Miguel de Cervantes", "Cervantes"], "dev"),
]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    keys = ("id", "kind", "text", "answers", "split")
    entries = [dict(zip(keys, question, strict=True)) for question in QUESTIONS]
    (tmp_path / "questions.json").write_text(json.dumps({"questions": entries}), encoding="utf-8")
    return Path(shutil.copy(DEMO / "demo.yaml", tmp_path / "questions, own.yaml"))


@pytest.fixture
def evaluate(questions: Path, built_index: Path, tmp_path: Path) -> list[str]:
    return ["evaluate", f"task={questions}", f"index={built_index}", f"out={tmp_path / 'out'}"]


def test_an_evaluation_prints_and_writes_results(npmlm: CommandLine, evaluate: list[str], tmp_path: Path) -> None:
    outcome = npmlm(*evaluate, "show=2").done()
    assert "hit@5" in outcome.out
    assert "The capital of France is <mask>." in outcome.out
    lines = (tmp_path / "out" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["gold"][0] for line in lines] == ["Reykjavík", "Paris"]
    assert json.loads((tmp_path / "out" / "metrics.json").read_bytes())["tasks"]["questions, own"]["count"] == 2
    before = all_bytes(tmp_path / "out")
    assert npmlm(*evaluate).status == 0
    assert all_bytes(tmp_path / "out") == before
    assert not any(str(tmp_path).encode() in data for data in before.values())


def test_settings_of_filling_and_of_the_split(npmlm: CommandLine, evaluate: list[str], tmp_path: Path) -> None:
    assert npmlm(*evaluate, "split=dev", "fill.k=2", "fill.retrieval=bm25", "scoring=reference", "limit=1").status == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_bytes())
    filling = metrics["tasks"]["questions, own"]["methods"]["npm"]["facts"]["filling"]
    assert filling["retrieval"] == "bm25" and filling["scoring"]["reference"]
    assert (metrics["settings"]["fill"]["k"], metrics["tasks"]["questions, own"]["count"]) == (2, 1)


def test_a_full_disk_leaves_the_directory_unchanged(npmlm: CommandLine, evaluate: list[str], tmp_path: Path) -> None:
    before = all_bytes(tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        fail_writes(patched, lambda number, _: number >= 2)
        npmlm(*evaluate).refused("No space left")
    assert all_bytes(tmp_path) == before
    assert npmlm(*evaluate).status == 0


def test_other_results_are_replaced_on_demand_only(npmlm: CommandLine, evaluate: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert npmlm(*evaluate).status == 0
    assert npmlm(*evaluate[:-1], f"out={out / 'dev'}", "split=dev").status == 0
    (out / "notes.txt").write_text("mine")
    before = all_bytes(out)
    assert npmlm(*evaluate).status == 0
    assert all_bytes(out) == before
    message = npmlm(*evaluate, "seed=1").refused("results of something else, or of other settings", "overwrite=true")
    assert "settings.seed=1" in message and "settings.seed=0" in message
    assert "questions: " not in message, "refused before the first question"
    assert all_bytes(out) == before
    assert npmlm(*evaluate, "seed=1", "overwrite=true").status == 0
    after = all_bytes(out)
    changed = {"manifest.json", "metrics.json"}
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == changed


def test_a_link_to_results(npmlm: CommandLine, evaluate: list[str], questions: Path, tmp_path: Path) -> None:
    assert npmlm(*evaluate).status == 0
    (tmp_path / "link").symlink_to("out")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    (tmp_path / "wrong").symlink_to("other")
    before = all_bytes(tmp_path)
    assert npmlm(*evaluate[:-1], f"out={tmp_path / 'link'}").status == 0
    assert all_bytes(tmp_path) == before and (tmp_path / "link").is_symlink()
    for place, told in (
        (tmp_path / "wrong", "a link to something else"),
        (tmp_path / "other", "not a folder for results"),
        (questions / "out", os.strerror(errno.ENOTDIR)),
    ):
        message = npmlm(*evaluate[:-1], f"out={place}").refused(told)
        assert "questions: " not in message, "refused before the work"
    assert all_bytes(tmp_path) == before


PAIRS = [
    (SENTENCES[0], "Reykjavík is in Iceland.", 4.6),
    (SENTENCES[1], "Oslo lies in Norway.", 1.2),
    ("A city in Poland.", "Kraków is a city in Poland.", 3.5),
    ("Hydrogen is light.", "The Rhine rises in Switzerland.", 0.0),
    ("Don Quixote appeared.", "Don Quixote appeared in Madrid.", 4.2),
]


@pytest.fixture
def sentence_pairs(tmp_path: Path) -> Path:
    """A folder with the test part of STS-B, and a broken dev part."""
    folder = tmp_path / "sentence pairs, own"
    folder.mkdir()
    pairs = [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in PAIRS]
    write_corpus(folder / "stsb-test.jsonl", pairs)
    write_corpus(folder / "stsb-dev.jsonl", [{"sentence1": "a", "sentence2": "b", "label": 1}])
    return folder


@pytest.fixture
def sts(sentence_pairs: Path, tiny_encoder_folder: Path, tmp_path: Path) -> list[str]:
    settings = [
        f"encoder={tiny_encoder_folder}",
        "sts.pooler=avg",
        f"data_dir={sentence_pairs}",
        f"out={tmp_path / 'out'}",
    ]
    return ["evaluate", "task=sts", "resamples=20", *settings]


@pytest.fixture(scope="module")
def language_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language-model") / "tiny"
    random_language_model("bert", folder)
    return folder


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    """Two documents that are long enough to be articles."""
    documents = [{"id": str(number), "text": " ".join(SENTENCES * 12)} for number in range(2)]
    return write_corpus(tmp_path / "held-out.jsonl", documents)


@pytest.fixture
def masked_tokens(language_model_folder: Path, held_out: Path, tmp_path: Path) -> list[str]:
    settings = [f"encoder={language_model_folder}", f"corpus.files={held_out}", f"out={tmp_path / 'out'}", "limit=2"]
    return ["evaluate", "task=masked_tokens", *settings]


def test_sentence_pairs_are_scored_shown_and_written(npmlm: CommandLine, sts: list[str], tmp_path: Path) -> None:
    outcome = npmlm(*sts).done()
    assert "STS-B test" in outcome.out
    assert "left out" in outcome.out and "STS12" in outcome.out
    lines = (tmp_path / "out" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["gold"] for line in lines] == [score for _, _, score in PAIRS]
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_bytes())
    assert metrics["encoders"][0]["facts"]["pooler"] == "avg"
    before = all_bytes(tmp_path / "out")
    assert npmlm(*sts).status == 0
    assert all_bytes(tmp_path / "out") == before
    assert not any(str(tmp_path).encode() in data for data in before.values())


def test_before_and_after(npmlm: CommandLine, sts: list[str], tiny_encoder_folder: Path, tmp_path: Path) -> None:
    outcome = npmlm(*sts, f"sts.before.encoder={tiny_encoder_folder}", "sts.before.pooler=cls_before_pooler").done()
    assert "after − before" in outcome.out
    assert "before: tiny (cls_before_pooler)" in outcome.out and "after: tiny (avg)" in outcome.out
    assert len(json.loads((tmp_path / "out" / "metrics.json").read_bytes())["differences"]) == 1


def test_masked_tokens_are_predicted(npmlm: CommandLine, masked_tokens: list[str], tmp_path: Path) -> None:
    outcome = npmlm(*masked_tokens, "held_out.masked_fraction=0.3").done()
    assert "30 % of the tokens masked" in outcome.out
    assert "perplexities compare encoders of the same tokenizer only" in outcome.out
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_bytes())
    assert (metrics["article_count"], metrics["settings"]["masked_fraction"]) == (2, 0.3)
    assert not any(str(tmp_path).encode() in data for data in all_bytes(tmp_path / "out").values())


def test_denoisers_are_measured(npmlm: CommandLine, held_out: Path, tiny_encoder_folder: Path, tmp_path: Path) -> None:
    fresh = FreshSettings(layers=1, dimensions=16)
    made = fresh_denoiser(str(tiny_encoder_folder), fresh, mode_tokens=("[S]",), dropout=0.0, device="cpu")
    made.save(tmp_path / "denoiser")
    settings = [f"encoder={tmp_path / 'denoiser'}", f"corpus.files={held_out}", f"out={tmp_path / 'out'}", "limit=1"]
    outcome = npmlm("evaluate", "task=denoising", *settings).done()
    assert "nats a target token" in outcome.out
    assert json.loads((tmp_path / "out" / "metrics.json").read_bytes())["article_count"] == 1

"""The tasks `sts`, `masked_tokens` and `denoising` of `npmlm evaluate` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npm.models.denoiser import fresh_denoiser
from npm.models.settings import FreshSettings
from tests.helpers.command_line import CommandLine, all_bytes
from tests.helpers.language_models import random_language_model
from tests.helpers.tiny_models import SENTENCES

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
    lines = [json.dumps({"sentence1": a, "sentence2": b, "score": score}) for a, b, score in PAIRS]
    (folder / "stsb-test.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "stsb-dev.jsonl").write_text('{"sentence1": "a", "sentence2": "b", "label": 1}\n', encoding="utf-8")
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
    file = tmp_path / "held-out.jsonl"
    lines = [json.dumps({"id": str(number), "text": " ".join(SENTENCES * 12)}) for number in range(2)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def masked_tokens(language_model_folder: Path, held_out: Path, tmp_path: Path) -> list[str]:
    settings = [f"encoder={language_model_folder}", f"corpus.files={held_out}", f"out={tmp_path / 'out'}", "limit=2"]
    return ["evaluate", "task=masked_tokens", *settings]


def test_sentence_pairs_are_scored_shown_and_written(npmlm: CommandLine, sts: list[str], tmp_path: Path) -> None:
    outcome = npmlm(*sts)
    assert outcome.status == 0, outcome.err
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


def test_an_encoder_is_compared_with_what_it_was_before(
    npmlm: CommandLine, sts: list[str], tiny_encoder_folder: Path, tmp_path: Path
) -> None:
    outcome = npmlm(*sts, f"sts.before.encoder={tiny_encoder_folder}", "sts.before.pooler=cls_before_pooler")
    assert outcome.status == 0, outcome.err
    assert "after − before" in outcome.out
    assert "before: tiny (cls_before_pooler)" in outcome.out and "after: tiny (avg)" in outcome.out
    assert len(json.loads((tmp_path / "out" / "metrics.json").read_bytes())["differences"]) == 1


def test_masked_tokens_are_predicted_shown_and_written(
    npmlm: CommandLine, masked_tokens: list[str], tmp_path: Path
) -> None:
    outcome = npmlm(*masked_tokens, "held_out.masked_fraction=0.3")
    assert outcome.status == 0, outcome.err
    assert "30 % of the tokens masked" in outcome.out
    assert "perplexities compare encoders of the same tokenizer only" in outcome.out
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_bytes())
    assert (metrics["article_count"], metrics["settings"]["masked_fraction"]) == (2, 0.3)
    assert not any(str(tmp_path).encode() in data for data in all_bytes(tmp_path / "out").values())


def test_denoisers_are_measured_shown_and_written(
    npmlm: CommandLine, held_out: Path, tiny_encoder_folder: Path, tmp_path: Path
) -> None:
    fresh = FreshSettings(layers=1, dimensions=16)
    made = fresh_denoiser(str(tiny_encoder_folder), fresh, mode_tokens=("[S]",), dropout=0.0, device="cpu")
    made.save(tmp_path / "denoiser")
    settings = [f"encoder={tmp_path / 'denoiser'}", f"corpus.files={held_out}", f"out={tmp_path / 'out'}", "limit=1"]
    outcome = npmlm("evaluate", "task=denoising", *settings)
    assert outcome.status == 0, outcome.err
    assert "nats a target token" in outcome.out
    assert json.loads((tmp_path / "out" / "metrics.json").read_bytes())["article_count"] == 1

"""Task `denoising` against plain loops over articles, denoisers, mode tokens and targets, on a tiny fresh T5."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from npm.core.errors import EncoderError
from npm.core.types import Document, Sequences
from npm.evaluation.held_out import Article, HeldOutArticles, evaluate_denoising, held_out_articles
from npm.evaluation.results import Result
from npm.evaluation.settings import HeldOutSettings, SampleSettings
from npm.masking.denoising import UL2
from npm.masking.masker import mask_rng
from npm.masking.units import TokenUnits
from npm.models.denoiser import Denoiser, fresh_denoiser
from npm.models.settings import FreshSettings
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

SETTINGS = HeldOutSettings(least_tokens=60, blocks_per_article=2, max_block_tokens=24)
SAMPLE = SampleSettings(resamples=50)
MODES = ("[R]", "[S]", "[X]")


def article(number: int, sentences: int) -> Document:
    order = np.random.default_rng(number).integers(0, len(SENTENCES), size=sentences)
    return Document(id=f"d{number}", title="", text=" ".join(SENTENCES[place] for place in order))


DOCUMENTS = [article(0, 8), article(1, 1), article(2, 6)]
"""The second is too short."""


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "bert"
    tiny_encoder("bert").save(folder)
    return folder


@pytest.fixture(scope="module")
def denoiser(encoder_folder: Path) -> Denoiser:
    made = fresh_denoiser(
        str(encoder_folder), FreshSettings(layers=1, dimensions=16), mode_tokens=MODES, dropout=0.5, device="cpu"
    )
    made.model.train()
    return made


@pytest.fixture(scope="module")
def articles(denoiser: Denoiser) -> list[Article]:
    return held_out_articles(DOCUMENTS, denoiser, SETTINGS, limit=2, task="denoising")


@pytest.fixture(scope="module")
def result(denoiser: Denoiser, articles: list[Article]) -> Result:
    return evaluate_denoising(denoiser, HeldOutArticles(articles, SETTINGS, SAMPLE))


def plain_cells(denoiser: Denoiser, articles: list[Article]) -> dict[tuple[str, str], tuple[int, float, int]]:
    """Targets, NLL and right predictions of each cell: one text and one target at a time."""
    vocabulary = denoiser.tokenizer.get_vocab()
    cells: dict[tuple[str, str], tuple[int, float, int]] = {}
    for place, corruption in enumerate(UL2):
        for number, article in enumerate(articles):
            rng, sequences = mask_rng(SAMPLE.seed, place, number, 2), article.sequences
            rng.choice(1, size=len(sequences), p=[1.0])  # which denoiser: there is one
            for begin, end in zip(sequences.offsets[:-1], sequences.offsets[1:], strict=True):
                text = sequences.token_ids[begin:end].tolist()
                alone = Sequences(np.array(text, np.int32), sequences.flags[begin:end], np.array([0, len(text)]))
                candidates = TokenUnits().candidates(alone)
                spans = corruption.sampler.draw(candidates, alone, corruption.budget_tokens(len(text)), rng)
                inputs, targets, position = [], [], 0
                starts = zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True)
                for order, (start, length) in enumerate(starts):
                    inputs += [*text[position:start], vocabulary[f"<extra_id_{order}>"]]
                    targets += [vocabulary[f"<extra_id_{order}>"], *text[start : start + length]]
                    position = start + length
                inputs, targets = [*inputs, *text[position:], denoiser.end_id], [*targets, denoiser.end_id]
                for mode in ("none", *MODES):
                    shown = inputs if mode == "none" else [vocabulary[mode], *inputs]
                    before = cells.get((corruption.name, mode), (0, 0.0, 0))
                    nll, right = plain_nll(denoiser, shown, targets)
                    cells[corruption.name, mode] = (before[0] + len(targets), before[1] + nll, before[2] + right)
    return cells


@torch.no_grad()
def plain_nll(denoiser: Denoiser, inputs: list[int], targets: list[int]) -> tuple[float, int]:
    denoiser.model.eval()
    decoded = torch.tensor([[denoiser.pad_id, *targets[:-1]]])
    logits = denoiser.model(input_ids=torch.tensor([inputs]), decoder_input_ids=decoded).logits[0].double()
    denoiser.model.train()
    nll = sum(float(logits[place].logsumexp(0) - logits[place, token]) for place, token in enumerate(targets))
    return nll, sum(int(logits[place].argmax()) == token for place, token in enumerate(targets))


def test_every_cell_equals_a_plain_loop(denoiser: Denoiser, articles: list[Article], result: Result) -> None:
    expected = plain_cells(denoiser, articles)
    cells = result.means["cells"]
    assert [(cell["denoiser"], cell["mode"]) for cell in cells] == [
        (corruption.name, mode) for corruption in UL2 for mode in ("none", *MODES)
    ]
    for cell in cells:
        targets, nll, right = expected[cell["denoiser"], cell["mode"]]
        assert cell["targets"] == targets
        assert cell["nll"]["mean"] == pytest.approx(nll / targets, rel=1e-5)
        assert cell["top1"] == pytest.approx(right / targets)
        assert cell["nll"]["low"] <= cell["nll"]["mean"] <= cell["nll"]["high"]
        assert cell["own_mode"] == (cell["mode"] == f"[{cell['denoiser'][0]}]")
    assert len({cell["nll"]["mean"] for cell in cells if cell["denoiser"] == "S-0.25"}) == 4
    assert denoiser.model.training


def test_results_are_written_and_shown(result: Result, tmp_path: Path) -> None:
    result.write(tmp_path / "out")
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    assert len(metrics["cells"]) == 28
    lines = (tmp_path / "out" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 * 28
    assert {json.loads(line)["document"] for line in lines} == {"d0", "d2"}
    table = result.tables[0]
    assert table.header == ["denoiser", "targets", "none", "[R]", "[S]", "[X]"]
    assert [row[0] for row in table.rows] == [each.name for each in UL2]
    assert [[cell.endswith("*") for cell in row[2:]].index(True) for row in result.tables[0].rows] == [
        1,
        1,
        3,
        3,
        3,
        3,
        2,
    ]


def test_too_few_sentinels_are_refused(denoiser: Denoiser, articles: list[Article]) -> None:
    long = HeldOutSettings(least_tokens=60, blocks_per_article=2, max_block_tokens=2048)
    with pytest.raises(EncoderError, match="too few sentinels"):
        evaluate_denoising(denoiser, HeldOutArticles(articles, long))

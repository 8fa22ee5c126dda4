"""Task `denoising` against plain loops over articles, denoisers, mode tokens and targets, on a tiny fresh T5."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from npm.core.errors import ArtifactError, CorpusError, EncoderError, SettingError
from npm.core.types import Document, Sequences
from npm.corpus.documents import CorpusSettings
from npm.corpus.store import BlockStore
from npm.evaluation.held_out.articles import build_held_out_store, held_out_store
from npm.evaluation.held_out.denoising import DenoisingResult, denoising_rows, evaluate_denoising
from npm.evaluation.settings import DenoisingTaskSettings, SampleSettings
from npm.masking.denoising import ul2_denoisers
from npm.masking.masker import mask_rng
from npm.masking.units import TokenUnits
from npm.models.denoiser import Denoiser, fresh_denoiser
from npm.models.settings import FreshSettings
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

SETTINGS = DenoisingTaskSettings(articles=2, least_tokens=60, blocks_per_article=2, max_block_tokens=24)
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


def held_out(folder: Path, denoiser: Denoiser) -> BlockStore:
    return build_held_out_store(folder, DOCUMENTS, denoiser, SETTINGS)


@pytest.fixture(scope="module")
def store(denoiser: Denoiser, tmp_path_factory: pytest.TempPathFactory) -> BlockStore:
    return held_out(tmp_path_factory.mktemp("held-out") / "blocks", denoiser)


@pytest.fixture(scope="module")
def result(denoiser: Denoiser, store: BlockStore) -> DenoisingResult:
    return evaluate_denoising(denoiser, store, SETTINGS, SAMPLE)


def plain_cells(denoiser: Denoiser, store: BlockStore) -> dict[tuple[str, str], tuple[int, float, int]]:
    """Targets, NLL and right predictions of each cell: one text and one target at a time."""
    vocabulary = denoiser.tokenizer.get_vocab()
    first_blocks = [
        int(np.flatnonzero(store.block_documents == number)[0]) for number in np.unique(store.block_documents)
    ]
    cells: dict[tuple[str, str], tuple[int, float, int]] = {}
    for place, corruption in enumerate(ul2_denoisers()):
        for number, first in enumerate(first_blocks):
            rng = mask_rng(SAMPLE.seed, place, number, 2)
            sequences = store.sequences(range(first, first + SETTINGS.blocks_per_article))
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


def test_every_cell_equals_a_plain_loop(denoiser: Denoiser, store: BlockStore, result: DenoisingResult) -> None:
    expected = plain_cells(denoiser, store)
    assert [(cell.denoiser, cell.mode) for cell in result.cells] == [
        (corruption.name, mode) for corruption in ul2_denoisers() for mode in ("none", *MODES)
    ]
    for cell in result.cells:
        targets, nll, right = expected[cell.denoiser, cell.mode]
        assert cell.targets == targets
        assert cell.nll.mean == pytest.approx(nll / targets, rel=1e-5)
        assert cell.top1 == pytest.approx(right / targets)
        assert cell.nll.low <= cell.nll.mean <= cell.nll.high
        assert cell.own_mode == (cell.mode == f"[{cell.denoiser[0]}]")


def test_mode_tokens_matter_and_the_model_is_left_as_it_was(denoiser: Denoiser, result: DenoisingResult) -> None:
    by_mode = {cell.mode: cell.nll.mean for cell in result.cells if cell.denoiser == "S-0.25"}
    assert len(set(by_mode.values())) == 4
    assert denoiser.model.training


def test_the_same_seed_gives_the_same_numbers_and_another_one_others(
    denoiser: Denoiser, store: BlockStore, result: DenoisingResult
) -> None:
    assert evaluate_denoising(denoiser, store, SETTINGS, SAMPLE).metrics() == result.metrics()
    other = SampleSettings(resamples=50, seed=1)
    assert evaluate_denoising(denoiser, store, SETTINGS, other).cells != result.cells


def test_results_are_written_and_shown(result: DenoisingResult, tmp_path: Path) -> None:
    result.write(tmp_path / "out")
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    assert len(metrics["cells"]) == 28
    assert metrics["model"]["fingerprint"] == result.record["model"]["fingerprint"]
    lines = (tmp_path / "out" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 * 28
    assert {json.loads(line)["document"] for line in lines} == {"d0", "d2"}
    header, rows = denoising_rows(result)
    assert header == ["denoiser", "targets", "none", "[R]", "[S]", "[X]"]
    assert [row[0] for row in rows] == [each.name for each in ul2_denoisers()]
    assert [[cell.endswith("*") for cell in row[2:]].index(True) for row in rows] == [1, 1, 3, 3, 3, 3, 2]


def test_a_model_without_mode_tokens_has_one_column(encoder_folder: Path, tmp_path: Path) -> None:
    plain = fresh_denoiser(str(encoder_folder), FreshSettings(layers=1, dimensions=16), device="cpu")
    result = evaluate_denoising(plain, held_out(tmp_path / "blocks", plain), SETTINGS)
    assert denoising_rows(result)[0] == ["denoiser", "targets", "none"]


def test_documents_of_a_corpus_are_cut_and_measured(
    denoiser: Denoiser, result: DenoisingResult, tmp_path: Path
) -> None:
    lines = [json.dumps({"id": each.id, "title": each.title, "text": each.text}) for each in DOCUMENTS]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    corpus = CorpusSettings(files=[str(tmp_path / "corpus.jsonl")])
    seen: list[tuple[str, float, float | None]] = []
    with held_out_store(denoiser, corpus, SETTINGS) as blocks:
        found = evaluate_denoising(denoiser, blocks, SETTINGS, SAMPLE, progress=lambda *at: seen.append(at))
    assert found.cells == result.cells
    assert seen == [("articles", 1, 2), ("articles", 2, 2)]


def test_blocks_of_another_tokenizer_are_refused(encoder_folder: Path, store: BlockStore) -> None:
    other = fresh_denoiser(str(encoder_folder), FreshSettings(layers=1, dimensions=16), device="cpu")
    with pytest.raises(ArtifactError, match="another tokenizer"):
        evaluate_denoising(other, store, SETTINGS)


def test_too_few_articles_are_refused(denoiser: Denoiser, store: BlockStore) -> None:
    many = DenoisingTaskSettings(articles=3, least_tokens=60, blocks_per_article=2, max_block_tokens=24)
    with pytest.raises(CorpusError, match="too few long articles"):
        evaluate_denoising(denoiser, store, many)


def test_too_few_sentinels_are_refused(denoiser: Denoiser, store: BlockStore) -> None:
    long = DenoisingTaskSettings(articles=2, least_tokens=60, blocks_per_article=2, max_block_tokens=2048)
    with pytest.raises(EncoderError, match="too few sentinels"):
        evaluate_denoising(denoiser, store, long)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(SettingError):
        SampleSettings(resamples=0)
    with pytest.raises(SettingError):
        DenoisingTaskSettings(articles=0)

"""Training of a reader: its batches, its loss against a plain one, two ranks, and a run on a tiny encoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from npm.core.errors import SettingError
from npm.core.types import PassageBatch
from npm.corpus.questions import SupervisionSettings, question_table
from npm.models.encoder import Encoder
from npm.objectives.encoded import EncodedPassages, Passes
from npm.objectives.reader import ReaderLoss
from npm.objectives.settings import ObjectiveSettings
from npm.reading.mask_reader import MaskReader
from npm.reading.reader import Passage
from npm.training.questions import QuestionSource, passage_batch
from npm.training.run import run_training
from npm.training.schedule import ScheduleSettings
from npm.training.settings import FrozenSettings, StartSettings, TrainingEvaluationSettings
from tests.corpus.test_questions import ROW, written
from tests.helpers.tiny_models import FAMILIES, tiny_encoder
from tests.training.question_ranks import FRAME, toy_table
from tests.training.test_questions import ROWS, metrics_of, question_settings

READING = ObjectiveSettings(nonparametric_weight=0.0, reader_weight=1.0)


@pytest.fixture(params=FAMILIES)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    made = tiny_encoder(request.param)
    made.title_tokens = 4
    return made


def toy_batch(encoder: Encoder, folder: Path) -> PassageBatch:
    """Three questions with their passages, and one with a passage that has no answer."""
    table = question_table([written(folder, *ROWS)], encoder.tokenizer, SupervisionSettings(), title_tokens=4)
    questions = [table[row] for row in range(4)]
    reads = [(each, each.title, each.block) for each in questions[1:]]
    return passage_batch([*reads, (questions[0], *questions[0].without_answer[-1])], encoder)


def test_a_question_is_shown_with_its_passage_as_the_reader_reads_them(encoder: Encoder, tmp_path: Path) -> None:
    table = question_table([written(tmp_path, ROW)], encoder.tokenizer, SupervisionSettings(), title_tokens=4)
    batch = passage_batch([(table[0], table[0].title, table[0].block)], encoder)
    with torch.no_grad():
        states = encoder.packed_vectors(batch.input_ids, batch.lengths)  # f32 [N, d]
    logits = (states[batch.mask_slots[0]] @ states[batch.is_key].T * encoder.similarity_scale).double()  # [2, 1 + T]
    ((scores,),) = MaskReader(encoder).read([(ROW["question"], Passage(ROW["context"], ROW["title"]))])
    np.testing.assert_allclose(scores.scores, logits.log_softmax(1)[:, 1:], atol=1e-4)
    for side, edges in enumerate(batch.edges):
        places = edges[batch.is_key].nonzero()[:, 0].numpy() - 1  # in the passage
        found = {ROW["context"][first:stop].strip() for first, stop in scores.bounds[places].tolist()}
        whole = {answer.split()[-side] if side else answer.split()[0] for answer in ROW["answers"]}
        assert found and all(any(piece in word for word in whole) for piece in found)


def test_the_loss_is_that_of_each_row_alone_without_packing(encoder: Encoder, tmp_path: Path) -> None:
    batch = toy_batch(encoder, tmp_path)
    terms = ReaderLoss(encoder.similarity_scale)(EncodedPassages(Passes(encoder.model), batch))
    first, expected, right = 0, torch.zeros(2), []
    for length, slots in zip(batch.lengths, batch.mask_slots, strict=True):
        own = slice(first, first + length)
        ids = batch.input_ids[own][None]
        states = encoder.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]  # [L, d]
        keys = batch.is_key[own]
        hits = []
        for side in (0, 1):
            logits = states[slots[side] - first] @ states.T * encoder.similarity_scale  # f32 [L]
            positive = batch.edges[side, own]
            assert bool(positive.any()) and not (positive & ~keys).any()
            expected[side] += logits[keys].logsumexp(0) - logits[positive].logsumexp(0)
            hits.append(bool(positive[logits.masked_fill(~keys, -torch.inf).argmax()]))
        right.append((bool(batch.edges[0, first]), all(hits)))
        first += length
    found = torch.stack([terms["read_start"].sum, terms["read_end"].sum])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert [absent for absent, _ in right].count(True) == 1
    assert (terms["answer_top1"].count, terms["absent_top1"].count) == (3, 1)
    assert int(terms["answer_top1"].sum) == sum(hit for absent, hit in right if not absent)
    assert int(terms["absent_top1"].sum) == sum(hit for absent, hit in right if absent)


@pytest.mark.parametrize("fraction", [0.0, 0.25, 1.0])
def test_that_fraction_of_the_questions_is_read_with_a_passage_without_an_answer(fraction: float) -> None:
    settings = SupervisionSettings(questions_per_device_batch=12, negative_fraction=fraction)
    source = QuestionSource(toy_table(), FRAME, settings, seed=0, view="passages")
    absent = []
    for micro_step in range(40):
        batch = source.views(micro_step)["passages"]
        assert isinstance(batch, PassageBatch)
        firsts = np.cumsum([0, *batch.lengths[:-1]])
        assert list(batch.lengths) == sorted(batch.lengths)
        absent.append(float(batch.edges[0, firsts].float().mean()))
    assert np.mean(absent) == pytest.approx(fraction, abs=0.05 * (0 < fraction < 1))


def test_ranks_share_a_batch(tmp_path: Path) -> None:
    settings = SupervisionSettings(questions_per_device_batch=6)
    whole = QuestionSource(
        toy_table(), FRAME, replace(settings, questions_per_device_batch=12), seed=0, view="passages"
    )
    ranks = [
        QuestionSource(toy_table(), FRAME, settings, seed=0, rank=rank, world_size=2, view="passages")
        for rank in (0, 1)
    ]

    def rows(sources: list[QuestionSource]) -> list[list[int]]:
        found = []
        for source in sources:
            batch = source.views(3)["passages"]
            assert isinstance(batch, PassageBatch)
            found += [each.tolist() for each in batch.input_ids.split(list(batch.lengths))]
        return sorted(found)

    assert rows([whole]) == rows(ranks)


def test_a_wrong_passage_shares_the_rarest_words_of_the_question_and_has_no_answer(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    plain = {"question": "Which river flows through Paris?", "answers": ["Seine"], "title": ""}
    contexts = ["Paris lies on the Seine.", "The river Rhine flows through the Netherlands.", "Oslo is a city."]
    contexts += ["The Seine is a river that flows through Paris."]
    rows = [plain | {"context": text, "answers": [text.split()[-1].strip(".")]} for text in contexts]
    rows[0]["answers"] = ["Seine"]
    table = question_table([written(tmp_path, *rows)], encoder.tokenizer, SupervisionSettings(), title_tokens=0)
    source = QuestionSource(table, encoder, SupervisionSettings(questions_per_device_batch=2), seed=0, view="passages")
    _, passage = source.wrong_passage(0, table[0], 0.5)
    assert passage.tolist() == table[1].block.tolist()


def test_a_run_learns_to_read_and_leaves_the_word_embeddings_alone(tmp_path: Path) -> None:
    settings = question_settings(
        tmp_path,
        objective=READING,
        start=StartSettings(frozen=FrozenSettings(word_embeddings=True)),
        schedule=ScheduleSettings(max_steps=40, learning_rate=3e-3),
        evaluation=TrainingEvaluationSettings(files=[written(tmp_path, *ROWS, name="held.jsonl")], every_steps=40),
        supervision=SupervisionSettings(
            questions_per_device_batch=3, max_block_tokens=40, max_question_tokens=30, negative_fraction=0.25
        ),
    )
    reader = Encoder.load(str(run_training(tmp_path / "run", settings)))
    assert (reader.query_masks, reader.reads_jointly) == (2, True)
    lines = metrics_of(tmp_path / "run")
    losses = [line["held_out_loss"] for line in lines if "held_out_loss" in line]
    assert losses[-1] < 0.7 * losses[0]
    assert {"read_start", "read_end", "answer_top1"} <= lines[1].keys()
    start = Encoder.load(settings.encoder)
    weights = [each.model.get_input_embeddings().weight for each in (start, reader)]
    assert torch.equal(*weights)


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    settings = question_settings(tmp_path, objective=READING)
    run_training(tmp_path / "parts", settings, most_minutes=0)  # one step, and a checkpoint
    encoders = [run_training(tmp_path / run, settings) for run in ("parts", "undisturbed")]
    weights = [safetensors.torch.load_file(encoder / "model.safetensors") for encoder in encoders]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


def test_a_reader_is_trained_alone(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="reader_weight"):
        question_settings(tmp_path, objective=replace(READING, masked_weight=1.0))
    with pytest.raises(SettingError, match="questions is required"):
        run_training(tmp_path / "run", question_settings(tmp_path, objective=READING, questions=[]))


@pytest.mark.parametrize("name", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_counts_in_training_and_not_in_evaluation(name: str, tmp_path: Path) -> None:
    encoder = tiny_encoder("bert", **{name: 0.5})
    batch = toy_batch(encoder, tmp_path)
    passes = Passes(encoder.model)
    for training in (True, False):
        encoder.model.train(training)
        first, second = (passes.packed_states(batch.input_ids, batch.lengths) for _ in range(2))
        assert torch.equal(first, second) is not training

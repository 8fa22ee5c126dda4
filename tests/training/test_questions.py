"""Questions with known answers in training: their batches, losses, two ranks, and runs on a tiny encoder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from npm.core.errors import CorpusError, SettingError
from npm.core.types import Document
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.questions import Question, SupervisionSettings, question_table
from npm.masking.batches import PassageBatch, QuestionBatch
from npm.masking.masker import MaskingSettings
from npm.models.batches import masked_inputs
from npm.models.encoder import Encoder
from npm.models.settings import PoolerKind
from npm.objectives.encoded import EncodedRows, Passes
from npm.objectives.reading import ReaderLoss
from npm.objectives.settings import ObjectiveSettings, SpanSupervisionSettings
from npm.objectives.span_supervision import ReaderTeacher
from npm.reading.mask_reader import MaskReader
from npm.reading.reader import Passage
from npm.training.questions import AlternatingSource, QuestionSource, passage_batch, question_batch
from npm.training.run import run_training
from npm.training.settings import (
    FrozenSettings,
    ScheduleSettings,
    StartSettings,
    TrainerSettings,
    TrainingEvaluationSettings,
    TrainingSettings,
)
from tests.corpus.test_questions import ROW, written
from tests.helpers.tiny_models import FAMILIES, tiny_encoder
from tests.helpers.toy_training import metrics_of, toy_settings
from tests.training.question_ranks import FRAME, MICRO_STEPS, gradients, toy_questions, toy_table

ROWS = [
    ROW,
    {
        "question": "<mask> flows through Paris.",
        "answers": ["Seine"],
        "context": "The Seine flows through Paris.",
        "title": "Seine",
    },
    {
        "question": "Don Quixote was written by <mask>.",
        "answers": ["Cervantes"],
        "context": "It was written by Miguel de Cervantes.",
    },
    {
        "question": "Oslo is the capital of <mask>.",
        "answers": ["Norway"],
        "context": "Norway's capital, Oslo, lies at the Oslofjord.",
    },
]


def test_texts_are_shown_as_an_index_shows_and_reads_them(tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    table = question_table([written(tmp_path, ROW)], encoder.tokenizer, SupervisionSettings(), title_tokens=4)
    batch = question_batch([table[0]], [None], encoder)
    assert batch.block_rows == slice(1, 2)
    (inputs,) = masked_inputs(encoder, [ROW["question"]], encoder.query_masks).sequences
    packer = BlockPacker(encoder.tokenizer, BlockSettings(max_block_tokens=64, title_tokens=4))
    (block,) = packer.pack(Document(id="a", title=ROW["title"], text=ROW["context"]))
    joint, clean, alone, unmasked = (
        row[mask.bool()].tolist() for row, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    )
    assert joint == [*inputs.tolist(), *block.token_ids.tolist(), *encoder.suffix_ids]
    assert clean == [*encoder.prefix_ids, *block.token_ids.tolist(), *encoder.suffix_ids]
    assert alone == inputs.tolist()
    assert unmasked == [token for token in inputs.tolist() if token != encoder.mask_id]


def test_a_batch_is_a_function_of_seed_and_micro_step_and_ranks_share_it() -> None:
    whole = toy_questions(0, 1)
    whole.views(5)
    first, second = (toy_questions(rank, 2) for rank in (0, 1))
    for micro_step in (0, 3):
        views = [source.views(micro_step)["questions"] for source in (whole, toy_questions(0, 1), first, second)]
        batch, again, *parts = (view for view in views if isinstance(view, QuestionBatch))
        assert torch.equal(batch.input_ids, again.input_ids)
        assert sum(len(part.readers) for part in parts) == len(batch.readers)
        answers = [
            part.phrase_token_ids[row][part.phrase_token_ids[row] >= 0].tolist() for part in parts for row in range(3)
        ]
        assert answers == [row[row >= 0].tolist() for row in batch.phrase_token_ids[batch.is_answer]]
    first_batch = whole.views(0)["questions"]
    for other in (whole.views(1)["questions"], toy_questions(0, 1, seed=1).views(0)["questions"]):
        assert isinstance(first_batch, QuestionBatch)
        assert isinstance(other, QuestionBatch)
        assert other.input_ids.tolist() != first_batch.input_ids.tolist()


def test_rows_of_one_batch_differ_and_too_few_rows_are_refused() -> None:
    settings = SupervisionSettings(questions_per_device_batch=12)
    batch = QuestionSource(toy_table(), FRAME, settings, seed=0).views(0)["questions"]
    blocks = {tuple(row.tolist()) for row in batch.input_ids[len(batch.readers) :][:12]}
    assert len(blocks) == 12
    with pytest.raises(CorpusError):
        QuestionSource(toy_table(), FRAME, replace(settings, questions_per_device_batch=13), seed=0)


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, 0.0), (0.25, 3.0), (1.0, 12.0)])
def test_that_fraction_of_the_questions_has_a_wrong_passage_and_a_part_of_them_is_read(
    fraction: float, expected: float
) -> None:
    settings = SupervisionSettings(questions_per_device_batch=12, negative_fraction=fraction, joint_fraction=0.5)
    source = QuestionSource(toy_table(), FRAME, settings, seed=0)
    batches = [source.views(micro_step)["questions"] for micro_step in range(50)]
    shown, read = [], []
    for batch in batches:
        assert isinstance(batch, QuestionBatch)
        wrong = batch.wrong_questions.tolist()
        assert batch.joint_count == 6
        assert batch.readers.tolist() == [*range(6), *(number for number in wrong if number < 6)]
        assert len(batch.input_ids) == len(batch.readers) + 12 + len(wrong) + 2 * 12
        shown.append(len(wrong))
        read.append(len(batch.readers) - 6)
    assert np.mean(shown) == pytest.approx(expected, abs=0.5 * (0 < fraction < 1))
    assert np.mean(read) == pytest.approx(expected / 2, abs=0.5 * (0 < fraction < 1))


@pytest.mark.parametrize("fraction", [0.5, 0.3, 0.8])
def test_questions_alternate_evenly_with_another_source_and_neither_omits_a_micro_step(fraction: float) -> None:
    class Named:
        rank, world_size, micro_steps_per_epoch = 0, 1, 4

        def __init__(self, name: str) -> None:
            self.name = name

        def views(self, micro_step: int) -> dict[str, Any]:
            return {self.name: micro_step}

    source = AlternatingSource(Named("questions"), Named("phrases"), question_fraction=fraction)
    shown = [next(iter(source.views(micro_step).items())) for micro_step in range(100)]
    for name, share in (("questions", fraction), ("phrases", 1 - fraction)):
        steps = [step for kind, step in shown if kind == name]
        assert steps == list(range(len(steps)))
        assert len(steps) == pytest.approx(100 * share, abs=1)


def test_two_ranks_give_the_gradient_of_one_process(runs: Path) -> None:
    for micro_step in MICRO_STEPS:
        expected = gradients(0, 1, micro_step)
        assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3
        got = safetensors.torch.load_file(runs / "questions" / f"{micro_step}.safetensors")
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def question_settings(folder: Path, **changes: Any) -> TrainingSettings:
    """A few steps of a tiny encoder, which has titles and a pooler, on four questions."""
    given: dict[str, Any] = {
        "corpus": TrainingSettings().corpus,
        "blocks": BlockSettings(),
        "groups": TrainingSettings().groups,
        "questions": [written(folder, *ROWS)],
        "supervision": SupervisionSettings(
            questions_per_device_batch=3, max_block_tokens=40, max_question_tokens=30, negative_fraction=1.0
        ),
        "objective": ObjectiveSettings(nonparametric_weight=0.0, span_supervision_weight=1.0),
        "trainer": TrainerSettings(log_every_steps=1, ema_decay=0.9),
        "schedule": ScheduleSettings(max_steps=4, learning_rate=1e-3),
    }
    return toy_settings(folder, **{**given, **changes})


@pytest.mark.parametrize("reader", [False, True])
def test_a_run_that_was_interrupted_learns_and_saves_an_encoder_that_reads_jointly(
    reader: bool, tmp_path: Path
) -> None:
    weights = {"reader_weight": 1.0} if reader else {"span_supervision_weight": 1.0}
    settings = question_settings(
        tmp_path,
        objective=ObjectiveSettings(nonparametric_weight=0.0, **weights),  # type: ignore[arg-type]
        start=StartSettings(frozen=FrozenSettings(word_embeddings=True)),
        schedule=ScheduleSettings(max_steps=30, learning_rate=3e-3),
        evaluation=TrainingEvaluationSettings(files=[written(tmp_path, *ROWS, name="held.jsonl")], every_steps=30),
        supervision=SupervisionSettings(
            questions_per_device_batch=3, max_block_tokens=40, max_question_tokens=30, negative_fraction=0.25
        ),
    )
    run_training(tmp_path / "run", settings, most_minutes=0)  # one step, and a checkpoint
    assert metrics_of(tmp_path / "run")[-1]["step"] == 1
    folders = [run_training(tmp_path / run, settings) for run in ("run", "undisturbed")]
    assert len({(folder / "model.safetensors").read_bytes() for folder in folders}) == 1
    encoder, start = Encoder.load(str(folders[0])), Encoder.load(settings.encoder)
    assert (encoder.query_masks, encoder.reads_jointly) == (2, True)
    assert encoder.block_pooler is (None if reader else PoolerKind.avg)
    assert torch.equal(*(each.model.get_input_embeddings().weight for each in (encoder, start)))
    lines = metrics_of(tmp_path / "run")
    losses = [line["held_out_loss"] for line in lines if "held_out_loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    assert ({"read_start", "read_end", "answer_top1"} <= lines[1].keys()) == reader


def test_questions_alternate_with_the_phrase_loss_in_one_window(tmp_path: Path) -> None:
    plain = toy_settings(tmp_path)
    settings = question_settings(
        tmp_path,
        corpus=plain.corpus,
        blocks=plain.blocks,
        groups=plain.groups,
        masking=MaskingSettings(masked_fraction=0.3),
        objective=ObjectiveSettings(
            nonparametric_weight=1.0,
            span_supervision_weight=1.0,
        ),
        trainer=TrainerSettings(log_every_steps=1, accumulation_steps=2),
    )
    run_training(tmp_path / "run", settings)
    for line in metrics_of(tmp_path / "run"):
        assert {"start", "end", "answer_start", "rank"} <= line.keys()
    run_training(tmp_path / "single", replace(settings, trainer=TrainerSettings(log_every_steps=1)))
    kinds = ["answer_start" in line for line in metrics_of(tmp_path / "single")]
    assert kinds == [False, True, False, True]


def test_questions_without_files_and_next_to_other_objectives_are_refused(tmp_path: Path) -> None:
    for name in ("span_supervision_weight", "reader_weight"):
        weights = {"nonparametric_weight": 0.0, name: 1.0}
        with pytest.raises(SettingError, match="questions is required"):
            alone = ObjectiveSettings(**weights)
            run_training(tmp_path / "run", question_settings(tmp_path, objective=alone, questions=[]))
        with pytest.raises(SettingError, match=name):
            question_settings(tmp_path, objective=ObjectiveSettings(masked_weight=1.0, **weights))
    with pytest.raises(SettingError):
        run_training(
            tmp_path / "run",
            question_settings(tmp_path, supervision=SupervisionSettings(max_block_tokens=128, max_question_tokens=64)),
        )
    assert not (tmp_path / "run").exists()


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
    terms = ReaderLoss(encoder.similarity_scale)(EncodedRows(Passes(encoder.model), batch))
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
    wrong = source.wrong_passage(0, table[0], 0.5)
    assert wrong is not None
    assert wrong[1].tolist() == table[1].block.tolist()


@pytest.mark.parametrize(("asked", "similar"), [(0, 1), (399, 398)])
def test_the_rows_next_to_a_question_are_looked_at_at_the_ends_of_a_file_too(
    asked: int, similar: int, tmp_path: Path
) -> None:
    encoder = tiny_encoder("bert")
    rows = [{"question": "Is Oslo a city?", "answers": ["Oslo"], "context": "Oslo is a city.", "title": ""}] * 400
    rows[asked] = rows[asked] | {"question": "Which river flows through it?", "answers": ["Seine"], "context": "Seine"}
    rows[similar] = rows[similar] | {"context": "The river Rhine flows through the city Oslo."}
    table = question_table([written(tmp_path, *rows)], encoder.tokenizer, SupervisionSettings(), title_tokens=0)
    source = QuestionSource(table, encoder, SupervisionSettings(questions_per_device_batch=2), seed=0, view="passages")
    wrong = source.wrong_passage(asked, table[asked], 0.5)
    assert wrong is not None and wrong[1].tolist() == table[similar].block.tolist()


def test_a_reader_that_teaches_reads_as_in_an_answer(encoder: Encoder, tmp_path: Path) -> None:
    questions = [toy_question(encoder, tmp_path, row) for row in ROWS]
    wrong = [questions[1], None, questions[0], None]
    passages = [None if each is None else (each.title, each.block) for each in wrong]
    batch = question_batch(questions, passages, encoder, joint_fraction=0.25)
    encoder.reads_jointly = True
    scores = ReaderTeacher(encoder, encoder).scores(batch)
    pairs = [(row, row) for row in ROWS] + [(ROWS[0], ROWS[1]), (ROWS[2], ROWS[0])]
    expected, here = [], []
    for asked, shown in pairs:
        passage = Passage(str(shown["context"]), str(shown.get("title", "")))
        ((found,),) = MaskReader(encoder).read([(str(asked["question"]), passage)])
        total = np.logaddexp.reduce(found.scores, axis=1, keepdims=True)  # f64 [2, 1]
        expected.append(found.scores - total)
        here.append(float((total[:, 0] - found.not_here).mean()))
    np.testing.assert_allclose(scores.log_probabilities, np.concatenate(expected[:4], axis=1), atol=1e-4)
    np.testing.assert_allclose(scores.here, here, atol=1e-4)


def toy_question(encoder: Encoder, folder: Path, row: dict[str, Any]) -> Question:
    return question_table([written(folder, row)], encoder.tokenizer, SupervisionSettings(), title_tokens=4)[0]


def test_a_reader_teaches_a_run_and_one_with_other_tokens_or_that_cannot_read_is_refused(tmp_path: Path) -> None:
    plain = question_settings(tmp_path)
    folders = {}
    for name, start in (("reader", Encoder.load(plain.encoder)), ("foreign", tiny_encoder("roberta"))):
        start.reads_jointly = True
        start.save(tmp_path / name)
        folders[name] = str(tmp_path / name)
    deaf = Encoder.load(plain.encoder)
    deaf.reads_jointly = False
    deaf.save(tmp_path / "deaf")

    def taught_by(folder: Path | str) -> TrainingSettings:
        teaching = SpanSupervisionSettings(reader=str(folder), distill_weight=1.0)
        objective = ObjectiveSettings(nonparametric_weight=0.0, span_supervision_weight=1.0, span_supervision=teaching)
        return replace(plain, objective=objective, schedule=ScheduleSettings(max_steps=40, learning_rate=3e-3))

    run_training(tmp_path / "run", taught_by(folders["reader"]))
    lines = metrics_of(tmp_path / "run")
    assert lines[-1]["distill"] < 0.8 * lines[0]["distill"]
    recorded = json.loads((tmp_path / "run" / "settings.json").read_text(encoding="utf-8"))
    assert recorded["reader_fingerprint"] == Encoder.load(folders["reader"]).fingerprint
    for folder in (folders["foreign"], tmp_path / "deaf"):
        with pytest.raises(SettingError, match=r"objective\.span_supervision\.reader"):
            run_training(tmp_path / "refused", taught_by(folder))


@pytest.mark.parametrize("name", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_counts_in_training_and_not_in_evaluation(name: str, tmp_path: Path) -> None:
    encoder = tiny_encoder("bert", **{name: 0.5})
    batch = toy_batch(encoder, tmp_path)
    passes = Passes(encoder.model)
    for training in (True, False):
        encoder.model.train(training)
        first, second = (passes.packed_states(batch.input_ids, batch.lengths) for _ in range(2))
        assert torch.equal(first, second) is not training

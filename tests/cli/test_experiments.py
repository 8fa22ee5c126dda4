"""Every experiment file trains a few steps, as a user starts it, on a tiny encoder and a small corpus."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

import pytest

from tests.corpus.test_questions import ROW, written
from tests.helpers.command_line import REPOSITORY, CommandLine, write_corpus
from tests.helpers.tiny_models import SENTENCES, tiny_encoder
from tests.helpers.toy_training import metrics_of

EXPERIMENTS = sorted(path.stem for path in (REPOSITORY / "configs" / "experiment").glob("*.yaml"))
EXAMPLE = REPOSITORY / "docs" / "example-objective"
SMALLER = [
    "schedule.max_minutes=null",
    "schedule.max_steps=2",
    "device=cpu",
    "precision=float32",
    "trainer.log_every_steps=1",
]
BLOCKS = ["blocks.max_block_tokens=32", "groups.sequences_per_group=4"]
SENTENCES_A_STEP = ["sentences.pairs_per_device_batch=4"]
QUESTIONS_A_STEP = ["supervision.questions_per_device_batch=2", "supervision.max_block_tokens=40"]
QUESTIONS_A_STEP += ["supervision.max_question_tokens=40"]
MASK_PAIRS = ["masking.max_spans_per_sequence=16"]
CUT = {
    "masking_study": ["start.fresh.dimensions=16", "start.fresh.vocabulary_size=300"],
    "mlm_scratch": ["start.fresh.dimensions=16", "start.fresh.vocabulary_size=300"],
    "mlm_day": [
        "start.fresh.layers=1",
        "start.fresh.dimensions=16",
        "start.fresh.attention_heads=2",
        "trainer.groups_per_device_batch=1",
    ],
    "npm_paper": [*MASK_PAIRS, "blocks.title_tokens=4"],
    "encoder_mini": MASK_PAIRS,
    "encoder_mini_2": [*MASK_PAIRS, "blocks.title_tokens=4"],
    "encoder_mini_4": [*MASK_PAIRS, "blocks.title_tokens=4", *BLOCKS],
    "npm_mlm": MASK_PAIRS,
    "matryoshka": [*MASK_PAIRS, "objective.nonparametric.dimensions=[8,16]"],
    **{name: ["start.fresh.dimensions=16"] for name in EXPERIMENTS if name.startswith("ul2_")},
    "ul2r": ["start.fresh.layers=2", "start.fresh.dimensions=16"],
}
"""What else an experiment needs to be small."""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings that name an encoder and a corpus."""
    folder = tmp_path_factory.mktemp("experiments")
    encoder = tiny_encoder("bert")
    encoder.save(folder / "encoder")
    encoder.reads_jointly = True
    encoder.save(folder / "reader")
    order = random.Random(0)
    texts = (" ".join(order.choices(SENTENCES, k=20)) for _ in range(12))
    write_corpus(folder / "texts.jsonl", [{"id": str(n), "title": "", "text": text} for n, text in enumerate(texts)])
    pairs = [
        {"premise": f"{text} {n}", "entailment": f"{n} {text}", "contradiction": f"No, {text} {n}"}
        for n, text in enumerate(SENTENCES)
    ]
    write_corpus(folder / "pairs.jsonl", pairs)
    return [f"encoder={folder / 'encoder'}", f"corpus.files=[{folder / 'texts.jsonl'}]", str(folder / "pairs.jsonl")]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_trains(experiment: str, npmlm: CommandLine, start: list[str], tmp_path: Path) -> None:
    encoder, corpus, pairs = start
    texts = [f"sentences.files=[{pairs}]"] if experiment == "simcse_sup" else [corpus]
    if experiment == "transfer_target":
        texts = [corpus, corpus.replace("corpus.", "evaluation.")]
    batch = SENTENCES_A_STEP if experiment.startswith("simcse") else BLOCKS
    if experiment in ("reader", "span_supervision", "encoder_mini_4"):
        texts = [f"questions={written(tmp_path, ROW, ROW)}"]
        batch = QUESTIONS_A_STEP
    if experiment == "encoder_mini_4":
        texts += [corpus, f"objective.span_supervision.reader={Path(encoder.partition('=')[2]).parent / 'reader'}"]
    run = tmp_path / "run"
    npmlm(
        "train", f"experiment={experiment}", f"run={run}", encoder, *texts, *batch, *SMALLER, *CUT.get(experiment, [])
    ).done()
    steps = metrics_of(run)
    assert [line["step"] for line in steps if "learning_rate" in line] == [1, 2]  # the others are evaluations
    assert (run / "encoder" / "model.safetensors").is_file()


def test_an_objective_of_ones_own_trains(start: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    given = {"encoder": start[0].partition("=")[2], "corpus": {"files": [start[1][len("corpus.files=[") : -1]]}}
    given |= {
        "blocks": {"max_block_tokens": 32},
        "groups": {"sequences_per_group": 4},
        "trainer": {"log_every_steps": 1},
    }
    train = importlib.import_module("span_boundary").train
    run = train(tmp_path / "run", **given, device="cpu", schedule={"max_steps": 2})
    steps = metrics_of(tmp_path / "run")
    assert all({"span_boundary", "masked"} <= step.keys() for step in steps)
    assert (run / "model.safetensors").is_file()

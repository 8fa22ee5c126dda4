"""Every experiment file trains a few steps, as a user starts it, on a tiny encoder and a small corpus."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from tests.corpus.test_questions import ROW, written
from tests.helpers.command_line import CommandLine
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

REPOSITORY = Path(__file__).parents[2]
EXPERIMENTS = sorted(path.stem for path in (REPOSITORY / "configs" / "experiment").glob("*.yaml"))
OWN = sorted((REPOSITORY / "docs" / "example-objective").glob("*.yaml"))
SMALLER = [
    "schedule.max_minutes=null",
    "schedule.max_steps=2",
    "device=cpu",
    "precision=float32",
    "trainer.log_every_steps=1",
]
BLOCKS = ["blocks.max_block_tokens=32", "groups.sequences_per_group=4"]
SENTENCES_A_STEP = ["sentences.pairs_per_device_batch=4"]
QUESTIONS_A_STEP = [
    *(
        "supervision.questions_per_device_batch=2",
        "supervision.max_block_tokens=40",
        "supervision.max_question_tokens=40",
    )
]
MASK_PAIRS = ["masking.max_spans_per_sequence=16"]
CUT = {
    "masking_study": ["start.fresh.dimensions=16", "start.fresh.vocabulary_size=300"],
    "mlm_scratch": ["start.fresh.dimensions=16", "start.fresh.vocabulary_size=300"],
    "encoder_mini": MASK_PAIRS,
    "encoder_mini_2": [*MASK_PAIRS, "blocks.title_tokens=4"],
    "npm_mlm": MASK_PAIRS,
    "matryoshka": [*MASK_PAIRS, "objective.nonparametric.dimensions=[8,16]"],
    "mlm_collocation": ["corruption.collocations.min_count=3"],
    **{name: ["start.fresh.dimensions=16"] for name in EXPERIMENTS if name.startswith("ul2_")},
}
"""What else an experiment needs to be small."""


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings that name an encoder and a corpus."""
    folder = tmp_path_factory.mktemp("experiments")
    tiny_encoder("bert").save(folder / "encoder")
    order = random.Random(0)
    texts = (" ".join(order.choices(SENTENCES, k=20)) for _ in range(12))
    lines = [json.dumps({"id": str(number), "title": "", "text": text}) for number, text in enumerate(texts)]
    (folder / "texts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = [{"premise": a, "entailment": b, "contradiction": c} for a, b, c in triples()]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    return [f"encoder={folder / 'encoder'}", f"corpus.files=[{folder / 'texts.jsonl'}]", str(folder / "pairs.jsonl")]


def triples() -> list[tuple[str, str, str]]:
    """Three sentences each, all of them different."""
    return [(f"{text} {number}", f"{number} {text}", f"No, {text} {number}") for number, text in enumerate(SENTENCES)]


@pytest.mark.parametrize("experiment", [*EXPERIMENTS, *map(str, OWN)], ids=[*EXPERIMENTS, *(path.stem for path in OWN)])
def test_an_experiment_trains(
    experiment: str, npmlm: CommandLine, start: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(OWN[0].parent))
    encoder, corpus, pairs = start
    texts = [f"sentences.files=[{pairs}]"] if experiment == "simcse_sup" else [corpus]
    if experiment == "transfer_target":
        texts = [corpus, corpus.replace("corpus.", "evaluation.")]
    if experiment == "span_supervision":
        texts = [f"questions={written(tmp_path, ROW, ROW)}"]
    batch = SENTENCES_A_STEP if experiment.startswith("simcse") else BLOCKS
    batch = QUESTIONS_A_STEP if experiment == "span_supervision" else batch
    run = tmp_path / "run"
    outcome = npmlm(
        "train",
        f"experiment={experiment}",
        f"run={run}",
        encoder,
        *texts,
        *batch,
        *SMALLER,
        *CUT.get(Path(experiment).stem, []),
    )
    assert outcome.status == 0, outcome.err
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in steps if "tokens" in line] == [1, 2]  # the others are evaluations
    assert (run / "encoder" / "model.safetensors").is_file()


@pytest.mark.parametrize("target", ["own_losses.function", "own_losses.Callable", "own_losses.instance", "os.system"])
def test_what_is_no_class_of_torch_modules_is_not_called(
    target: str, npmlm: CommandLine, start: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = tmp_path / "called"
    (tmp_path / "own_losses.py").write_text(
        "import pathlib\n"
        f"def function(*_, **__): pathlib.Path({str(called)!r}).touch()\n"
        "class Callable:\n"
        "    def __new__(cls, *_, **__): function()\n"
        "    def __call__(self, *_, **__): function()\n"
        "instance = object.__new__(Callable)\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_losses", raising=False)  # that of another parameter
    system: list[object] = []
    monkeypatch.setattr("os.system", lambda *given, **_: system.append(given))
    (tmp_path / "own.yaml").write_text(
        f"# @package _global_\nobjective:\n  others:\n    own:\n      target: {target}\n      settings: {{}}\n",
        encoding="utf-8",
    )
    encoder, corpus, _ = start
    command = ["train", f"experiment={tmp_path / 'own.yaml'}", f"run={tmp_path / 'run'}", encoder, corpus]
    npmlm(*command, *BLOCKS, *SMALLER).refused("objective.others.own", target)
    assert not called.exists()
    assert not system

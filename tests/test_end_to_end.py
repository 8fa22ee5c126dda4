"""The whole way: text → trained encoder → index → answers → evaluation, through the command line only."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from npm import PhraseFiller
from tests.cli.test_fill import check_contract
from tests.helpers.command_line import DOCUMENTS, CommandLine, run_subprocess, write_corpus
from tests.helpers.tiny_models import FAMILIES, tiny_encoder

SHRUNK = (
    "blocks.max_block_tokens=24",
    "blocks.max_document_tokens=400",
    "groups.sequences_per_group=4",
    "masking.min_masked_fraction=0.01",
    "schedule.max_steps=4",
    "schedule.max_minutes=null",
    "device=cpu",
    "precision=float32",
)


def repeated_corpus(path: Path) -> Path:
    """Each text six times in its document, so that spans occur in several blocks."""
    return write_corpus(path, [{**document, "text": f"{document['text']} " * 6} for document in DOCUMENTS])


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_is_trained_its_index_built_asked_checked_and_measured(
    family: str, npmlm: CommandLine, corpus: Path, tmp_path: Path
) -> None:
    tiny_encoder(family).save(tmp_path / "start")
    texts = repeated_corpus(tmp_path / "texts.jsonl")
    run, index = tmp_path / "run", tmp_path / "index"
    train = ("train", "experiment=encoder_mini", f"corpus.files={texts}", f"encoder={tmp_path / 'start'}", f"run={run}")
    outcome = npmlm(*train, *SHRUNK)
    assert outcome.status == 0, outcome.err

    build = ("build", f"corpus.files={corpus}", f"index={index}", f"encoder={run / 'encoder'}")
    outcome = npmlm(*build, "blocks.max_block_tokens=64")
    assert outcome.status == 0, outcome.err
    assert npmlm("verify", f"index={index}").status == 0

    question = "The capital of Norway is <mask>."
    fill = ("fill", f"index={index}", f"encoder={run / 'encoder'}", "output=json", question)
    for retrieval in ("dense", "bm25", "hybrid"):
        outcome = npmlm(*fill, f"retrieval={retrieval}")
        assert outcome.status == 0, outcome.err
        check_contract(outcome.answers()[0])
    answer = PhraseFiller.open(index, str(run / "encoder")).fill(question)
    assert [phrase.phrase for phrase in answer.phrases] == [
        phrase["phrase"] for phrase in npmlm(*fill).answers()[0]["phrases"]
    ]

    entry = {"id": "q", "kind": "capital", "text": question, "answers": ["Oslo"], "split": "test"}
    (tmp_path / "questions.json").write_text(json.dumps({"questions": [entry]}), encoding="utf-8")
    evaluate = ("evaluate", f"index={index}", f"encoder={run / 'encoder'}", f"questions={tmp_path / 'questions.json'}")
    outcome = npmlm(*evaluate, f"out={tmp_path / 'out'}")
    assert outcome.status == 0, outcome.err
    assert question in outcome.out


def test_two_processes_train_one_encoder_by_the_same_script(tmp_path: Path, tiny_encoder_folder: Path) -> None:
    texts = repeated_corpus(tmp_path / "texts.jsonl")
    launch = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_cpu_threads_per_process", "1")
    port = ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")
    given = (f"corpus.files={texts}", f"encoder={tiny_encoder_folder}", f"run={tmp_path / 'run'}", *SHRUNK)
    steps = ("schedule.max_steps=2", "trainer.log_every_steps=1")
    settings = [part for part in given if not part.startswith("schedule.max_steps")]
    outcome = run_subprocess(sys.executable, *launch, *port, "scripts/train.py", *settings, *steps)
    assert outcome.status == 0, outcome.err
    assert outcome.err.count("training on cpu") == 1
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert (tmp_path / "run" / "encoder" / "model.safetensors").is_file()

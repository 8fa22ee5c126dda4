"""The whole way: text → trained encoder → index → answers → evaluation, through the command line only."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from npm import FillSettings, PhraseFiller
from npm.evaluation.tasks import DEMO
from npm.retrieval.settings import Overlaps
from tests.cli.test_fill import check_contract
from tests.helpers.command_line import DOCUMENTS, CommandLine, run_together, write_corpus
from tests.helpers.tiny_models import FAMILIES, tiny_byt5, tiny_encoder, tiny_mt5
from tests.helpers.toy_training import toy_encoder

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


@pytest.mark.parametrize("family", [*FAMILIES, "xlm-roberta"])
def test_training_building_filling_measuring(family: str, npmlm: CommandLine, corpus: Path, tmp_path: Path) -> None:
    tiny_encoder(family).save(tmp_path / "start")
    texts = repeated_corpus(tmp_path / "texts.jsonl")
    run, index = tmp_path / "run", tmp_path / "index"
    train = ("train", "experiment=encoder_mini", f"corpus.files={texts}", f"encoder={tmp_path / 'start'}", f"run={run}")
    npmlm(*train, *SHRUNK).done()

    build = ("build", f"corpus.files={corpus}", f"index={index}", f"encoder={run / 'encoder'}")
    npmlm(*build, "blocks.max_block_tokens=64").done()
    assert npmlm("verify", f"index={index}").status == 0

    question = "The capital of Norway is <mask>."
    fill = ("fill", f"index={index}", f"encoder={run / 'encoder'}", "output=json", "overlaps=keep", question)
    for retrieval in ("dense", "bm25", "hybrid"):
        outcome = npmlm(*fill, f"retrieval={retrieval}").done()
        check_contract(outcome.answers()[0])
    kept = FillSettings(overlaps=Overlaps.keep)
    answer = PhraseFiller.open(index, str(run / "encoder"), settings=kept).fill(question)
    assert [phrase.phrase for phrase in answer.phrases] == [
        phrase["phrase"] for phrase in npmlm(*fill).answers()[0]["phrases"]
    ]

    entry = {"id": "q", "kind": "capital", "text": question, "answers": ["Oslo"], "split": "test"}
    (tmp_path / "questions.json").write_text(json.dumps({"questions": [entry]}), encoding="utf-8")
    task = shutil.copy(DEMO / "demo.yaml", tmp_path)
    evaluate = ("evaluate", f"index={index}", f"encoder={run / 'encoder'}", f"out={tmp_path / 'out'}")
    outcome = npmlm(*evaluate, f"task={task}", "show=1").done()
    assert question in outcome.out


@pytest.mark.parametrize("start", ["bytes", "byt5"])
def test_an_encoder_of_bytes_from_end_to_end(start: str, npmlm: CommandLine, corpus: Path, tmp_path: Path) -> None:
    texts = repeated_corpus(tmp_path / "texts.jsonl")
    run, index = tmp_path / "run", tmp_path / "index"
    begin = ["encoder=bytes", "start.fresh.layers=1", "start.fresh.dimensions=16", "start.fresh.max_input_tokens=128"]
    if start == "byt5":
        tiny_byt5(tmp_path / "byt5")
        begin = [f"encoder={tmp_path / 'byt5'}", "start.encoder_half=true", "start.encoder_half_tokens=128"]
    train = ("train", *begin, f"corpus.files={texts}", f"run={run}", "masking.unit=phrase_words")
    longer = ("blocks.max_block_tokens=64", "blocks.max_document_tokens=600")
    npmlm(*train, *longer, *(setting for setting in SHRUNK if not setting.startswith("blocks."))).done()

    masked = ("objective.masked_weight=1", "objective.nonparametric_weight=0", f"run={tmp_path / 'masked'}")
    shrunk = (setting for setting in SHRUNK if not setting.startswith(("blocks.", "masking.")))
    headless = ("no head", "objective.nonparametric_weight=1")
    refusal = headless if start == "byt5" else ("mask single bytes", "corruption.allow_bytes")
    npmlm(*train[:-2], *masked, *longer, *shrunk).refused(*refusal)

    build = ("build", f"corpus.files={corpus}", f"index={index}", f"encoder={run / 'encoder'}", "copy_encoder=true")
    npmlm(*build, "blocks.max_block_tokens=96").done()
    assert npmlm("verify", f"index={index}").status == 0
    fill = ("fill", f"index={index}", "output=json", "overlaps=keep", "k=1000", "merged_groups=1000")
    for retrieval in ("dense", "hybrid"):
        outcome = npmlm(*fill, f"retrieval={retrieval}", "The capital of Łódź 🜨 is <mask>.").done()
        (answer,) = outcome.answers()
        check_contract(answer, k=1000)  # whose offsets and contexts are those of the document's characters
        phrases = {phrase["phrase"] for phrase in answer["phrases"]}
        if retrieval == "dense":
            assert {"Reykjavík", "Bank of America", "Miguel de Cervantes"} <= phrases  # more than ten tokens
            assert not any(len(phrase.split()) > 10 for phrase in phrases)
    outcome = npmlm(*fill, "retrieval=dense", "max_phrase_words=1", "The capital is <mask>.")
    assert not any(" " in phrase["phrase"] for phrase in outcome.answers()[0]["phrases"])
    npmlm("fill", f"index={index}", "half \ud800 a character <mask>").refused("not valid Unicode")
    measure = ("evaluate", "task=in_batch", f"encoder={run / 'encoder'}", f"corpus.files={texts}", "limit=2")
    small = ("held_out.least_tokens=200", "held_out.blocks_per_article=2", "held_out.max_block_tokens=64")
    for unit in ("word", "token"):
        npmlm(*measure, *small, f"held_out.unit={unit}", f"out={tmp_path / unit}").done()
        assert json.loads((tmp_path / unit / "metrics.json").read_text(encoding="utf-8"))["loss"] > 0
    half = tmp_path / "half.jsonl"
    half.write_text('{"text": "half \\ud800 a character"}\n', encoding="utf-8")
    broken = npmlm(
        "build",
        f"corpus.files={half}",
        f"index={tmp_path / 'other'}",
        f"encoder={run / 'encoder'}",
        "blocks.max_block_tokens=96",
    )
    broken.refused("half.jsonl")


def test_an_mt5_as_a_denoiser_and_its_half_for_phrases(npmlm: CommandLine, corpus: Path, tmp_path: Path) -> None:
    tiny_mt5(tmp_path / "mt5")
    texts = repeated_corpus(tmp_path / "texts.jsonl")
    shrunk = [setting for setting in SHRUNK if setting != "blocks.max_block_tokens=24"]
    train = ["train", f"encoder={tmp_path / 'mt5'}", f"corpus.files={texts}", *shrunk, "blocks.max_block_tokens=64"]
    plain = [setting for setting in train if not setting.startswith("masking.")]
    denoise = (
        "experiment=ul2_small",
        "start.fresh.layers=0",
        f"run={tmp_path / 'ul2'}",
        "blocks.min_filled_fraction=0",
    )
    npmlm(*plain, *denoise).done()
    small = ("limit=2", "held_out.least_tokens=128", "held_out.blocks_per_article=2")
    measure = ("evaluate", "task=denoising", f"encoder={tmp_path / 'ul2' / 'encoder'}", f"corpus.files={texts}")
    npmlm(*measure, *small, "held_out.max_block_tokens=64", f"out={tmp_path / 'nll'}").done()

    half = ("start.encoder_half=true", "start.encoder_half_tokens=128", f"run={tmp_path / 'half'}")
    npmlm(*train, *half, "objective.masked_weight=1").refused("no head", "objective.masked_weight=0")
    npmlm(*train, *half).done()
    build = ("build", f"corpus.files={corpus}", f"index={tmp_path / 'index'}", "blocks.max_block_tokens=64")
    npmlm(*build, f"encoder={tmp_path / 'half' / 'encoder'}", "copy_encoder=true").done()
    outcome = npmlm("fill", f"index={tmp_path / 'index'}", "output=json", "The capital of Łódź 🜨 is <mask>.").done()
    check_contract(outcome.answers()[0])


def test_an_encoder_of_one_mask_fills_words_and_says_so(npmlm: CommandLine, corpus: Path, tmp_path: Path) -> None:
    tiny_encoder("bert").save(tmp_path / "start")
    texts = repeated_corpus(tmp_path / "texts.jsonl")
    train = ("train", f"corpus.files={texts}", *SHRUNK)
    single, index = tmp_path / "single" / "encoder", tmp_path / "index"
    run = ("experiment=npm_single", f"encoder={tmp_path / 'start'}", f"run={single.parent}")
    npmlm(*train, *run).done()
    assert json.loads((single / "config.json").read_text(encoding="utf-8"))["npm"]["query_masks"] == 1

    build = ("build", f"corpus.files={corpus}", f"index={index}", f"encoder={single}", "copy_encoder=true")
    npmlm(*build, "blocks.max_block_tokens=64").done()
    for retrieval in ("dense", "bm25", "hybrid"):
        outcome = npmlm(
            "fill",
            f"index={index}",
            "overlaps=keep",
            "k=50",
            "output=json",
            f"retrieval={retrieval}",
            "Norway is <mask>.",
        ).done()
        (answer,) = outcome.answers()
        check_contract(answer, k=50)
        assert not any(" " in phrase["phrase"] for phrase in answer["phrases"])
    assert npmlm("verify", f"index={index}").status == 0

    measure = (
        "evaluate",
        "task=in_batch",
        f"encoder={single}",
        f"corpus.files={texts}",
        f"out={tmp_path / 'in-batch'}",
    )
    small = ("held_out.least_tokens=48", "held_out.blocks_per_article=2", "held_out.max_block_tokens=24", "limit=2")
    npmlm(*measure, *small).done()
    metrics = json.loads((tmp_path / "in-batch" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["start_top1"] == metrics["end_top1"] == metrics["top1"]["mean"]

    run = ("experiment=encoder_mini", f"encoder={single}", f"run={tmp_path / 'pairs'}")
    assert npmlm(*train, *run).status == 0
    config = json.loads((tmp_path / "pairs" / "encoder" / "config.json").read_text(encoding="utf-8"))
    assert config["npm"]["query_masks"] == 2


def launchers(run: Path, *settings: str) -> list[list[str]]:
    """The commands that start two processes together, one on each of two nodes; `accelerate launch` calls the same."""
    script = ["scripts/train.py", f"run={run}", *settings]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = ["--master_addr", "127.0.0.1", "--master_port", str(free.getsockname()[1])]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1", *meeting]
    return [[*torchrun, "--node_rank", rank, *script] for rank in ("0", "1")]


def test_two_processes_of_a_launcher_train_what_one_process_trains(npmlm: CommandLine, tmp_path: Path) -> None:
    texts = repeated_corpus(tmp_path / "texts.jsonl")
    toy_encoder().save(tmp_path / "start")  # without dropout, which is each rank's own
    steps = ("schedule.max_steps=2", "trainer.log_every_steps=1")
    shrunk = (setting for setting in SHRUNK if not setting.startswith("schedule.max_steps"))
    settings = (f"corpus.files={texts}", f"encoder={tmp_path / 'start'}", *shrunk, *steps)
    commands = launchers(tmp_path / "two", *settings, "trainer.sharding=full")
    outcomes = run_together(commands, tmp_path / "logs")
    if any(outcome.status < 0 for outcome in outcomes):  # a launcher hung once in a hundred runs, when all was trained
        sys.stderr.write("\n".join(outcome.err for outcome in outcomes))  # a warning would end the test
        shutil.rmtree(tmp_path / "two", ignore_errors=True)
        commands = launchers(tmp_path / "two", *settings, "trainer.sharding=full")
        outcomes = run_together(commands, tmp_path / "logs-again")
    assert [outcome.status for outcome in outcomes] == [0, 0], "\n".join(outcome.err for outcome in outcomes)
    assert [outcome.err.count("training on cpu") for outcome in outcomes] == [1, 0]
    (checkpoint,) = (tmp_path / "two" / "checkpoints").iterdir()
    assert set(load_file(checkpoint / "generators.safetensors")) == {"0-cpu", "1-cpu"}

    npmlm("train", *settings, f"run={tmp_path / 'one'}", "trainer.groups_per_device_batch=2").done()
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("one", "two")
    )
    compared = ("step", "tokens", "learning_rate", "start", "end")
    assert len(two) == 2
    for left, right in zip(one, two, strict=True):
        assert [right[name] for name in compared] == pytest.approx([left[name] for name in compared], rel=1e-4)
    weights = [load_file(tmp_path / name / "encoder" / "model.safetensors") for name in ("one", "two")]
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=1e-5)

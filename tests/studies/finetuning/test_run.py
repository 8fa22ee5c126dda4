"""`npmlm finetune` end to end: runs, their summary, going on, and what is refused before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from npm.corpus.labeled import encode_labeled
from npm.training.run import run_training
from studies.finetuning.run import PreparedTask, rate_summary
from studies.finetuning.tasks import TASKS, task_data
from tests.helpers.command_line import CommandLine, all_bytes
from tests.helpers.labeled_texts import PAIRS, SENTENCES, WORDS, encoder_of_pairs, write_rows
from tests.helpers.tiny_models import tiny_encoder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A tiny encoder, and tasks that it learns."""
    encoder_of_pairs().save(tmp_path / "start")
    folder = tmp_path / "data"
    for name, rows in {"sst2": SENTENCES, "stsb": PAIRS, "conll": WORDS * 4}.items():
        write_rows(folder / f"{name}-train.jsonl", rows)
        write_rows(folder / f"{name}-dev.jsonl", rows[:12])
    return folder


def finetune(npmlm: CommandLine, data: Path, *settings: str) -> Any:
    start, out = data.parent / "start", data.parent / "out"
    return npmlm("finetune", f"encoder={start}", f"data_dir={data}", f"out={out}", "device=cpu", *settings)


FAST = ("precision=float32", "examples_per_device_batch=6")


def tasks_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["tasks"]
    return found


def test_pairs_and_words_are_learned(npmlm: CommandLine, data: Path) -> None:
    outcome = finetune(npmlm, data, "task=[stsb,conll]", *FAST, "learning_rates=[1e-2]", "seeds=[0]", "epochs=12")
    assert outcome.status == 0, outcome.err
    assert [line.split("|")[1].strip() for line in outcome.out.splitlines()[2:]] == [*["stsb"] * 2, *["conll"] * 2]
    found = tasks_in(data.parent / "out")
    for task, metric in (("stsb", "dev_spearman"), ("conll", "dev_entity_f1")):
        assert found[task]["last_epoch"][metric]["mean"] > 0.6 > found[task]["constant_answer"][metric]


def test_sentences_are_learned_with_the_rate_that_is_chosen_and_a_finished_run_is_not_repeated(
    npmlm: CommandLine, data: Path
) -> None:
    command = ("task=[sst2]", *FAST, "learning_rates=[1e-2,1e-6]", "seeds=[0,1]", "epochs=4")
    outcome = finetune(npmlm, data, *command)
    assert outcome.status == 0, outcome.err
    out = data.parent / "out"
    task = tasks_in(out)["sst2"]
    last = [task["rates"][rate]["last_epoch"]["dev_accuracy"]["mean"] for rate in ("0.01", "1e-06")]
    assert task["chosen_rate"] == 1e-2
    assert task["last_epoch"]["dev_accuracy"]["mean"] == last[0] > last[1]
    assert task["constant_answer"] == {"dev_accuracy": 0.5}
    run = out / "sst2" / "lr-0.01" / "seed-1"
    epochs = json.loads((run / "result.json").read_text(encoding="utf-8"))["epochs"]
    assert [(epoch["epoch"], epoch["step"]) for epoch in epochs] == [(1, 4), (2, 8), (3, 12), (4, 16)]
    assert not (run / "encoder").exists()
    assert not (run / "checkpoints").exists()

    before = all_bytes(out)
    again = finetune(npmlm, data, *command)
    assert (again.status, again.out) == (0, outcome.out)
    assert all_bytes(out) == before
    finetune(npmlm, data, *command, "warmup_fraction=0.2").refused("warmup_fraction")
    finetune(npmlm, data, *command, "limit=10").refused("max_examples")


def test_a_run_that_was_stopped_goes_on_to_the_same_metrics(
    npmlm: CommandLine, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("task=[sst2]", *FAST, "learning_rates=[1e-2]", "seeds=[0]", "epochs=2")
    assert finetune(npmlm, data, *command).status == 0
    whole = (data.parent / "out" / "metrics.json").read_bytes()
    (data.parent / "out").rename(data.parent / "whole")

    def stopped(*arguments: Any, **settings: Any) -> None:
        run_training(*arguments, **settings, most_minutes=0)  # one step, and a checkpoint
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("studies.finetuning.run.run_training", stopped)
        for _ in range(2):
            assert finetune(npmlm, data, *command).status == 130
    assert finetune(npmlm, data, *command).status == 0
    assert (data.parent / "out" / "metrics.json").read_bytes() == whole


def test_metrics_name_the_runs_that_are_left_until_there_are_none(
    npmlm: CommandLine, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("task=[sst2]", *FAST, "learning_rates=[1e-2,1e-6]", "seeds=[0]", "epochs=1")
    metrics = data.parent / "out" / "metrics.json"

    def stopped(folder: Path, *arguments: Any, **settings: Any) -> None:
        if folder.parent.name == "lr-1e-06":
            raise KeyboardInterrupt
        run_training(folder, *arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr("studies.finetuning.run.run_training", stopped)
        assert finetune(npmlm, data, *command).status == 130
    assert json.loads(metrics.read_text(encoding="utf-8"))["unfinished"] == ["sst2/lr-1e-06/seed-0"]
    assert finetune(npmlm, data, *command).status == 0
    assert "unfinished" not in json.loads(metrics.read_text(encoding="utf-8"))


def test_what_a_finished_run_does_not_answer_is_refused(npmlm: CommandLine, data: Path) -> None:
    command = ("task=[sst2]", *FAST, "learning_rates=[1e-2]", "seeds=[0]", "epochs=1")
    assert finetune(npmlm, data, *command).status == 0
    before = all_bytes(data.parent / "out")
    finetune(npmlm, data, *command, "keep_encoders=true").refused("was not kept")
    finetune(npmlm, data, *command, "start.fresh.layers=1").refused("layers")
    write_rows(data / "sst2-dev.jsonl", SENTENCES[1:9])
    finetune(npmlm, data, *command).refused("result.json")
    assert all_bytes(data.parent / "out") == before


def test_an_encoder_is_kept_and_probed_where_asked(npmlm: CommandLine, data: Path) -> None:
    one = ("task=[conll]", "seeds=[0]", "learning_rates=[1e-2]", "epochs=1", "layer=1", "keep_encoders=true")
    outcome = finetune(npmlm, data, *one, "start.hidden_dropout=0", "start.attention_dropout=0")
    assert outcome.status == 0, outcome.err
    kept = data.parent / "out" / "conll" / "lr-0.01" / "seed-0" / "encoder" / "model.safetensors"
    assert kept.read_bytes() == (data.parent / "start" / "model.safetensors").read_bytes()


def test_random_weights_are_fine_tuned_as_a_baseline(npmlm: CommandLine, data: Path) -> None:
    fresh = ("start.fresh.layers=1", "start.fresh.dimensions=16", "start.fresh.max_input_tokens=128")
    command = ("task=[sst2]", "seeds=[1]", "learning_rates=[1e-2]", "epochs=1", *fresh)
    first = finetune(npmlm, data, *command)
    assert first.status == 0, first.err
    assert finetune(npmlm, data, *command).out == first.out


def test_a_first_token_that_sees_a_window_only_is_no_reading_of_the_text(npmlm: CommandLine, data: Path) -> None:
    windows = {"layer_types": ["sliding_attention"] * 2, "local_attention": 4}
    tiny_encoder("modernbert", **windows).save(data.parent / "start")
    command = ("task=[sst2]", "seeds=[1]", "learning_rates=[1e-2]", "epochs=1", "max_tokens=16")
    finetune(npmlm, data, *command).refused("depends on 5 of 16 tokens")
    finetune(npmlm, data, *command, "layer=1").refused("depends on 3 of 16 tokens")
    outcome = finetune(npmlm, data, *command, "mean_pooled=true")
    assert outcome.status == 0, outcome.err


def test_bad_input_is_refused_before_anything_is_trained(npmlm: CommandLine, data: Path) -> None:
    finetune(npmlm, data, "task=[sst3]").refused("sst2")
    finetune(npmlm, data, "task=[sst2]", "seeds=[0,0]").refused("seeds")
    finetune(npmlm, data, "task=[sst2]", "layer=7").refused("labeled.layer")
    for rows in (
        [{"sentence": "a", "label": 1}] * 2,
        [],
        [{"sentence": "a", "label": "maybe"}],
        [{"text": "a", "label": 1}],
    ):
        write_rows(data / "sst2-dev.jsonl", rows)
        finetune(npmlm, data, "task=[stsb,sst2]").refused("sst2-dev.jsonl")
    write_rows(data / "stsb-dev.jsonl", [{**PAIRS[0], "score": 5.1}])
    finetune(npmlm, data, "task=[stsb]").refused("stsb-dev.jsonl")
    assert not (data.parent / "out").exists()


def test_last_and_best_epochs_are_summed_up_by_hand() -> None:
    runs = [
        [{"epoch": 1, "dev_f1": 0.5, "dev_accuracy": 0.9}, {"epoch": 2, "dev_f1": 0.4, "dev_accuracy": 0.8}],
        [{"epoch": 1, "dev_f1": 0.2, "dev_accuracy": 0.3}, {"epoch": 2, "dev_f1": 0.7, "dev_accuracy": 0.1}],
    ]
    found = rate_summary(runs, "dev_f1")
    last, best = found["last_epoch"]["dev_f1"], found["best_epoch"]
    assert (last["mean"], last["deviation"]) == (pytest.approx(0.55), pytest.approx(stdev([0.4, 0.7])))
    assert best["dev_f1"]["values"] == [0.5, 0.7]
    assert best["dev_accuracy"]["mean"] == pytest.approx(fmean([0.9, 0.1]))
    assert found["best_of_best"] == 0.7
    assert rate_summary(runs[:1], "dev_f1")["last_epoch"]["dev_f1"]["deviation"] is None


def test_words_that_were_cut_off_count_as_missed(data: Path) -> None:
    encoder = encoder_of_pairs()
    found = task_data(TASKS["conll"], str(data), max_tokens=8, limit=None)
    examples = encode_labeled(found.development[""], encoder.tokenizer)
    prepared = PreparedTask(TASKS["conll"], found, {"": examples}, 0, {})
    right = prepared.measured({"": examples.targets})
    cut = prepared.measured({"": examples.targets * (examples.slots >= 0)})
    assert right == {"dev_entity_f1": 1, "dev_accuracy": 1}
    assert cut["dev_entity_f1"] < 1

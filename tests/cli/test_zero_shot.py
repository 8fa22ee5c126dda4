"""`npmlm evaluate` on zero-shot tasks and `npmlm compare`, as a user with an own task meets them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from npm.evaluation.methods.nonparametric import NonparametricLabels
from npm.models.encoder import Encoder
from npm.models.masked_lm import attach_masked_head
from tests.helpers.command_line import CommandLine, all_bytes, write_corpus
from tests.helpers.language_models import tiny_decoder, tiny_t5

TASK = """\
suite: closed
data: {file: places.csv, columns: {text: sentence, label: kind}}
template: "{{ text }} It is near <mask>."
labels:
  - {value: north, words: [Oslo, Reykjavík]}
  - {value: south, words: [Paris]}
"""
ROWS = "sentence,kind\nThe fjord is cold.,north\nThe Seine is warm.,south\nSnow falls here.,north\n"
OPEN_TASK = """\
suite: open
data: {file: capitals.jsonl, columns: {group: kind, subject: country}, development: first_half}
template: "The capital of {{ country }} is <mask>."
"""
CLOSED_WRITERS = ["causal", "causal-pmi", "causal-knn", "t5"]
OPEN_WRITERS = ["causal", "causal-bm25", "t5"]
CAPITALS = [("Norway", "Oslo"), ("Poland", "Łódź"), ("France", "Paris"), ("Iceland", "Reykjavík")]


@pytest.fixture
def task(tmp_path: Path) -> Path:
    (tmp_path / "places.csv").write_text(ROWS, encoding="utf-8")
    file = tmp_path / "places.yaml"
    file.write_text(TASK, encoding="utf-8")
    return file


@pytest.fixture
def open_task(tmp_path: Path) -> Path:
    rows = [{"country": country, "answers": [city], "kind": "capital"} for country, city in CAPITALS]
    write_corpus(tmp_path / "capitals.jsonl", rows)
    file = tmp_path / "capitals.yaml"
    file.write_text(OPEN_TASK, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def masked_language_model(tiny_encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoder = Encoder.load(str(tiny_encoder_folder))
    attach_masked_head(encoder, str(tiny_encoder_folder), trained=False)
    folder = tmp_path_factory.mktemp("models") / "mlm"
    encoder.save(folder)
    return folder


def metrics_of(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / "metrics.json").read_bytes())
    return content


@pytest.mark.parametrize("settings", [["method=[npm,npm-single]"], ["method=npm", "zero_shot.closed.k=9"]])
def test_scoring_as_in_the_reference_sets_the_closed_side_for_methods_that_read_it(
    settings: list[str], npmlm: CommandLine, task: Path, built_index: Path, tmp_path: Path
) -> None:
    command = ["evaluate", f"task={task}", f"index={built_index}", f"out={tmp_path / 'out'}", "resamples=10"]
    npmlm(*command, "scoring=reference", "zero_shot.closed.single_tokens=false", *settings).done()  # a toy vocabulary
    scoring = metrics_of(tmp_path / "out")["tasks"]["places"]["methods"]["npm"]["facts"]["scoring"]  # type: ignore[index]
    assert (scoring["retrieval"], scoring["temperature_twice"], scoring["last_tokens"]) == ("top_k", True, 256)


def test_an_own_task_is_measured_for_every_method_that_the_settings_serve(
    npmlm: CommandLine, task: Path, built_index: Path, masked_language_model: Path, tmp_path: Path
) -> None:
    command = ["evaluate", f"task={task}", f"index={built_index}", f"zero_shot.mlm.encoder={masked_language_model}"]
    # the tiny model's encoder made the index, so the index serves it too
    command += [f"zero_shot.mlm.index={built_index}", f"out={tmp_path / 'out'}", "resamples=100"]
    outcome = npmlm(*command).done()
    found = metrics_of(tmp_path / "out")["tasks"]["places"]  # type: ignore[index]
    methods = ["npm", "npm-single", "mlm", "mlm-pmi", "mlm-fuzzy", "mlm-fuzzy-pmi"]
    methods += ["mlm-fuzzy-corpus", "mlm-knn", "majority", "random"]
    assert list(found["methods"]) == sorted(methods)
    assert found["count"] == 3
    assert found["methods"]["majority"]["accuracy"]["mean"] == pytest.approx(2 / 3)
    table = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert "| task | npm | npm-single | mlm |" in table
    assert "places" in outcome.out
    lines = (tmp_path / "out" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    first = json.loads(lines[0])
    assert (first["gold"], first["text"]) == ("north", "The fjord is cold. It is near <mask>.")
    assert {each["word"] for each in first["evidence"]} <= {"Oslo", "Reykjavík", "Paris"}
    before = all_bytes(tmp_path / "out")
    assert npmlm(*command).status == 0
    assert all_bytes(tmp_path / "out") == before
    assert not any(str(tmp_path).encode() in data for data in before.values())


def test_an_open_task_is_reported_on_all_and_on_covered_examples(
    npmlm: CommandLine, open_task: Path, built_index: Path, masked_language_model: Path, tmp_path: Path
) -> None:
    outcome = npmlm(
        "evaluate",
        f"task={open_task}",
        f"index={built_index}",
        f"zero_shot.mlm.encoder={masked_language_model}",
        f"out={tmp_path / 'out'}",
        "resamples=100",
    ).done()
    found = metrics_of(tmp_path / "out")["tasks"]["capitals"]  # type: ignore[index]
    assert list(found["methods"]) == sorted(["npm-dense", "npm-bm25", "npm-hybrid", "mlm", "majority", "random"])
    assert found["count"] == 2  # the second half
    assert found["coverage"]["all"]["subject_named"]["count"] == 2
    # the most frequent answer of the first half is none of the second
    assert found["methods"]["majority"]["all"]["micro"]["mean"] == 0
    assert "whose subject the corpus names" in outcome.out


@pytest.mark.parametrize(("suite", "methods"), [("closed", CLOSED_WRITERS), ("open", OPEN_WRITERS)])
def test_models_that_write_answer_closed_and_open_tasks_and_are_recorded(
    suite: str, methods: list[str], npmlm: CommandLine, task: Path, open_task: Path, built_index: Path, tmp_path: Path
) -> None:
    tiny_decoder(tmp_path / "gpt")
    tiny_t5(tmp_path / "t5")
    asked = task if suite == "closed" else open_task
    command = ["evaluate", f"task={asked}", f"index={built_index}", f"method=[{','.join(methods)}]", "resamples=10"]
    command += [f"zero_shot.causal.model={tmp_path / 'gpt'}", f"zero_shot.t5.model={tmp_path / 't5'}"]
    if suite == "closed":
        command += ["zero_shot.causal.knn_share=0.5"]
    npmlm(*command, f"out={tmp_path / 'out'}").done()
    found = metrics_of(tmp_path / "out")
    (result,) = found["tasks"].values()  # type: ignore[attr-defined]
    assert list(result["methods"]) == sorted(methods)
    models = {name: each["facts"]["model"]["name"] for name, each in result["methods"].items()}
    assert models == {name: "t5" if name == "t5" else "gpt" for name in methods}
    if suite == "closed":
        knn = {"share": 0.5, "temperature": 10.0, "k": 1024}
        assert (found["settings"]["causal-knn"], result["methods"]["causal-knn"]["facts"]["neighbors"]) == (knn, knn)  # type: ignore[index]
    before = all_bytes(tmp_path / "out")
    assert npmlm(*command, f"out={tmp_path / 'out'}").status == 0
    assert all_bytes(tmp_path / "out") == before


def test_a_folder_of_indexes_by_corpus(npmlm: CommandLine, task: Path, built_index: Path, tmp_path: Path) -> None:
    (tmp_path / "indexes").mkdir()
    (tmp_path / "indexes" / "cities").symlink_to(built_index)
    arguments = ["evaluate", f"task={task}", f"index={tmp_path / 'indexes'}", f"out={tmp_path / 'out'}", "method=npm"]
    npmlm(*arguments).refused("no index for task places", "cities")
    task.write_text(TASK + "corpus: cities\n", encoding="utf-8")
    assert npmlm(*arguments).status == 0


def test_two_methods_are_compared(npmlm: CommandLine, task: Path, built_index: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = [f"task={task}", f"index={built_index}", f"out={out}", "method=[npm,majority]"]
    assert npmlm("evaluate", *settings).status == 0
    outcome = npmlm("compare", out, "methods=[npm,majority]", "output=json").done()
    (compared,) = json.loads(outcome.out)["comparisons"]
    assert (compared["task"], compared["count"]) == ("places", 3)
    rates = metrics_of(out)["tasks"]["places"]["methods"]  # type: ignore[index]
    assert compared["share_a"] == pytest.approx(rates["npm"]["accuracy"]["mean"])
    assert "places" in npmlm("compare", out, out).out


def test_every_task_and_method_is_checked_before_the_first_is_asked(
    npmlm: CommandLine, task: Path, built_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = tmp_path / "absent.yaml"
    absent.write_text(TASK.replace("[Paris]", "[Zanzibar]"), encoding="utf-8")
    asked: list[str] = []
    monkeypatch.setattr(NonparametricLabels, "predict", lambda self, task, *_: asked.append(task.name))
    settings = [f"task=[{task},{absent}]", f"index={built_index}", f"out={tmp_path / 'out'}", "method=npm"]
    npmlm("evaluate", *settings).refused("Zanzibar")
    assert asked == []


def test_the_parametric_method_is_calibrated_as_the_retrieval_methods_are(
    npmlm: CommandLine, task: Path, built_index: Path, masked_language_model: Path, tmp_path: Path
) -> None:
    command = ["evaluate", f"task={task}", f"index={built_index}", f"zero_shot.mlm.encoder={masked_language_model}"]
    command += [
        f"out={tmp_path / 'out'}",
        "method=[npm,mlm-fuzzy-corpus]",
        "zero_shot.closed.calibration=corpus_scaled",
    ]
    (tmp_path / "own.json").write_text('{"north": ["Oslo"], "south": ["Paris"]}', encoding="utf-8")
    command += [f"zero_shot.closed.verbalizer={tmp_path / 'own.json'}", "zero_shot.closed.calibration=corpus_scaled"]
    npmlm(*command).done()
    npm, mlm = (each["facts"] for each in metrics_of(tmp_path / "out")["tasks"]["places"]["methods"].values())  # type: ignore[index]
    npm, mlm = (npm, mlm) if "scoring" in npm else (mlm, npm)
    assert npm["scoring"]["calibration"] == mlm["calibration"] == "corpus_scaled"
    assert npm["verbalizer"] == mlm["verbalizer"]


def test_examples_in_the_corpus_are_counted(npmlm: CommandLine, task: Path, built_index: Path, tmp_path: Path) -> None:
    copied = "Paris is the capital of France, and the Seine flows"
    (tmp_path / "places.csv").write_text(ROWS + f'"{copied}",south\n', encoding="utf-8")
    outcome = npmlm("evaluate", f"task={task}", f"index={built_index}", f"out={tmp_path / 'out'}", "method=npm").done()
    assert "places: 1 of 4 examples occur in the corpus; accuracy without" in " ".join(outcome.out.split())
    assert metrics_of(tmp_path / "out")["tasks"]["places"]["standing_in_corpus"] == 1  # type: ignore[index]


def test_all_files_that_are_missing_are_told_at_once(
    npmlm: CommandLine, built_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    settings = [f"index={built_index}", f"data_dir={tmp_path}", f"out={tmp_path / 'out'}", "method=npm"]
    npmlm("evaluate", "task=[sst2,mr]", *settings).refused("2 of 2 tasks", "sst2-test.jsonl", "mr-test.jsonl")


@pytest.mark.parametrize(
    ("suite", "settings"),
    [
        ("open", ["method=[npm,npm-dense]", "fill.retrieval=bm25"]),
        ("open", ["method=[npm-dense,npm-bm25]", "scoring=reference"]),
        ("open", ["scoring=reference"]),
        ("closed", ["zero_shot.closed.k=5", "zero_shot.closed.retrieval=top_k", "method=[npm,random]"]),
        *(
            ("closed", ["method=[npm,npm-single]", "zero_shot.closed.temperature=0.001", *more])
            for more in (
                [],
                ["zero_shot.closed.calibration=none", "zero_shot.closed.label_mean=sum"],
                ["zero_shot.closed.calibration=prompt", "zero_shot.closed.combination=sum"],
                ["zero_shot.closed.calibration=corpus_scaled"],
                ["zero_shot.closed.retrieval=top_k"],
            )
        ),
    ],
)
def test_settings_that_some_method_reads_and_the_least_temperature_are_taken(
    suite: str, settings: list[str], npmlm: CommandLine, task: Path, open_task: Path, built_index: Path, tmp_path: Path
) -> None:
    asked = task if suite == "closed" else open_task
    command = ["evaluate", f"task={asked}", f"index={built_index}", f"out={tmp_path / 'out'}", "resamples=10"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        outcome = npmlm(*command, *settings)
    assert outcome.status == 0, outcome.err


def test_a_missing_index_is_noted_unless_methods_are_named(npmlm: CommandLine, task: Path, tmp_path: Path) -> None:
    command = ["evaluate", f"task={task}", f"out={tmp_path / 'out'}", "resamples=10"]
    outcome = npmlm(*command).done()
    assert "note: without index=DIR" in outcome.err
    assert "without index=DIR" not in npmlm(*command, "method=[majority,random]").err


def test_results_of_another_index_stay(npmlm: CommandLine, task: Path, built_index: Path, tmp_path: Path) -> None:
    command = ["evaluate", f"task={task}", "method=majority", f"out={tmp_path / 'out'}", "resamples=10"]
    assert npmlm(*command).status == 0
    npmlm(*command, f"index={built_index}").refused("results of something else", "sources.places.index")

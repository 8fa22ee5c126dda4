"""Facts that change: the synthetic set, and the study that asks it of an old corpus, a new one, and both."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npm.cli.main import main
from npm.core.errors import ArtifactError, SettingError
from npm.evaluation.analyses.temporal import TemporalStudy, agreement, run_temporal, temporal_table
from npm.evaluation.tasks.data import read_task
from npm.evaluation.tasks.synthetic_time import DATES, KINDS, write_synthetic_time
from npm.evaluation.tasks.task_file import load_task
from scripts.temporal import main as temporal_script
from tests.evaluation.tasks.task_samples import SHIPPED, written
from tests.helpers.command_line import all_bytes

METHOD = "npm-hybrid"


def test_half_of_the_facts_of_each_kind_change_and_names_are_used_once(tmp_path: Path) -> None:
    made = write_synthetic_time(tmp_path, facts=40)
    read = read_task(load_task(made.task, folder=SHIPPED))
    assert len(read.examples) == 40
    for kind in KINDS:
        own = [each.subsets for each in read.examples if each.group == kind.relation]
        assert own.count(("changed",)) == own.count(("unchanged",)) == 5
    names = [name for each in read.examples for name in (*each.answers, *each.old_answers)]
    assert len(set(names)) == len(names) == 60
    passages = {
        date: [json.loads(line) for line in file.read_text("utf-8").splitlines()] for date, file in made.corpora.items()
    }
    for example, before, after in zip(read.examples, *passages.values(), strict=True):
        assert example.answers[0] in after["text"] and (before["date"], after["date"]) == (2019, 2022)
        assert (before["text"] == after["text"]) == (example.subsets == ("unchanged",))
        assert all(old in before["text"] and old not in after["text"] for old in example.old_answers)
        question = example.text.replace(before["title"], "").replace("<mask>", "").strip(" .")
        assert question not in after["text"]


def test_the_set_is_a_function_of_seed_and_size(tmp_path: Path) -> None:
    for name, options in (("a", {}), ("b", {}), ("c", {"seed": 1})):
        write_synthetic_time(tmp_path / name, facts=8, **options)
    assert all_bytes(tmp_path / "a") == all_bytes(tmp_path / "b") != all_bytes(tmp_path / "c")
    with pytest.raises(ValueError, match="multiple of 8"):
        write_synthetic_time(tmp_path / "d", facts=20)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> TemporalStudy:
    """The whole study over 24 facts, with the shipped encoder."""
    folder = tmp_path_factory.mktemp("temporal")
    made = write_synthetic_time(folder / "set", facts=24)
    dumps = [f"{name}={made.corpora[date]}" for name, date in zip(("old", "new"), DATES, strict=True)]
    settings = [f"out={folder / 'out'}", f"task={made.task}", *dumps, f"method=[{METHOD}]", "resamples=20"]
    asked = TemporalStudy.of([*settings, "fill.reading_share=0"], task_folder=SHIPPED)
    assert run_temporal(asked, main) == 0
    return asked


def scores(study: TemporalStudy, row: str) -> tuple[float, float, float]:
    """Exact match on unchanged and on changed facts, and the share of old answers."""
    (metrics,) = json.loads((study.folder(row) / "metrics.json").read_text("utf-8"))["tasks"].values()
    method: dict[str, Any] = metrics["methods"][METHOD]
    unchanged, changed = (method["subsets"][name]["all"]["micro"]["mean"] for name in ("unchanged", "changed"))
    held = {name: metrics["subsets"][name]["coverage"]["answer_held"]["share"] for name in ("unchanged", "changed")}
    assert held == {"unchanged": 1.0, "changed": 0.0 if row == "2019" else 1.0}
    return unchanged, changed, method["old_answers"]["micro"]["mean"]


def test_a_changed_corpus_changes_the_answers_of_changed_facts_and_leaves_the_others(study: TemporalStudy) -> None:
    unchanged, changed, stale = scores(study, "2019")
    # of twelve questions each; the shipped encoder answers a sixth to a half of such questions
    assert unchanged > 0.1 and changed == 0 and stale > 0.1
    for row in ("2022", "2022, by add replace=true", "both, date=2022"):
        now = scores(study, row)
        assert abs(now[0] - unchanged) <= 0.1 and now[1] > 0.1 and now[2] == 0
    asked_before = scores(study, "both, date<=2019, asked about 2019")
    assert asked_before[1] > 0.1 and asked_before[2] == 0


def test_a_changed_index_answers_as_a_rebuilt_one(study: TemporalStudy) -> None:
    same, count = agreement(study.folder("2022"), study.folder("2022, by add replace=true"))
    assert same == count == 24
    assert agreement(study.folder("2019"), study.folder("2022"))[0] < 24


def test_the_table_has_a_row_for_each_corpus_and_what_is_finished_is_not_run_again(study: TemporalStudy) -> None:
    table = (study.out / "table.md").read_text("utf-8")
    assert all(f"| {row} | {METHOD} |" in table for row in study.asked)
    assert "answers 24 of 24 questions" in table and "add replace=true: " in table
    asked: list[list[str]] = []
    assert run_temporal(study, lambda arguments: asked.append(arguments) or 0) == 0
    assert [arguments[0] for arguments in asked] == ["build"] * 3  # which themselves find that nothing is left


def test_a_study_that_was_stopped_before_its_change_changes_the_index_when_it_is_repeated(
    study: TemporalStudy, tmp_path: Path
) -> None:
    shutil.copytree(study.out, tmp_path / "out")
    again, row = replace(study, out=tmp_path / "out"), "2022, by add replace=true"
    for made in (again.out / "replaced", again.folder(row)):
        shutil.rmtree(made)

    def stopped_at_add(arguments: list[str]) -> int:
        if arguments[0] == "add":
            raise KeyboardInterrupt
        return main(arguments)

    with pytest.raises(KeyboardInterrupt):
        run_temporal(again, stopped_at_add)
    assert run_temporal(again, main) == 0
    assert agreement(again.folder("2022"), again.folder(row)) == (24, 24)
    assert scores(again, row) == scores(study, row)


def made_by_hand(study: TemporalStudy, *, stopped_at: str = "") -> dict[str, list[float | None]]:
    """What changes.json says after builds of one byte; the study ends at `stopped_at`, or before its first question."""

    def command(arguments: list[str]) -> int:
        folder = Path(next(each for each in arguments if each.startswith("index=")).removeprefix("index="))
        folder.mkdir(exist_ok=True)
        if arguments[0] == "evaluate" or stopped_at in (arguments[0], folder.name):
            return 3
        (folder / "vectors").write_bytes(b"12" if arguments[0] == "add" else b"1")
        return 0

    assert run_temporal(study, command) == 3
    file = study.out / "changes.json"
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def test_the_time_of_the_rebuild_is_that_of_the_run_that_built(tmp_path: Path) -> None:
    study = TemporalStudy.of([f"out={tmp_path}"], task_folder=SHIPPED)
    built = made_by_hand(study, stopped_at="add")
    ((seconds, size),) = built.values()
    assert seconds is not None and size == 1
    known = 86400.0  # no build of one byte takes a day: what is read afterwards was not measured again
    (tmp_path / "changes.json").write_text(json.dumps({"rebuild": [known, 1]}), "utf-8")
    for _ in range(2):
        costs = made_by_hand(study)
        assert costs["rebuild"] == [known, 1] and costs["add replace=true"][1] == 1


def test_the_time_of_a_rebuild_that_was_interrupted_is_not_known_and_the_table_says_so(
    study: TemporalStudy, tmp_path: Path
) -> None:
    own = TemporalStudy.of([f"out={tmp_path / 'own'}"], task_folder=SHIPPED)
    assert made_by_hand(own, stopped_at="new") == {}
    costs = made_by_hand(own)
    assert costs["rebuild"] == [None, 1] and costs["add replace=true"][0] is not None
    shutil.copytree(study.out, tmp_path / "out")
    (tmp_path / "out" / "changes.json").write_text(json.dumps(costs), "utf-8")
    table = temporal_table(replace(study, out=tmp_path / "out"))
    assert "rebuild: time not known, 0.0 MB." in table


def test_other_settings_do_not_mix_with_results_that_are_there(study: TemporalStudy) -> None:
    other = replace(study, evaluate=(*study.evaluate, "fill.bm25_blocks=1"))
    with pytest.raises(SettingError, match="holds results"):
        run_temporal(other, lambda _: 0)


def test_a_change_of_builds_does_not_mix_with_what_was_built_before_even_if_the_indexes_are_gone(
    study: TemporalStudy, tmp_path: Path
) -> None:
    shutil.copytree(study.out, tmp_path / "out")
    own = replace(study, out=tmp_path / "out")
    for name in ("old", "new", "both", "results"):
        shutil.rmtree(own.out / name)
    rebuilt = replace(own, build=(*own.build, "blocks.max_block_tokens=64"))
    with pytest.raises(SettingError, match="holds indexes"):
        run_temporal(rebuilt, lambda _: 0)
    asked_otherwise = replace(own, evaluate=(*own.evaluate, "fill.bm25_blocks=1"))
    assert run_temporal(asked_otherwise, lambda _: 5) == 5  # nothing was asked yet


def test_an_index_is_changed_again_where_it_is_not_known_that_it_was(study: TemporalStudy, tmp_path: Path) -> None:
    shutil.copytree(study.out, tmp_path / "out")
    own = replace(study, out=tmp_path / "out")
    for gone in ("changes.json", "replaced"):
        path = own.out / gone
        path.unlink() if path.is_file() else shutil.rmtree(path)
        verbs: list[str] = []
        assert run_temporal(own, lambda given, verbs=verbs: verbs.append(given[0]) or 0) == 0
        assert verbs == ["build"] * 3 + ["add"]
    (own.out / "changes.json").write_text('{"rebuild": 3}', "utf-8")
    with pytest.raises(ArtifactError, match="of rebuild, got 3"):
        run_temporal(own, lambda _: 0)


def test_commands_that_fail_end_the_study_with_their_status(tmp_path: Path) -> None:
    study = TemporalStudy.of([f"out={tmp_path}", "build.encoder=x"], task_folder=SHIPPED)
    assert run_temporal(study, lambda _: 2) == 2 and study.build == ("encoder=x",)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["bogus"], "bogus"),
        (["task=templama"], "task=templama"),
        (["task=nq", "old=a.jsonl", "new=b.jsonl"], "nq"),
        (["task=templama", "old=a.jsonl", "new=b.jsonl", "build.corpus.max_documents=9"], "build.corpus.max_documents"),
        (["task=templama", "old=a.jsonl", "new=b.jsonl", "zero_shot.date=2019"], "zero_shot.date"),
        (["index=mine"], "index"),
        (["suite=open"], "suite"),
        (["build.stage=encode"], "build.stage"),
        (["build.corpus.max_documents=9"], "build.corpus.max_documents"),
        (["resamples=20", "resamples=30"], "resamples=20 resamples=30"),
        (["out="], "out="),
        (["task=templama", "old=a.jsonl", "new=b.jsonl", "index=mine", "fill.where=[lang=en]"], "index, fill.where"),
    ],
)
def test_a_study_that_cannot_begin_is_refused(tmp_path: Path, arguments: list[str], part: str) -> None:
    with pytest.raises(SettingError) as raised:
        TemporalStudy.of([f"out={tmp_path}", *arguments], task_folder=SHIPPED)
    assert part in str(raised.value) and not [*tmp_path.iterdir()]


def test_a_task_whose_subsets_are_not_those_of_the_table_is_refused_before_the_work(tmp_path: Path) -> None:
    made = write_synthetic_time(tmp_path, facts=8)
    made.task.write_text(made.task.read_text("utf-8").replace("unchanged: unchanged, ", ""), "utf-8")
    with pytest.raises(SettingError, match="subsets: "):
        TemporalStudy.of([f"task={made.task}", "old=a.jsonl", "new=b.jsonl"], task_folder=SHIPPED)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["method=[foo]"], "unknown method 'foo'"),
        (["method=[majority]"], "method majority needs"),
        (
            ["method=[mlm]", "zero_shot.mlm.encoder=absent"],
            "zero_shot.mlm.encoder: ",
        ),
        (["data_dir=absent"], "data_dir=absent is not a folder"),
        (["build.nosuch=1"], "nosuch"),
        (["out=file"], "cannot write "),
    ],
)
def test_an_evaluation_that_would_be_refused_is_refused_before_anything_is_built(
    arguments: list[str],
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("scripts.temporal.npmlm", lambda _: pytest.fail("a command was run"))
    Path("file").write_text("", "utf-8")
    assert temporal_script(arguments if "out=file" in arguments else ["out=out", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith("temporal: error: ") and part in told and not Path("out/study.json").exists()


def test_a_dump_that_has_changed_does_not_mix_with_what_was_built_of_it_before(
    study: TemporalStudy, tmp_path: Path
) -> None:
    shutil.copytree(study.out, tmp_path / "out")
    dump = shutil.copy(study.dumps[1], tmp_path / "new.jsonl")
    own = replace(study, out=tmp_path / "out", dumps=(study.dumps[0], str(dump)))
    (own.out / "study.json").unlink()
    assert run_temporal(own, lambda _: 0) == 0
    Path(dump).write_text(Path(dump).read_text("utf-8").replace("president", "leader"), "utf-8")
    shutil.rmtree(own.out / "new")
    with pytest.raises(SettingError, match=r"files\.new\.new\.jsonl="):
        run_temporal(own, lambda _: 0)
    with pytest.raises(SettingError, match="of other settings or files"):
        run_temporal(replace(own, dates=("2018", "2022"), dumps=study.dumps), lambda _: 0)


def test_documents_of_two_dumps_stand_beside_each_other_with_their_dates(tmp_path: Path) -> None:
    from npm.evaluation.analyses.temporal import write_both

    names = {"old": "old, first.jsonl", "new": "new.jsonl", "newer": "newer.jsonl"}
    dumps = [written(tmp_path, [{"id": text, "title": "A", "text": text}], name) for text, name in names.items()]
    given = (str(dumps[0]), f"[{dumps[1]}, '{dumps[2]}']")  # as builds read corpus.files=
    study = TemporalStudy(tmp_path, "t", ("2019", "2022-05"), given, (), ())
    write_both(study, tmp_path / "both.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "both.jsonl").read_text("utf-8").splitlines()]
    assert [(row["id"], row["text"], row["date"]) for row in rows] == [
        ("old@2019", "old", 2019),
        ("new@2022-05", "new", "2022-05"),
        ("newer@2022-05", "newer", "2022-05"),
    ]

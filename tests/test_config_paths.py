"""Paths reach the code as they were written: hydra's grammar and interpolation never see them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from npm.cli.registry import MODULES, find_verb
from npm.cli.settings import compose_settings
from npm.core.errors import SettingError

ODD_PATHS = [
    "a,b",
    "it's",
    'say "x"',
    "k=5",
    "f(x",
    "a/~/home",
    "$HOME",
    "${x}",
    "${oc.env:HOME}",
    "#1",
    "list[0]",
    " two  spaces ",
    "back\\slash",
    "Łódź 🜨",
    "{a: b}",
    "a:b@c|d;e!",
    "null",
    "???",
]


@pytest.mark.parametrize("path", ODD_PATHS)
def test_config_takes_a_path_as_it_is_written(path: str) -> None:
    filled = compose_settings("fill", [f"index={path}", f"encoder={path}", f"texts={path}"])
    assert filled == find_verb("fill").root(index=path, encoder=path, texts=path)
    assert compose_settings("build", ["index=i", f"encoder={path}"]).encoder == path
    assert compose_settings("build", ["index=i", f"corpus.files={path}"]).corpus.files == [path]
    assert compose_settings("train", [f"run={path}", f"encoder={path}"]).run == path
    evaluation = compose_settings("evaluate", [f"out={path}", f"data_dir={path}", f"index={path}"])
    assert (evaluation.out, evaluation.data_dir, evaluation.index) == (path, path, path)


@pytest.mark.parametrize(("first", "second"), list(itertools.pairwise(ODD_PATHS)))
def test_config_takes_lists_of_paths_that_hold_anything(first: str, second: str) -> None:
    def quoted(path: str, mark: str) -> str:
        return mark + path.replace("\\", "\\\\").replace(mark, f"\\{mark}") + mark

    for mark in ("'", '"'):
        files = f"corpus.files=[{quoted(first, mark)}, {quoted(second, mark)}]"
        assert compose_settings("build", ["index=i", files]).corpus.files == [first, second]
    plain = [path for path in (first, second) if path == path.strip() and not set(path) & set(",'\"")]
    if plain:
        assert compose_settings("build", ["index=i", f"corpus.files=[{','.join(plain)}]"]).corpus.files == plain


def test_config_string_settings_are_paths_or_texts_and_each_kind_is_known_by_its_type() -> None:
    declared = {name: item for verb in map(find_verb, reversed(MODULES)) for name, item in verb.settings.items()}
    paths = {name for name, item in declared.items() if item.is_path}
    assert paths == {
        *("corpus.files", "files", "sentences.files", "evaluation.files", "texts", "ids_file"),
        *("index", "out", "run", "data_dir", "sts_dir", "zero_shot.mlm.index", "corruption.collocations.vocabulary"),
        *(
            "encoder",
            "zero_shot.mlm.encoder",
            "zero_shot.causal.model",
            "zero_shot.t5.model",
            "sts.before.encoder",
            "objective.block_teacher.encoder",
            "objective.span_supervision.reader",
        ),
        *("start.from_run", "packed", "key_file", "examples", "log", "unanswered", "task"),
        *("table", "known", "treebank", "target", "grammar.file", "labeled.files", "questions", "others"),
        *("donor", "reader", "fill.reader", "reading.questions", "tokenizer"),
    }
    texts = {name for name, item in declared.items() if item.is_text and not item.is_path and "." not in name}
    assert texts == {
        *("about", "column", "device", "edit", "host", "known_column", "labels", "shard", "template", "trusted_header")
    }
    lists = {name for name, item in declared.items() if item.kind == list[str]}
    assert {"corpus.files", "corpus.kept_fields", "fill.where", "task", "ids"} <= lists


def test_config_reads_a_tilde_at_the_beginning_of_a_path_as_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of, somebody")
    home = Path("/home/of, somebody")
    settings = compose_settings("build", ["index=~/index", "encoder=~", "corpus.files=[~/a.jsonl, 'b/~']"])
    assert settings.index == str(home / "index")
    assert settings.encoder == str(home)
    assert settings.corpus.files == [str(home / "a.jsonl"), "b/~"]


@pytest.mark.parametrize("content", [None, "", "# only a remark\n", "a: [", "- a list"])
def test_config_refuses_an_experiment_file_without_settings(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(SettingError, match=r"mine\.yaml"):
        compose_settings("train", ["run=r", f"experiment={file}"])


def test_config_of_an_experiment_file_starts_from_the_shipped_ones_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [mlm_scratch, _self_]\nschedule: {learning_rate: 1.0e-4}\n", encoding="utf-8")
    mine, shipped = (compose_settings("train", ["run=r", f"experiment={name}"]) for name in (file, "mlm_scratch"))
    assert mine.schedule.learning_rate == 1e-4 and mine.schedule.max_steps == shipped.schedule.max_steps
    assert mine.start.fresh == shipped.start.fresh and mine.start.fresh.window_tokens == 16
    file.write_text("schedule: {learning_rate: 1.0e-4}\ndefaults: [_self_, mlm_scratch]\n", encoding="utf-8")
    assert compose_settings("train", ["run=r", f"experiment={file}"]) == shipped
    for wrong in ("defaults: [nowhere]", "defaults: {size: mini}", f"defaults: ['{file}']"):
        file.write_text(wrong, encoding="utf-8")
        with pytest.raises(SettingError, match="experiment"):
            compose_settings("train", ["run=r", f"experiment={file}"])

"""Paths reach the code as they were written: hydra's grammar and interpolation never see them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from npm.cli.help import declared_settings
from npm.cli.settings import compose_settings
from npm.cli.verbs import VERBS
from npm.core.errors import SettingError
from tests.helpers.command_line import CommandLine

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
    for mark in ("", "++"):
        assert compose_settings("fill", [f"{mark}index={path}", f"encoder={path}", f"texts={path}"]) == VERBS[
            "fill"
        ].root(index=path, encoder=path, texts=path)
    assert compose_settings("build", ["index=i", f"encoder={path}"]).encoder == path
    assert compose_settings("build", ["index=i", f"corpus.files={path}"]).corpus.files == [path]
    assert compose_settings("train", [f"run={path}", f"encoder={path}"]).run == path
    evaluation = compose_settings("evaluate", [f"out={path}", f"demo.questions={path}", f"index={path}"])
    assert (evaluation.out, evaluation.demo.questions, evaluation.index) == (path, path, path)


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
    declared = {name: item for verb in VERBS.values() for name, item in declared_settings(verb.root).items()}
    paths = {name for name, item in declared.items() if item.is_path}
    assert paths == {
        *("corpus.files", "sentences.files", "evaluation.files", "texts", "demo.questions", "ids_file"),
        *("index", "out", "run", "data_dir", "sts_dir", "zero_shot.mlm.index", "corruption.collocations.vocabulary"),
        *(
            "encoder",
            "zero_shot.mlm.encoder",
            "zero_shot.causal.model",
            "zero_shot.t5.model",
            "sts.before.encoder",
            "word_sense.encoders",
            "objective.block_teacher.encoder",
        ),
        *("start.from_run", "packed", "key_file", "examples", "log", "address", "corpus"),
        *("treebank", "target", "grammar.file", "labelled.files", "questions"),
        *("donor", "tokenizer", "parameters.before", "embeddings.groups", "vocabulary.other"),
        *("trained_on", "unseen_words.trained_on", "word_sense.pairs"),
    }
    texts = {name for name, item in declared.items() if item.is_text and "." not in name}
    assert texts == {"device", "shard", "host", "word", "colour_by"}
    lists = {name for name, item in declared.items() if item.kind == list[str]}
    assert {"corpus.files", "corpus.kept_fields", "fill.where", "task", "ids"} <= lists


def test_config_reads_a_tilde_at_the_beginning_of_a_path_as_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of, somebody")
    home = Path("/home/of, somebody")
    settings = compose_settings("build", ["index=~/index", "encoder=~", "corpus.files=[~/a.jsonl, 'b/~']"])
    assert settings.index == str(home / "index")
    assert settings.encoder == str(home)
    assert settings.corpus.files == [str(home / "a.jsonl"), "b/~"]


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("index", ("fill", "text <mask>")),
        ("index", ("build",)),
        ("index", ("verify",)),
        ("run", ("train",)),
        ("out", ("evaluate",)),
        ("texts", ("fill", "index=i")),
        ("corpus.files", ("build", "index=i")),
    ],
)
def test_config_refuses_a_path_that_no_file_system_takes(
    key: str, command: tuple[str, ...], npmlm: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for path, reason in ((tmp_path / ("x" * 300), "too long"), (tmp_path / "circle" / "inside", "links")):
        npmlm(command[0], f"{key}={path}", *command[1:]).refused(key, reason)
    assert [path.name for path in tmp_path.iterdir()] == ["circle"]


@pytest.mark.parametrize(
    ("content", "got"),
    [
        ("", "nothing"),
        ("# only a remark\n", "nothing"),
        ("a: &a [x, x]\n" + "".join(f"k{n}: &k{n} [*a, *a, *a]\n" for n in range(9)), "27 aliases, more than 16"),
        ("# " + "x" * (1 << 18), "bytes, more than 262144"),
        ("a: [", "while parsing"),
    ],
    ids=["empty", "remark", "aliases", "long", "broken"],
)
def test_config_refuses_an_experiment_file_that_says_nothing_or_too_much(
    content: str, got: str, tmp_path: Path
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SettingError, match="must be a YAML file") as caught:
        compose_settings("train", ["run=r", f"experiment={file}"])
    assert got in str(caught.value)

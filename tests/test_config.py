"""Settings: every file composes, every field is declared once, described and read, and nothing wrong passes."""

from __future__ import annotations

import ast
import dataclasses
import re
import typing
from enum import Enum
from pathlib import Path

import pytest
import yaml

from npm.cli.registry import MODULES, declared_settings, find_verb
from npm.cli.settings import compose_settings
from npm.core.errors import UserError
from npm.core.settings import config_folder
from npm.evaluation.tasks import ClosedScoring
from npm.objectives.registry import OBJECTIVES
from npm.retrieval.settings import FillSettings, Retrieval
from tests.helpers.command_line import REPOSITORY, CommandLine

ROOTS = {name: find_verb(name).root for name in MODULES}
REQUIRED = {verb: "index=i" for verb in MODULES if verb not in ("estimate", "compare", "calibrate")} | {
    "train": "run=r",
    "evaluate": "out=o",
    "finetune": "out=o",
    "edit": "out=o",
    "generate": "out=o",
    "tokenizer": "out=o",
    "plot": "out=o",
    "geometry": "data_dir=d",
}
EXPERIMENTS = sorted(path.stem for path in (REPOSITORY / "configs" / "experiment").glob("*.yaml"))


def settings_of(verb: str, *overrides: str) -> typing.Any:
    return compose_settings(verb, [*needed_by(verb), *overrides])


def needed_by(verb: str) -> list[str]:
    return [REQUIRED[verb]] if verb in REQUIRED else []


def test_config_files_on_disk_are_those_of_groups() -> None:
    assert {path.name for path in config_folder().iterdir() if path.is_dir()} == {
        "cluster",
        "experiment",
        "scoring",
        "size",
        "task",
        "vectors",
    }
    assert EXPERIMENTS


@pytest.mark.parametrize("verb", MODULES)
def test_config_of_every_verb_composes_to_its_own_defaults(verb: str) -> None:
    composed = settings_of(verb)
    given = dict(setting.split("=") for setting in needed_by(verb))
    assert composed == find_verb(verb).root(**given)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_config_of_every_experiment_composes_for_train_and_says_how_to_run_it(experiment: str) -> None:
    settings = settings_of("train", f"experiment={experiment}")
    content = (config_folder() / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8")
    assert settings != settings_of("train")
    assert f"npmlm train experiment={experiment}" in "\n".join(content.splitlines()[:5])
    given = yaml.safe_load(content)
    for name, default in flat(dataclasses.asdict(settings_of("train"))).items():
        if name in (names := flat(given)) and name.split(".")[0] != "schedule":
            assert names[name] != default, f"{name} repeats its default"


def test_config_size_overrides_an_experiment_and_a_setting_of_the_command_line_overrides_both() -> None:
    given = ("experiment=mlm_scratch", "size=mini", "start.fresh.layers=2")
    fresh = settings_of("train", *given).start.fresh
    assert (fresh.layers, fresh.dimensions, fresh.attention_heads) == (2, 384, 12)
    assert (fresh.window_tokens, fresh.vocabulary_size) == (16, 8192)  # those of the experiment
    assert settings_of("train", *reversed(given)).start.fresh == fresh
    weights = []
    for size in ("mini", "small", "base"):
        fresh = settings_of("train", f"size={size}").start.fresh
        weights.append(fresh.layers * fresh.dimensions**2)
    assert weights == sorted(weights) and weights[0] > 0
    with pytest.raises(UserError, match=r"size 'huge'.*mini"):
        settings_of("train", "size=huge")


def flat(tree: dict[str, typing.Any], prefix: str = "") -> dict[str, typing.Any]:
    found: dict[str, typing.Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def test_config_scoring_reference_and_default_are_those_of_the_code() -> None:
    reference = FillSettings.reference()
    for verb, name, expected in (("fill", "reference", reference), ("fill", "default", FillSettings())):
        composed = settings_of(verb, f"scoring={name}")
        for item in dataclasses.fields(FillSettings):
            assert getattr(composed, item.name) == getattr(expected, item.name)
    assert (reference.retrieval, reference.bm25_blocks) == (Retrieval.bm25, 3)
    assert (reference.lexical_weight, reference.reader) == (0, "none")
    assert settings_of("evaluate", "scoring=reference").fill == reference
    assert settings_of("evaluate", "scoring=default").fill == settings_of("evaluate").fill
    closed = settings_of("evaluate", "scoring=reference").zero_shot.closed
    assert (closed.k, closed.temperature, closed.temperature_twice, closed.last_tokens) == (4096, 5.0, True, 256)
    assert settings_of("evaluate", "scoring=default").zero_shot.closed == ClosedScoring()
    changed = settings_of("evaluate", "scoring=reference", "zero_shot.closed.k=7").zero_shot.closed
    assert changed == dataclasses.replace(closed, k=7)
    changed = settings_of("fill", "scoring=reference", "scoring.temperature=2", "retrieval=dense")
    assert changed.scoring == dataclasses.replace(reference.scoring, temperature=2.0)
    assert changed.retrieval is Retrieval.dense
    changed = settings_of("evaluate", "scoring=reference", "fill.bm25_blocks=5").fill
    assert changed == dataclasses.replace(reference, bm25_blocks=5)


@pytest.mark.parametrize("verb", MODULES)
def test_config_refuses_an_unknown_setting(
    verb: str, npmlm: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for key in ("bogus", "+k", "hydra.run.dir", "corpus.bogus", "scoring.bogus"):
        npmlm(verb, *needed_by(verb), f"{key}=1").refused(f"unknown setting {key}")
    assert "Traceback" in npmlm(verb, *needed_by(verb), "bogus=1", "debug=true").err
    assert list(tmp_path.iterdir()) == []


def numeric_settings() -> list[tuple[str, str]]:
    """Full key of every setting that is a number, with a verb that has it."""
    numbers = (int, float, int | None, float | None)
    declared = [(verb, name, item) for verb in MODULES for name, item in find_verb(verb).settings.items()]
    # the first verb is enough for a setting of the same class under the same key: the rest is the same code again
    first = {(name, item.owner): verb for verb, name, item in reversed(declared) if item.kind in numbers}
    return sorted((verb, name) for (name, _), verb in first.items())


SIGNED = ("length_exponent",)
"""Settings for which -1 is a value like any other."""


@pytest.mark.parametrize(("verb", "key"), numeric_settings())
def test_config_refuses_numbers_out_of_range_with_the_full_key(verb: str, key: str) -> None:
    value = -100 if key.endswith(SIGNED) else -1
    with pytest.raises(UserError) as caught:
        settings_of(verb, f"{key}={value}")
    assert key in str(caught.value)


def test_config_choices_are_written_as_they_are_declared() -> None:
    """Members have lower-case names equal to their values, so that what --help shows is what can be given."""
    composed_once = set()  # a setting of the same name and kind in another verb is composed by the same code
    for verb, root in ROOTS.items():
        for name in find_verb(verb).settings:
            owner: typing.Any = root
            for part in name.split("."):
                owner = typing.get_type_hints(owner)[part]
            if isinstance(owner, type) and issubclass(owner, Enum) and (name, owner) not in composed_once:
                composed_once.add((name, owner))
                assert all(member.name == member.value == member.name.lower() for member in owner)
                last = list(owner)[-1]  # all are composed by name alike
                composed = try_compose(verb, f"{name}={last.name}")
                assert composed is None or composed == last, name


def try_compose(verb: str, override: str) -> object:
    """The value that an override gives; None where it contradicts a default."""
    try:
        value: typing.Any = settings_of(verb, override)
    except UserError as error:
        assert re.search("exclude|require|needs|exactly one|must be", str(error))
        return None
    for part in override.partition("=")[0].split("."):
        value = getattr(value, part)
    return typing.cast(object, value)


def names_read() -> set[str]:
    """Every attribute that our code reads; what a dataclass does to check its own fields does not count."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef) and child.name == "__post_init__":
                continue
            if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Load):
                found.add(child.attr)
            visit(child)

    for file in (file for folder in ("npm", "index", "studies") for file in (REPOSITORY / folder).rglob("*.py")):
        visit(ast.parse(file.read_text(encoding="utf-8")))
    return found | {f"{name}_weight" for name in OBJECTIVES}  # read by the names of the registry


def test_config_fields_are_all_read_somewhere() -> None:
    read = names_read()
    unread = {
        f"{verb}: {name}"
        for verb, root in ROOTS.items()
        for name in declared_settings(root)
        if name.rsplit(".", 1)[-1] not in read
    }
    assert not unread


@pytest.mark.parametrize("verb", MODULES)
def test_config_help_all_lists_every_setting_with_its_sentences_and_default(verb: str, npmlm: CommandLine) -> None:
    for arguments in ([verb, "--help", "all"], [verb, "k=1", "-h", "all"]):
        outcome = npmlm(*arguments)
        assert (outcome.status, outcome.err) == (0, "")
    shown = " ".join(outcome.out.split())
    for name, setting in find_verb(verb).settings.items():
        assert len(setting.text) > 10, f"{name} has no docstring"
        assert f"\n  {name} =" in outcome.out
        assert setting.text in shown


@pytest.mark.parametrize("verb", MODULES)
@pytest.mark.parametrize("columns", [40, 80])
def test_config_help_of_a_verb(verb: str, columns: int, npmlm: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    declared, first = find_verb(verb).settings, find_verb(verb).first
    assert len(first) == len(set(first)) <= 13
    assert set(first) <= set(declared)
    assert find_verb(verb).required in (None, *first)
    outcome = npmlm(verb, "--help")
    assert (outcome.status, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert all(len(line) <= columns or " " not in line.strip() for line in lines)  # a word is not broken
    shown = " ".join(outcome.out.split())
    for name in first:
        sentence = declared[name].text.partition(". ")[0].removesuffix(".")
        assert " ".join(f"{name} = {declared[name].shown} {sentence}".split()) in shown
    assert shown.endswith(f"npmlm {verb} --help all shows all {len(declared)} settings.")
    assert sum(re.match(r"  [\w.]+ =", line) is not None for line in lines) == len(first)


def test_config_ranks_but_the_first_give_their_number(npmlm: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, begins in (("0", "npmlm: error: unknown verb"), ("1", "npmlm: error on rank 1: unknown verb 'conquer'")):
        monkeypatch.setenv("RANK", rank)
        outcome = npmlm("conquer")
        assert outcome.status == 2 and outcome.err.startswith(begins)


def test_config_help_and_version_need_no_verb_and_an_unknown_verb_is_refused(npmlm: CommandLine) -> None:
    for arguments in ([], ["--help"], ["-h"], ["help"]):
        outcome = npmlm(*arguments).done()
        assert all(verb in outcome.out for verb in MODULES)
    version = npmlm("--version").done()
    assert version.out.startswith("npmlm ")
    assert "\n  schedule.max_steps = 1000 " in npmlm("train", "--help", "all").out  # of the verb, not of the group
    npmlm("conquer").refused("unknown verb 'conquer'")
    for verb in set(MODULES) - {"fill", "find", "trace", "compare", "plot"}:  # texts, and folders
        npmlm(verb, *needed_by(verb), "text").refused("key=value")
    for verb, needed in REQUIRED.items():
        npmlm(verb, stdin=b"").refused(f"{needed.partition('=')[0]} is required, such as ")


@pytest.mark.parametrize("text", ["a,b", "it's", "{a: b}", "[x", "body, plain"])
def test_config_takes_a_text_as_it_is_written(text: str) -> None:
    assert settings_of("build", f"corpus.text_field={text}").corpus.text_field == text

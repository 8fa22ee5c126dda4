"""What a reader copies from the README works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from npm.cli.main import split_arguments
from npm.cli.registry import find_verb
from npm.cli.settings import compose_settings
from npm.core.artifact import read_manifest
from tests.helpers.command_line import CommandLine
from tests.helpers.shell_blocks import pages_of_docs
from tests.test_imports import ORDER

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO_INDEX = "runs/demo/index"


def blocks(language: str, page: str = README) -> list[str]:
    """The fenced code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


PAGES = [path.read_text(encoding="utf-8") for path in pages_of_docs()]


def commands() -> Iterator[list[str]]:
    """Every `npmlm` command line of the README and of the pages in docs, as words."""
    shown = [block for page in PAGES for block in re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)]
    for block in [*blocks("bash"), *blocks("text"), *shown]:
        for line in block.replace("\\\n", " ").splitlines():
            line = line.removeprefix("$ ").replace("stage=$1", "stage=encode")  # the argument of a script
            if line.startswith("npmlm "):
                yield [word for word in shlex.split(line, comments=True) if word != ">"]


def makefile_demo() -> list[list[str]]:
    """The `npmlm` command lines of `make demo`."""
    lines = re.findall(r"\$\(BIN\)/npmlm (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    return [shlex.split(line) for line in lines[:2]]


def test_it_is_short_and_opens_with_an_answer_then_the_two_commands() -> None:
    assert len(README.splitlines()) < 175
    first, second = README.index("```text\n$ npmlm fill"), README.index("make demo")
    assert first < second < README.index("make test") < README.index("What to expect")


def test_the_fast_tests_of_the_makefile_exist() -> None:
    files = re.findall(
        r"^FAST := (.*)\\\n\t\$\(addprefix tests/test_,(.*)\)", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    ((folders, names),) = files
    assert all((ROOT / path).exists() for path in [*folders.split(), *(f"tests/test_{name}" for name in names.split())])


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_has_settings_that_compose(words: list[str]) -> None:
    verb, rest = words[1], words[2:]
    settings, _ = split_arguments([word for word in rest if not word.endswith("answers.jsonl")])
    if "--help" not in rest and verb.islower():
        compose_settings(verb, settings)


def inline_commands() -> Iterator[str]:
    """Every whole `npmlm` command in the running text and the tables of the README and of the pages in docs."""
    for page in [README, *PAGES]:
        text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
        found = (" ".join(span.split()) for span in re.findall(r"`(npmlm [a-z]+ [^`]*=[^`]*)`", text))
        yield from (span for span in found if "…" not in span and "NAME" not in span)


@pytest.mark.parametrize("command", sorted(set(inline_commands())))
def test_every_command_within_a_line_has_settings_that_compose(command: str) -> None:
    _, verb, *rest = shlex.split(command)
    settings, _ = split_arguments(rest)
    needed = find_verb(verb).required  # what text leaves out, as in `npmlm add replace=true`
    if needed and not any(setting.startswith(f"{needed}=") for setting in settings):
        settings.append(f"{needed}=x")
    compose_settings(verb, settings)


def test_the_figures_are_those_of_the_results_and_the_same_on_the_first_page_of_the_site() -> None:
    first = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    results = (ROOT / "docs" / "results" / "reading.md").read_text(encoding="utf-8")
    row = re.search(r"\*\*demo, test half\*\* \|.*\*\*([\d.]+) / ([\d.]+)\*\* \|", results)
    assert row is not None
    hit_at_1, hit_at_5 = row.groups()
    for page in (README, first):
        assert blocks("text", page)[0] == blocks("text")[0]
        assert all(re.search(rf"{re.escape(figure)} (% )?\[", page) for figure in (hit_at_1, hit_at_5))


def test_the_import_order_that_contributing_shows_is_the_one_that_is_held() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    packages = re.findall(r"^\| `npm/(\w+)`", contributing, flags=re.MULTILINE)
    held = [name for name in dict.fromkeys(entry.split(".")[1] for entry in ORDER if "." in entry)]
    assert packages == [name for name in held if name in packages] and len(packages) > 10


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, demo_index: Path) -> Path:
    """A folder as `make demo` leaves it: the index is the one that all tests of the demo share."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "runs/demo").mkdir(parents=True)
    (folder / DEMO_INDEX).symlink_to(demo_index)
    return folder


def test_make_demo_builds_the_index_that_the_other_tests_ask(
    npmlm: CommandLine, tmp_path: Path, demo_index: Path
) -> None:
    """Of a few documents, by the same settings: by all of them it would be that index."""
    build, _ = makefile_demo()
    words = [word.replace("npm/assets", str(ROOT / "npm/assets")).replace("runs", f"{tmp_path}/runs") for word in build]
    assert npmlm(*words, "corpus.max_documents=8").status == 0
    folders = (tmp_path / DEMO_INDEX, demo_index)
    few, all_of_them = (read_manifest(folder, kind="phrase-index").settings for folder in folders)
    assert few["corpus"] == {**all_of_them["corpus"], "max_documents": 8}
    assert few["segments"][0]["sources"] == all_of_them["segments"][0]["sources"]
    counted = dict.fromkeys(("corpus", "counts", "segments", "search_folder"))
    assert {**few, **counted} == {**all_of_them, **counted}


def test_the_first_example_gives_the_answer_that_is_shown(
    npmlm: CommandLine, demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(demo)
    block = blocks("text")[0]
    printed = npmlm(*shlex.split(block.splitlines()[0])[2:]).out
    shown = re.findall(r"^ *\d+  (.*)  \(.*\)$", block, flags=re.MULTILINE)
    # numbers differ in the last digits between processors; the phrases and their order do not
    assert shown, "the README shows no answer"
    places = [printed.index(f"  {phrase}  (") for phrase in shown]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("page", "count", "prints"),
    [
        ("README.md", 1, ["Leonardo da Vinci"]),
        ("docs/python.md", 5, ["Leonardo da Vinci", "Oslo\n[0.", "\n1 2 1 ", "\n[('nature', "]),
    ],
)
def test_the_examples_in_python_run(
    page: str,
    count: int,
    prints: list[str],
    demo: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(demo)
    run: Callable[[str, dict[str, object]], None] = exec
    examples = blocks("python", (ROOT / page).read_text(encoding="utf-8"))
    assert len(examples) == count
    for example in examples:
        run(example, {})
    printed = capsys.readouterr().out
    assert all(each in printed for each in prints)


def test_make_demo_answers_the_questions(npmlm: CommandLine, demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(demo)
    _, evaluate = makefile_demo()
    printed = npmlm(*evaluate, "limit=12").out
    assert "hit@1" in printed and "hit@5" in printed
    assert (demo / "runs/demo/evaluation/metrics.json").is_file()

"""What commands load, each in a process of its own: nothing that takes seconds and is not needed."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from npm.cli.registry import MODULES, find_verb
from tests.helpers.command_line import QUESTION, run_subprocess, write_corpus

HEAVY = {"torch", "transformers", "tokenizers", "accelerate", "datasets", "faiss", "scipy", "pyarrow", "sklearn"}
"""What takes seconds to load and has nothing to do with settings, manifests and ids."""


def test_help_without_a_verb_loads_no_reader_of_settings_either() -> None:
    heavy = {*HEAVY, "hydra", "omegaconf", "bm25s", "rich"}
    assert_nothing_heavy_is_loaded(["--help"], ["--version"], ["nothing"], heavy=heavy)


def test_help_and_refused_settings_load_nothing_heavy(built_index: Path) -> None:
    commands = [[verb, "--help"] for verb in MODULES] + [[verb, "bogus=1"] for verb in MODULES]
    commands += [[verb] for verb in MODULES if find_verb(verb).required]
    refused = ["k=many", "k=0", "retrieval=DENSE", "encoder=", "debug=2", "-k", "scoring=magic"]
    commands += [["fill", f"index={built_index}", setting] for setting in refused]
    commands += [["train", "run=r", "experiment=absent.yaml"], ["inspect", "index=absent"], ["delete", "index=absent"]]
    assert_nothing_heavy_is_loaded(*commands)


def test_inspect_and_delete_load_nothing_heavy(built_index: Path, tmp_path: Path) -> None:
    index = shutil.copytree(built_index, tmp_path / "index")
    assert_nothing_heavy_is_loaded(["inspect", f"index={index}"], ["inspect", f"index={index}", "output=json"])
    assert_nothing_heavy_is_loaded(["delete", f"index={index}", "ids=[bank]"], ["inspect", f"index={index}"])


MORE = [{"id": "oslo", "title": "Oslo", "text": "Oslo is the capital of Norway."}]


def test_work_without_transformers(demo_index: Path, corpus: Path, tiny_encoder_folder: Path, tmp_path: Path) -> None:
    made_by, index = f"encoder={tiny_encoder_folder}", f"index={tmp_path / 'index'}"
    assert_nothing_heavy_is_loaded(
        ["fill", QUESTION],
        ["fill", f"index={demo_index}", "retrieval=hybrid", "output=json", QUESTION],
        ["build", f"corpus.files={corpus}", index, made_by],
        ["add", f"corpus.files={write_corpus(tmp_path / 'more.jsonl', MORE)}", index, made_by],
        ["fill", index, made_by, QUESTION],
        ["verify", index, made_by],
        ["estimate", f"corpus.files={corpus}", made_by],
        heavy={"transformers"},
        XDG_CACHE_HOME=str(demo_index.parents[1]),
    )


def assert_nothing_heavy_is_loaded(*commands: list[str], heavy: set[str] = HEAVY, **variables: str) -> None:
    """Run the commands in one new process, and look at what it has imported after each."""
    program = (
        "import json, sys; from npm.cli.main import main\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    assert main(command) in (0, 2), command\n"
        f"    if found := sorted(set({sorted(heavy)}) & set(sys.modules)): sys.exit(f'{{command}} loads {{found}}')\n"
    )
    run_subprocess(sys.executable, "-c", program, json.dumps(commands), **variables).done()

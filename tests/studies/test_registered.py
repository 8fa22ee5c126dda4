"""The package with and without the folder studies/: its verbs and methods are those of the folder."""

from __future__ import annotations

import sys
from pathlib import Path

import npm
from npm.cli.registry import MODULES
from npm.evaluation.methods.registry import METHODS
from tests.helpers.command_line import run_subprocess

VERBS, WRITERS = {"edit", "finetune", "generate", "geometry", "plot"}, {"causal", "causal-pmi", "causal-knn", "t5"}


def test_the_verbs_and_methods_of_studies_are_registered_where_the_folder_is(tmp_path: Path) -> None:
    assert MODULES.keys() >= VERBS and METHODS["closed"].keys() >= WRITERS
    repository = Path(npm.__file__).parents[1]
    for name in ("npm", "index", "configs"):
        (tmp_path / name).symlink_to(repository / name)
    program = (
        "from npm.cli.main import main; from npm.cli.registry import MODULES\n"
        "from npm.evaluation.methods.registry import GENERATORS, METHODS\n"
        "print(*MODULES, *METHODS['closed'], *METHODS['open'], *GENERATORS, main(['edit', 'out=o']))\n"
    )
    outcome = run_subprocess(sys.executable, "-c", program, cwd=tmp_path)
    assert outcome.status == 0 and "unknown verb 'edit'" in outcome.err, outcome.err
    *names, status = outcome.out.split()
    assert status == "2" and {"fill", "train", "npm", "mlm"} <= set(names)
    assert not {*VERBS, *WRITERS, "causal-bm25"} & set(names)

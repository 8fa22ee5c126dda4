"""The jobs of a build as the shell lines of the docs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from npm.cluster.ray_builds import Job
from npm.core.errors import ArtifactError
from npm.core.settings import Shard
from npm.indexing.settings import IndexBuildSettings, Stage
from tests.cluster.small_clusters import arguments, write_files
from tests.helpers.command_line import (
    REPOSITORY,
    CommandLine,
    all_bytes,
    run_subprocess,
    run_together,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("jobs") / "corpus")


@pytest.mark.parametrize(("tier", "count"), [("exact", 3), ("lists", 1), ("lists", 7)])
def test_any_number_of_jobs_makes_the_bytes_of_one_process(
    tier: str, count: int, corpus: Path, tiny_encoder_folder: Path, npmlm: CommandLine, tmp_path: Path
) -> None:
    assert npmlm(*arguments(corpus, tiny_encoder_folder, tmp_path / "plain", tier)).status == 0
    command = arguments(corpus, tiny_encoder_folder, tmp_path / "jobs", tier)
    for stage in Stage:  # as the loop of the docs does
        for number in range(1, count + 1):
            assert npmlm(*command, f"stage={stage.value}", f"shard={number}/{count}").status == 0
    assert all_bytes(tmp_path / "jobs") == all_bytes(tmp_path / "plain")


def test_a_machine_without_the_folder_says_so(corpus: Path, tmp_path: Path) -> None:
    job = Job(tmp_path / "index", IndexBuildSettings(), Stage.encode, Shard(1, 1), tmp_path)
    with pytest.raises(ArtifactError, match=f"no folder {job.folder} on"):
        job.run()
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["jobs=3"], ["jobs requires cluster=ray"]),
        (["cluster=ray", "jobs=0"], ["jobs must be", "above 0"]),
        (["cluster=ray", "stage=encode"], ["cluster and stage exclude"]),
        (["cluster=ray", "cluster.gpus_per_job=2"], ["cluster.gpus_per_job must be"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    given: list[str], parts: list[str], corpus: Path, npmlm: CommandLine, tmp_path: Path
) -> None:
    npmlm("build", f"corpus.files={corpus}/*.jsonl", f"index={tmp_path / 'index'}", *given).refused(*parts)


def shell_blocks(language: str, heading: str) -> list[str]:
    """The code blocks of one section of the docs."""
    text = (REPOSITORY / "docs" / "large-corpora.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", text.partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def words_of_shell(line: str, stage: str, variables: dict[str, str]) -> list[str]:
    """What `npmlm` is given when bash runs `line` as a script of one argument."""
    program = f"npmlm() {{ printf '%s\\0' \"$@\"; }}\n{line}"
    environment = {**os.environ, **variables}
    done = subprocess.run(["bash", "-c", program, "build.sh", stage], env=environment, check=True, capture_output=True)
    return done.stdout.decode().split("\0")[:-1]


def test_the_lines_of_the_docs_for_slurm_and_kubernetes_build_the_same_index(
    corpus: Path, tiny_encoder_folder: Path, npmlm: CommandLine, tmp_path: Path
) -> None:
    """Two jobs a stage, with the variables of `sbatch` or of Kubernetes; those that encode run at one time."""
    script, submissions = shell_blocks("bash", "Slurm")
    arrays = re.findall(r"--array=1-(\d+) .*build\.sh (\w+)\)$", submissions, re.MULTILINE)
    assert [stage for _, stage in arrays] == [stage.value for stage in Stage]
    [manifest] = shell_blocks("yaml", "Kubernetes")
    [pod] = re.findall(r"args: \['(.*)'\]", manifest)
    assert (
        pod.replace("stage=encode", "stage=$1").partition("shard=")[0] == script.splitlines()[1].partition("shard=")[0]
    )
    own = [word for word in arguments(corpus, tiny_encoder_folder, tmp_path / "index") if "=" in word]
    lines = {
        "slurm": script.replace("segments=20 ", ""),
        "kubernetes": pod.replace("segments=20 ", "").replace("stage=encode", "stage=$1").replace("/20", "/2"),
    }
    given = re.compile(r'"corpus\.files=\[[^"]*" index=wiki-index')
    for number, (size, stage) in enumerate(arrays):
        count = min(int(size), 2)
        commands = []
        for task in range(1, count + 1):
            variables = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": str(count)}
            kind = "slurm" if number % 2 == 0 or count == 1 else "kubernetes"  # either goes on where the other was
            if kind == "kubernetes":
                variables = {"JOB_COMPLETION_INDEX": str(task - 1)}
            line, replaced = given.subn("", lines[kind])
            assert replaced == 1
            commands.append([*words_of_shell(line, stage, variables), *own])
        if stage == Stage.encode.value:
            together = [[sys.executable, "-m", "npm", *command] for command in commands]
            assert [job.status for job in run_together(together, tmp_path / "logs")] == [0, 0]
        else:
            assert [npmlm(*command).status for command in commands] == [0] * count
    assert npmlm(*arguments(corpus, tiny_encoder_folder, tmp_path / "plain")).status == 0
    assert all_bytes(tmp_path / "index") == all_bytes(tmp_path / "plain")


def test_a_build_on_ray_without_ray_says_how_to_get_it(
    corpus: Path, npmlm: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    command = ["build", f"corpus.files={corpus}/*.jsonl", f"index={tmp_path / 'index'}", "cluster=ray", "jobs=2"]
    npmlm(*command).refused("needs Ray", 'pip install "ray>=2.60"')
    assert not (tmp_path / "index").exists()


@pytest.mark.slow("ray")
@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
def test_an_address_without_a_cluster_is_refused_at_once(address: str, corpus: Path, tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip('needs Ray: pip install "ray>=2.60"')
    command = ["build", f"corpus.files={corpus}/*.jsonl", f"index={tmp_path / 'index'}", "cluster=ray", "jobs=2"]
    outcome = run_subprocess(
        sys.executable, "-m", "npm", *command, f"cluster.address={address}", RAY_AUTH_TOKEN="any", HOME=str(tmp_path)
    )
    outcome.refused(f"no Ray cluster at cluster.address={address}")

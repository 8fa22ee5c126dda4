"""Builds on Ray: two machines played by one, with a core each. Workers are killed, and a machine is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from npm.cli.settings import compose_settings
from npm.cluster.ray_builds import Job, build_by_jobs, build_on_ray, connect, run_on_ray
from npm.cluster.settings import BuildCluster, ClusterSettings
from npm.core.errors import CorpusError
from npm.indexing.build import build_index
from npm.indexing.settings import Stage
from tests.cluster.small_clusters import MEMORY, DeadlyJob, WaitingJob, arguments, remade, write_files
from tests.helpers.command_line import REPOSITORY, CommandLine, all_bytes

pytestmark = [
    pytest.mark.slow("ray"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, such as of sockets that it leaves to be collected
]
ON_RAY = BuildCluster(engine="ray")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("ray") / "corpus")


def read_settings(command: list[str]) -> Any:
    return compose_settings("build", command[1:])


@pytest.fixture(scope="module")
def plain(corpus: Path, tiny_encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process makes, with inverted lists."""
    index = tmp_path_factory.mktemp("plain") / "index"
    build_index(index, read_settings(arguments(corpus, tiny_encoder_folder, index)))
    return all_bytes(index)


def test_jobs_on_ray_make_the_bytes_of_one_process(
    machines: Any, corpus: Path, tiny_encoder_folder: Path, npmlm: CommandLine, tmp_path: Path
) -> None:
    """In the exact tier; the tests below are with inverted lists."""
    assert npmlm(*arguments(corpus, tiny_encoder_folder, tmp_path / "plain", "exact")).status == 0
    command = [*arguments(corpus, tiny_encoder_folder, tmp_path / "ray", "exact"), "cluster=ray"]
    done = npmlm(*command)
    assert done.status == 0, done.err
    assert all_bytes(tmp_path / "ray") == all_bytes(tmp_path / "plain")
    assert "nothing to do" in npmlm(*command).err


def test_a_worker_killed_in_each_stage_changes_nothing(
    machines: Any, corpus: Path, tiny_encoder_folder: Path, plain: dict[str, bytes], tmp_path: Path
) -> None:
    command = arguments(corpus, tiny_encoder_folder, tmp_path / "index")
    build_by_jobs(
        tmp_path / "index",
        read_settings(command),
        2,
        run=lambda jobs: run_on_ray(ON_RAY, [remade(DeadlyJob, job) for job in jobs]),
    )
    assert sorted(path.name for path in (tmp_path / "index.killed").iterdir()) == sorted(stage.value for stage in Stage)
    assert all_bytes(tmp_path / "index") == plain


def test_a_mistake_of_the_user_in_a_job_arrives_as_its_one_message(
    machines: Any, tiny_encoder_folder: Path, npmlm: CommandLine, tmp_path: Path
) -> None:
    files = write_files(tmp_path / "corpus")
    (files / "4.jsonl").write_text("no JSON\n", encoding="utf-8")
    here, there = (arguments(files, tiny_encoder_folder, tmp_path / "index") for _ in range(2))
    message = npmlm(*here).refused("4.jsonl:1")
    assert npmlm(*there, "cluster=ray", "jobs=2").refused() == message
    assert not (tmp_path / "index").exists()
    with pytest.raises(CorpusError):
        build_on_ray(tmp_path / "index", read_settings(there), ON_RAY, 2)


def test_what_no_machine_has_is_refused_before_ray_waits_for_it(
    machines: Any, corpus: Path, tiny_encoder_folder: Path, npmlm: CommandLine, tmp_path: Path
) -> None:
    command = [*arguments(corpus, tiny_encoder_folder, tmp_path / "index"), "cluster=ray"]
    npmlm(*command, "cluster.gpus_per_job=1").refused("no machine of the Ray cluster", "1 cores and 1 GPUs")
    npmlm(*command, "cluster.cpus_per_job=2").refused("no machine of the Ray cluster", "1 cores and 0 GPUs; 1 cores")


def test_a_lost_machine_changes_nothing(
    machines: Any, corpus: Path, tiny_encoder_folder: Path, plain: dict[str, bytes], tmp_path: Path
) -> None:
    node = next(iter(machines.worker_nodes))
    (tmp_path / "index.lost").write_text(node.node_id, encoding="utf-8")
    begun = tmp_path / "index.begun"

    def run(jobs: Sequence[Job]) -> Iterator[list[list[str]]]:
        for notices in run_on_ray(ON_RAY, [remade(WaitingJob, job) for job in jobs]):
            if begun.exists() and node in machines.worker_nodes:
                machines.remove_node(node, allow_graceful=False)
            yield notices

    try:
        settings = read_settings(arguments(corpus, tiny_encoder_folder, tmp_path / "index"))
        build_by_jobs(tmp_path / "index", settings, 4, run=run)
        assert begun.exists()
        assert node not in machines.worker_nodes
    finally:
        machines.add_node(num_cpus=1, object_store_memory=MEMORY)
    assert all_bytes(tmp_path / "index") == plain


def test_a_cluster_of_another_version_or_token_is_refused(
    machines: Any, corpus: Path, tiny_encoder_folder: Path, tmp_path: Path
) -> None:
    program = "import sys, ray; ray.__version__ = '2.0.0'\nfrom npm.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [
        *arguments(corpus, tiny_encoder_folder, tmp_path / "index"),
        "cluster=ray",
        f"cluster.address={machines.address}",
    ]
    for token, parts in (("0" * 64, ("Ray: 2.0.0", f"Ray: {version('ray')}")), ("1" * 64, ("token",))):
        done = subprocess.run(
            [sys.executable, "-c", program, *command],
            cwd=REPOSITORY,
            env={**os.environ, "RAY_AUTH_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 2, done.stderr
        assert all(part in done.stderr for part in ("no Ray cluster at", *parts)), done.stderr


def test_an_interrupt_stops_the_jobs_and_the_same_command_goes_on(
    machines: Any,
    corpus: Path,
    tiny_encoder_folder: Path,
    npmlm: CommandLine,
    plain: dict[str, bytes],
    tmp_path: Path,
) -> None:
    """As a terminal interrupts: every process of the group gets the signal."""
    command = [*arguments(corpus, tiny_encoder_folder, tmp_path / "index"), "cluster=ray", "jobs=4"]
    with subprocess.Popen(
        [sys.executable, "-m", "npm", *command, f"cluster.address={machines.address}"],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        # else a shell that put the tests into the background would have it ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as build:
        try:
            deadline = time.monotonic() + 250
            while not list(tmp_path.glob("index/corpus-*")) and time.monotonic() < deadline:
                time.sleep(0.05)
            os.killpg(build.pid, signal.SIGINT)
            _, err = build.communicate(timeout=250)
        finally:
            build.kill()
    assert build.returncode == 130, err
    assert "the same command resumes where it stopped" in err
    assert npmlm(*command).status == 0
    assert all_bytes(tmp_path / "index") == plain


def test_a_process_that_is_connected_already_stays_so(machines: Any) -> None:
    import ray

    with connect(ClusterSettings()):
        pass
    assert ray.is_initialized()

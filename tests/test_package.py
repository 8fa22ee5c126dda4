"""The wheel and the source archive: what is in them, and that the wheel works where nothing of the checkout is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.cli.test_fill import check_contract
from tests.helpers.command_line import QUESTION, all_bytes, run_subprocess
from tests.helpers.container_files import copied_sources

REPOSITORY = Path(__file__).parents[1]
BESIDE = ("CHANGELOG.md", "CITATION.cff", "SECURITY.md", "MANIFEST.in")
"""What the source archive has and a wheel is built without."""
WEIGHTS = {f"npm/assets/{name}/model.safetensors" for name in ("encoder-mini", "reader-mini")}
MOST_WHEEL_BYTES = 70_000_000


def copied(folder: Path, *names: str) -> Path:
    """A copy of files and folders of this checkout, so that nothing is left here."""
    folder.mkdir()
    for name in names:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPOSITORY / name, folder)
    return folder


def built(kind: str, source: Path, out: Path) -> tuple[Path, str]:
    """The one file that `python -m build` makes with what is installed here, and what it said."""
    done = run_subprocess(sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", out, source)
    assert done.status == 0, done.out + done.err
    return next(out.iterdir()), done.out + done.err


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built from what the Dockerfile copies and nothing else."""
    folder = tmp_path_factory.mktemp("package")
    return built("--wheel", copied(folder / "source", *copied_sources()), folder / "dist")[0]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, built where there are tests and benchmarks too."""
    folder = tmp_path_factory.mktemp("archive")
    source = copied(folder / "source", *copied_sources(), *BESIDE, "tests", "benchmarks", "scripts")
    return built("--sdist", source, folder / "dist")[0]


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder into which the wheel alone was installed."""
    target = tmp_path_factory.mktemp("site")
    pip = ["-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", target, wheel]
    done = run_subprocess(sys.executable, *pip, PIP_DISABLE_PIP_VERSION_CHECK="1")
    assert done.status == 0, done.err
    return target


def shipped() -> dict[str, str]:
    """What a wheel has of this checkout: names in the wheel, and names here."""
    names = [path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "configs").rglob("*.yaml")]
    for folder, pattern in (
        ("npm", "*.py"),
        ("index", "*.py"),
        ("studies", "*.py"),
        ("npm/assets", "*"),
        ("npm/serving/static", "*"),
        ("npm/serving", "*.json"),
    ):
        found = (path for path in (REPOSITORY / folder).rglob(pattern) if path.is_file())
        names += [path.relative_to(REPOSITORY).as_posix() for path in found]
    return {f"npm/{name}" if name.startswith("configs/") else name: name for name in names}


@pytest.mark.slow("package")
def test_the_wheel_holds_every_module_config_and_asset_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == set(shipped())
    assert {"npm/configs/experiment/simcse_unsup.yaml", "npm/assets/demo/questions.json", *WEIGHTS} <= names
    assert wheel.stat().st_size < MOST_WHEEL_BYTES


@pytest.mark.slow("package")
def test_the_source_archive_holds_what_a_wheel_is_made_of_but_the_weights(archive: Path) -> None:
    with tarfile.open(archive) as members:
        found = {member.name.partition("/")[2] for member in members if member.isfile()}
    made = {name for name in found if name in ("PKG-INFO", "setup.cfg") or name.startswith("npmlm.egg-info/")}
    files = {name for name in copied_sources() if (REPOSITORY / name).is_file()}
    assert found - made == {*shipped().values(), *files, *BESIDE} - WEIGHTS
    assert archive.stat().st_size < 5_000_000


@pytest.mark.slow("package")
def test_a_wheel_built_from_the_source_archive_says_that_it_has_no_weights(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as members:
        members.extractall(tmp_path, filter="data")
    wheel, said = built("--wheel", next(tmp_path.iterdir()), tmp_path / "dist")
    assert "the weights of the shipped encoder are not here" in said
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == set(shipped()) - WEIGHTS


@pytest.mark.slow("package")
def test_the_command_is_npmlm_and_never_npm(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entry_points = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert archive.read(entry_points).decode().split() == ["[console_scripts]", "npmlm", "=", "npm.cli.main:main"]


def site_packages() -> str:
    return sysconfig.get_path("purelib")


@pytest.mark.slow("package")
def test_the_installed_command_answers_from_a_folder_with_a_file_index_py(
    installed: Path, built_index: Path, tmp_path: Path
) -> None:
    """Python looks into the folder of the command, not into the working directory, for what it imports."""
    (tmp_path / "index.py").write_text("raise SystemExit('the wrong index')\n", encoding="utf-8")
    (tmp_path / "npm.py").write_text("raise SystemExit('the wrong npm')\n", encoding="utf-8")
    before = all_bytes(tmp_path)
    where = f"{installed}{os.pathsep}{site_packages()}"
    command = [sys.executable, installed / "bin" / "npmlm", "fill", f"index={built_index}", "output=json", QUESTION]
    outcome = run_subprocess(*command, cwd=tmp_path, PYTHONPATH=where)
    assert outcome.status == 0, outcome.err
    check_contract(outcome.answers()[0])
    assert all_bytes(tmp_path) == before


@pytest.mark.slow("package")
def test_the_installed_command_is_that_of_the_wheel_and_finds_its_configs(installed: Path, tmp_path: Path) -> None:
    program = (
        "import npm.cli.settings, index.types\n"
        "settings = npm.cli.settings.compose_settings('fill', ['index=x', 'scoring=reference'])\n"
        "folder = npm.core.settings.config_folder()\n"
        "print(npm.cli.settings.__file__, index.types.__file__, folder, settings.scoring.reference)\n"
    )
    where = f"{installed}{os.pathsep}{site_packages()}"
    outcome = run_subprocess(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=where)
    assert outcome.status == 0, outcome.err
    assert outcome.out.count(str(installed)) == 3
    assert str(REPOSITORY) not in outcome.out.replace(site_packages(), "")


def test_no_file_that_git_ignores_is_needed() -> None:
    """What is shipped is what is committed: nothing under npm, index or configs is ignored."""
    folders = ["npm", "index", "configs", "scripts"]
    command = ["git", "ls-files", "--others", "--ignored", "--exclude-standard", "--", *folders]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    ignored = [name for name in done.stdout.splitlines() if "__pycache__" not in name]
    assert ignored == []

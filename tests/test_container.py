"""The Dockerfile and compose.yaml, as far as they can be tried without Docker."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from npm.cli.settings import compose_settings
from tests.helpers.container_files import REPOSITORY, copied_sources, dockerfile_stages

TARGETS = ("cpu", "cuda")
COMPOSE = yaml.safe_load((REPOSITORY / "compose.yaml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def served(words: list[str]) -> Any:
    """The settings of a command line of the container."""
    assert words[0] == "serve"
    return compose_settings("serve", words[1:])


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_serves_data_as_a_user_of_its_own(target: str) -> None:
    assert list(dockerfile_stages())[-1] == "cpu"  # so the default
    stage = dockerfile_stages()[target]
    (user,), (volume,), (port,) = stage.all("USER"), stage.all("VOLUME"), stage.all("EXPOSE")
    assert any(f"useradd --create-home --uid 10001 {user}" in words for words in stage.all("RUN"))
    assert stage.instructions[-1] == ("USER", user) and user != "root"
    assert json.loads(stage.all("ENTRYPOINT")[0]) == list(PROJECT["scripts"])
    settings = served(json.loads(stage.all("CMD")[0]))
    assert (settings.host, settings.port, str(settings.index)) == ("0.0.0.0", int(port), volume)


@pytest.mark.parametrize("target", TARGETS)
def test_what_an_image_installs_exists(target: str) -> None:
    stage = dockerfile_stages()[target]
    extras = [
        name
        for words in stage.all("RUN")
        for names in re.findall(r"\.whl\)\[([\w,]+)\]", words)
        for name in names.split(",")
    ]
    assert extras and set(extras) <= set(PROJECT["optional-dependencies"]) and "serve" in extras
    used = set(re.findall(r"\$(\w+)", " ".join(stage.all("RUN"))))
    assert used == {words.partition("=")[0] for words in stage.all("ARG")}
    pinned = re.search(r"^TORCH \?= (\S+)", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert pinned and stage.all("ARG")[0].removesuffix("+cpu") == f"TORCH={pinned.group(1)}"
    assert stage.base == "runtime" and dockerfile_stages()["runtime"].base == "python:3.12-slim"


def test_every_source_is_there_and_reaches_the_builder() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == set(copied_sources())
    for name in copied_sources():
        assert (REPOSITORY / name).exists(), name
        assert not any(fnmatch.fnmatch(name, rule) for rule in rules[1:] if not rule.startswith("!")), name


def test_the_service_is_the_image_with_a_key_and_a_limit_of_memory() -> None:
    service = COMPOSE["services"]["npmlm"]
    stage = dockerfile_stages()[service["build"]["target"]]
    assert (REPOSITORY / service["build"]["context"]).samefile(REPOSITORY)
    settings = served(service["command"])
    (secret,), (published,), (mounted,) = service["secrets"], service["ports"], service["volumes"]
    assert settings.key_file == f"/run/secrets/{secret}" and Path(COMPOSE["secrets"][secret]["file"]).name == "keys.txt"
    assert published == f"127.0.0.1:{settings.port}:{stage.all('EXPOSE')[0]}"
    assert mounted.endswith(f":{stage.all('VOLUME')[0]}:ro") and str(settings.index) in mounted
    assert re.fullmatch(r"\d+g", service["mem_limit"]) and service["read_only"] is True
    assert int(service["stop_grace_period"].removesuffix("s")) > settings.grace_seconds


def test_the_page_on_deployment_names_targets_that_exist() -> None:
    page = (REPOSITORY / "docs" / "deploy.md").read_text(encoding="utf-8")
    section = page.partition("## Containers\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"--target (\w+)", section)) == set(TARGETS)
    assert "docker compose up" in section
    (inside,) = re.findall(r"^docker run .* npmlm:cpu (\w.*)$", section, flags=re.MULTILINE)
    verb, *settings = shlex.split(inside)
    assert all("=/data/" in setting or "=[/data/" in setting for setting in settings)
    compose_settings(verb, settings)

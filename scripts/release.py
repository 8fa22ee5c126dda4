"""Check, build and try a release: `make release VERSION=0.3.0` calls it. The upload is left to a person."""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from functools import partial
from pathlib import Path

say = partial(print, file=sys.stderr)


def run(*command: str, **variables: str) -> str:
    """Standard output of a command that must succeed."""
    return subprocess.run(command, env=os.environ | variables, check=True, text=True, stdout=subprocess.PIPE).stdout


def mistakes(version: str) -> list[str]:
    """Reasons against a release of this checkout as `version`: another version in a file, uncommitted changes."""
    texts = {name: Path(name).read_text("utf-8") for name in ("pyproject.toml", "CHANGELOG.md", "CITATION.cff")}
    routes = Path("docs/openapi.json").read_text("utf-8")  # its own version, and that of an example
    newest, day = re.findall(r"^## (\S+) \(([^)]*)\)$", texts["CHANGELOG.md"], flags=re.MULTILINE)[0]
    citation = dict(re.findall(r"^(version|date-released): (\S+)$", texts["CITATION.cff"], flags=re.MULTILINE))
    says = [
        ("pyproject.toml", tomllib.loads(texts["pyproject.toml"])["project"]["version"], version),
        ("CHANGELOG.md, newest section", newest, version),
        ("CITATION.cff, version", citation["version"], version),
        ("CITATION.cff, date-released", citation.get("date-released", "none"), day.replace("unreleased", "a day")),
        ("docs/openapi.json", ", ".join(sorted(set(re.findall(r'"version": "([^"]*)"', routes)))), version),
    ]
    found = [f"{place}: expected {expected}, got {got}" for place, got, expected in says if got != expected]
    return found + [f"not committed: {line}" for line in run("git", "status", "--porcelain").splitlines()]


def main(version: str) -> int:
    """2 after a line for each thing that speaks against it; raises CalledProcessError where a step fails."""
    if found := mistakes(version):
        say(f"no release {version}:", *found, sep="\n  ")
        return 2
    out = Path("dist", version)  # both from the checkout: a wheel made from the source archive would lack the weights
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", str(out))
    wheel, archive = next(out.glob("*.whl")), next(out.glob("*.tar.gz"))
    with tempfile.TemporaryDirectory() as empty:
        run(sys.executable, "-m", "venv", empty)
        packages = [*os.environ.get("PIP_ARGS", "").split(), os.environ.get("TORCH", "torch"), str(wheel)]
        run(f"{empty}/bin/pip", "install", "--quiet", *packages)
        assert run(f"{empty}/bin/npmlm", "--version").split() == ["npmlm", version]
        answer = run(f"{empty}/bin/npmlm", "fill", "The Mona Lisa was painted by <mask>.", XDG_CACHE_HOME=empty)
        assert "Leonardo da Vinci" in answer, answer
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in (wheel, archive)]
    Path(out, "SHA256SUMS").write_text("".join(sums))
    say(f"complete. Next: git tag v{version} && git push origin v{version}; twine upload {wheel} {archive}")
    return 0


sys.exit(main(*sys.argv[1:]))

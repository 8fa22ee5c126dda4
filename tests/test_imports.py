"""Which file may import what. CONTRIBUTING.md repeats the order."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ORDER = (
    "npm.core.errors",
    "npm.core.display",
    "npm.core.types",
    "npm.core.files",
    "npm.core.artifact",
    "npm.core.settings",
    "index",
    "npm.corpus",
    "npm.masking",
    "npm.models",
    "npm.objectives",
    "npm.training",
    "npm.indexing",
    "npm.reading",
    "npm.retrieval",
    "npm.tracing",
    "npm.tuning",
    "npm.evaluation",
    "npm.serving",
    "npm.cluster",
    "npm.api",
    "npm.agents",
    "npm.integrations",
    "npm.cli",
    "npm.__main__",
    "studies",
    "scripts",
)
"""A file imports only from its own place and from places before it."""

DOOR = "npm/__init__.py"
"""What users import from; it imports for types alone, and the rest when it is asked for."""

ONLY_IN = {
    "filelock": ("npm/core/artifact.py",),
    "faiss": ("index/faiss_library.py",),
    "bm25s": (),
    "hydra": ("npm/cli/settings.py", "npm/cli/multirun.py"),
    "omegaconf": ("npm/cli/settings.py", "npm/cli/multirun.py"),
    "datasets": ("npm/corpus/readers.py",),
    "fsspec": ("npm/corpus/sources.py",),
    "pyarrow": ("npm/corpus/readers.py",),
    "tokenizers": (
        "npm/corpus/blocks.py",
        "npm/corpus/tokenizers.py",
        "npm/models/tokenizer.py",
    ),
    "rich": (
        "npm/cli/progress.py",
        "npm/core/display.py",
        "npm/cli/cards.py",
        "npm/cli/trace.py",
        "npm/evaluation/report.py",
    ),
    "jinja2": ("npm/evaluation/data.py", "npm/evaluation/prompts.py"),
    "matplotlib": ("studies/plotting.py",),
    "prompt_toolkit": ("npm/cli/prompt.py",),
    "pypdfium2": ("npm/corpus/office_files.py",),
    "mammoth": ("npm/corpus/office_files.py",),
    "mcp": ("npm/agents.py", "npm/cli/agents.py"),
    "langchain_core": ("npm/integrations/langchain.py",),
    "llama_index": ("npm/integrations/llama_index.py",),
    "haystack": ("npm/integrations/haystack.py",),
    "ray": ("npm/cluster/ray_builds.py", "npm/cluster/ray_partitions.py"),
    "accelerate": ("npm/training/acceleration.py",),
    "yaml": (
        "npm/core/settings.py",
        "npm/corpus/documents.py",
        "npm/evaluation/tasks.py",
        "scripts/study.py",
    ),
}
"""Libraries that enter through few files."""

BARE_IMAGE = {"torch", "transformers", "accelerate", "numpy", "safetensors", "filelock", "pydantic", "pydantic_core"}
"""All that is there where encoders are trained, besides the standard library."""
ON_A_BARE_IMAGE = ("npm.masking", "npm.models", "npm.objectives", "npm.training")
CATCH_ALL_NAMES = {"utils.py", "common.py", "misc.py", "helpers.py"}
MOST_LINES, MOST_FUNCTION_LINES, MOST_SCRIPT_LINES = 500, 60, 199


@dataclass(frozen=True, slots=True)
class Import:
    """One import: the file it stands in, the module it names, and when it happens."""

    file: str
    module: str
    at_import: bool  # when the file is imported, not in a function
    for_types: bool  # under TYPE_CHECKING


def source_files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py"))]
    assert found
    return found


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    file = path.relative_to(REPOSITORY).as_posix()

    def visit(node: ast.AST, at_import: bool, for_types: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            typed = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            if isinstance(child, ast.Import):
                yield from (Import(file, alias.name, at_import, for_types) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file} imports relatively"
                yield Import(file, str(child.module), at_import, for_types)
            yield from visit(child, at_import and not inside, for_types or typed)

    return tuple(visit(parsed(path), True, False))


def place(module: str) -> int | None:
    """Where a module stands in the order; None for a library, or for `npm` itself."""
    for number, name in enumerate(ORDER):
        if module == name or module.startswith(f"{name}."):
            return number
    return None


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_every_file_has_a_place_in_the_order() -> None:
    for path in source_files("npm", "index", "studies", "scripts"):
        module = module_of(path.relative_to(REPOSITORY).as_posix())
        assert module in ("npm", "npm.core") or place(module) is not None, f"{module} has no place in {ORDER}"


def test_imports_point_one_way_not_even_for_types_back() -> None:
    """A type from further on is named in one way only: by the file that is handed such an object."""
    for path in source_files("npm", "index", "studies", "scripts"):
        for found in imports_of(path):
            ours, theirs = place(module_of(found.file)), place(found.module)
            if theirs is None or (found.for_types and found.file == DOOR):
                continue
            assert ours is not None
            assert theirs <= ours, f"{found.file} imports {found.module}"


def test_tasks_are_read_without_the_methods_that_are_asked() -> None:
    for name in ("tasks", "prompts", "data"):
        for found in imports_of(REPOSITORY / "npm" / "evaluation" / f"{name}.py"):
            assert not found.module.startswith("npm.evaluation.methods"), found


def test_no_file_imports_itself_through_others_not_even_for_types() -> None:
    paths = {
        module_of(path.relative_to(REPOSITORY).as_posix()): path for path in source_files("npm", "index", "studies")
    }
    left = {
        name: {each.module for each in imports_of(path) if name != "npm"} & paths.keys() - {name}
        for name, path in paths.items()
    }
    while leaves := {name for name, imported in left.items() if not imported & left.keys()}:
        left = {name: imported for name, imported in left.items() if name not in leaves}
    assert not left, "one or several circles are among these"


def test_index_is_a_leaf_and_nothing_but_scripts_imports_scripts() -> None:
    for path in source_files("npm", "index", "studies", "scripts"):
        for found in imports_of(path):
            top = found.module.partition(".")[0]
            allowed = top == "scripts" and found.file.startswith("scripts/")
            assert allowed or top not in ("scripts", "tests", "benchmarks"), f"{found.file} imports {found.module}"
            outside_core = top == "npm" and not found.module.startswith("npm.core")
            assert not (found.file.startswith("index/") and outside_core), f"{found.file} imports {found.module}"
            assert found.module != "index", f"{found.file}: an index.py of the user would shadow a bare import"


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_enters_through_its_own_files(library: str) -> None:
    files = {
        found.file
        for path in source_files("npm", "index", "studies", "scripts")
        for found in imports_of(path)
        if found.module.partition(".")[0] == library and not found.for_types
    }
    assert files <= set(ONLY_IN[library])


def loaded_with(module: str, seen: set[str]) -> Iterator[Import]:
    """Every import that happens when one of our modules is imported, through all of our modules."""
    if module in seen:
        return
    seen.add(module)
    path = REPOSITORY / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for found in imports_of(file):
        if found.at_import and not found.for_types:
            yield found
            if found.module.partition(".")[0] in ("npm", "index", "studies"):
                yield from loaded_with(found.module, seen)


def test_what_trains_runs_on_a_bare_gpu_image() -> None:
    for path in source_files(*(name.replace(".", "/") for name in ON_A_BARE_IMAGE)):
        module = module_of(path.relative_to(REPOSITORY).as_posix())
        for found in loaded_with(module, set()):
            top = found.module.partition(".")[0]
            known = top in sys.stdlib_module_names or top in BARE_IMAGE or top in ("npm", "index")
            assert known, f"{module} comes to import {found.module} in {found.file}"


def test_arrays_and_masks_need_numpy_only() -> None:
    allowed = {"numpy", "filelock", "pydantic", "pydantic_core", "npm", "index"}
    for module in ("index.exact", "npm.core.artifact", "npm.corpus.store", "npm.masking.masker", "npm.core.types"):
        for found in loaded_with(module, set()):
            top = found.module.partition(".")[0]
            assert top in sys.stdlib_module_names or top in allowed, f"{found.file}: {found.module}"


@pytest.mark.parametrize("script", sorted(path.name for path in (REPOSITORY / "scripts").glob("*.py")))
def test_scripts_are_thin(script: str) -> None:
    assert len((REPOSITORY / "scripts" / script).read_text(encoding="utf-8").splitlines()) <= MOST_SCRIPT_LINES


def test_files_and_functions_are_short_and_named_for_what_they_hold() -> None:
    too_long = []
    for path in source_files("npm", "index", "studies", "scripts", "benchmarks", "tests"):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(REPOSITORY).as_posix()
        assert path.name not in CATCH_ALL_NAMES, name
        lines = len(text.splitlines())
        if lines > (MOST_LINES if not name.startswith("tests/") else 2 * MOST_LINES):
            too_long.append(f"{name}: {lines} lines")
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                span = (node.end_lineno or node.lineno) - node.lineno + 1
                if span > MOST_FUNCTION_LINES and not name.startswith("tests/"):
                    too_long.append(f"{name}: {node.name} has {span} lines")
    assert not too_long


def test_models_are_loaded_in_one_place_without_their_code_and_without_pickles() -> None:
    """`from_pretrained` asks on standard output, and reads on standard input, whether a folder's code may run."""
    calls = []
    for path in source_files("npm", "index", "studies", "scripts", "benchmarks"):
        name = path.relative_to(REPOSITORY).as_posix()
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("from_pretrained", "from_config"):
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert name in ("npm/models/loading.py", "npm/models/tokenizer.py"), f"{name}:{node.lineno}"
                assert given.get("trust_remote_code") == "False", f"{name}:{node.lineno}"
                if node.func.attr == "from_pretrained":
                    assert given.get("local_files_only") == "True", f"{name}:{node.lineno}"
                    is_model = ast.unparse(node.func.value) not in ("AutoConfig", "AutoTokenizer")
                    assert not is_model or given.get("use_safetensors") == "True", f"{name}:{node.lineno}"
                calls.append(node.func.attr)
    assert set(calls) == {"from_pretrained", "from_config"}


def test_nothing_is_imported_by_a_name_that_is_data() -> None:
    places = []
    for path in source_files("npm", "index", "studies"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
                "import_module",
                "__import__",
                "exec",
                "eval",
            ):
                is_data = not (node.args and isinstance(node.args[0], ast.Constant))
                is_module_evaluation = ast.unparse(node.func).endswith(".eval")  # model.eval()
                if is_data and not is_module_evaluation:
                    places.append(path.relative_to(REPOSITORY).as_posix())
    registries = [f"npm/{room}/registry.py" for room in ("cli", "evaluation/methods", "objectives")]
    assert places == [DOOR, *registries]  # which know all their names


def test_no_message_advises_to_install_npmlm_from_a_package_index() -> None:
    """It is on none, where somebody else may take the name."""
    for path in [
        *source_files("npm", "index", "studies"),
        *sorted((REPOSITORY / "docs").glob("*.md")),
        REPOSITORY / "README.md",
    ]:
        advice = re.findall(r"pip install[^\n]*", path.read_text(encoding="utf-8"))
        assert not [line for line in advice if "npmlm[" in line or "install npmlm" in line], path


def test_nothing_is_pickled() -> None:
    for path in source_files("npm", "index", "studies", "scripts", "benchmarks"):
        name = path.relative_to(REPOSITORY).as_posix()
        for found in imports_of(path):
            top = found.module.partition(".")[0]
            assert top not in ("pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"), name
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if name == "npm/models/convert.py" and called == "torch.load":
                    assert "weights_only=True" in ast.unparse(node)  # what its caller asks for, and runs no code
                    continue
                assert called not in ("torch.load", "torch.save", "pickle.load", "pickle.loads"), name
                for keyword in node.keywords:
                    is_pickle = keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False"
                    assert not is_pickle, f"{name}:{node.lineno}"

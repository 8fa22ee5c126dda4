"""Whatever a user gives gets an answer or one message: settings, manifests, encoders, runs, texts, corpora at random.

A bounded number of examples, the same each time; `make fuzz` draws more, other ones each time (NPM_FUZZ_EXAMPLES).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from npm import PhraseFiller
from npm.cli.cards import answer_json
from npm.cli.declared import Setting
from npm.cli.main import main
from npm.cli.registry import MODULES, find_verb
from npm.core.errors import UserError
from npm.core.files import digest_of
from npm.corpus.blocks import BlockPacker, BlockSettings
from npm.corpus.documents import read_corpus
from npm.corpus.settings import CorpusSettings
from npm.corpus.sources import FORMATS
from npm.corpus.store import build_block_store
from npm.evaluation.results import Result
from npm.models.encoder import Encoder
from npm.retrieval.queries import encode_queries
from studies.plotting import CurveSettings, read_curves
from tests.cli.test_fill import TEXTS
from tests.helpers.command_line import DOCUMENTS, all_bytes
from tests.helpers.tiny_models import byte_bpe_tokenizer, wordpiece_tokenizer
from tests.helpers.toy_training import toy_trainer

pytestmark = pytest.mark.slow("fuzzing")

MANY = int(os.environ.get("NPM_FUZZ_EXAMPLES", "0"))
REMOVED = object()
NUMBERS = [-(2**63), -7, -1, 0, 1, 2, 3, 33, 300, -0.5, 0.0, 0.25, 1e-9, 1.5, 1e9, float("nan"), float("inf")]
NAMES = ["", ".", "..", "/", "~", "a", "00000", "../../outside", "../../../outside", "segments/../../outside", "ö\n\0"]
TRAPS = [None, True, False, *NUMBERS, 10**30, *NAMES, "a" * 5000, "\ud800", "1", "true", "null", [], {}, [[]], {"": {}}]
KEYS = [*NAMES, "auto_map", "quantization_config", "attn_implementation", "_attn_implementation", "is_decoder", "dtype"]
KEYS += ["similarity_scale", "query_masks", "tokenizer_class", "model_type", "added_tokens", "digest", "__class__"]
JUNK = st.sampled_from(TRAPS) | st.text(max_size=8) | st.integers(-10, 300) | st.floats() | st.lists(st.integers())
"""JSON values, and what Python's reader takes for some."""


def fuzz(examples: int) -> Callable[[Any], Any]:
    """So many examples of a test, or as many as are asked for from outside."""
    return settings(
        max_examples=MANY or examples,
        derandomize=not MANY,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=list(Phase) if MANY else [Phase.explicit, Phase.generate],  # making a failure small takes minutes
    )


@dataclass(frozen=True, slots=True)
class Ground:
    """Folders for one test: where its commands work, and beside it what they must leave alone."""

    given: Path
    outside: Path

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Within it, `given` is the working folder, and nothing outside may change."""
        before = all_bytes(self.outside)
        home = {"HOME": str(self.given)}
        with contextlib.chdir(self.given), mock.patch.dict(os.environ, home), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
        assert all_bytes(self.outside) == before
        assert {path.name for path in self.given.parent.iterdir()} == {"given", "outside"}

    def run(self, *arguments: str) -> None:
        """Run a command and check that it ends as it should."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        err.reconfigure(errors="backslashreplace")
        read = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        with self.guarded(), mock.patch.multiple(sys, stdin=read, stdout=out, stderr=err):
            status = main(list(arguments))
        said, told = (stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err))
        assert status in (0, 2), told
        assert "Traceback" not in told
        if status == 2:
            assert said == ""
            assert told.count("npmlm: error: ") == 1, told

    def copy(self, folder: Path, name: str) -> Path:
        """A fresh copy of `folder` in the working folder."""
        place = self.given / name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder, place)
        return place


@pytest.fixture
def ground(tmp_path: Path, built_index: Path) -> Ground:
    """What stands outside looks like an index, so that a path that leads there finds what it may want to remove."""
    found = Ground(tmp_path / "given", tmp_path / "outside")
    shutil.copytree(built_index, found.outside)
    (found.given / "empty").mkdir(parents=True)
    (found.given / "file").write_bytes(b"no folder")
    return found


@st.composite
def changed(draw: st.DrawFn, tree: Any) -> Any:
    """A JSON value with one place in it replaced, removed, named otherwise or joined by another; REMOVED for itself."""
    if not isinstance(tree, (dict, list)) or not tree or not draw(st.integers(0, 5)):
        return draw(JUNK | st.just(REMOVED))
    places = sorted(tree) if isinstance(tree, dict) else range(len(tree))
    place, copy = draw(st.sampled_from(places)), tree.copy()
    action = draw(st.sampled_from(["change"] * 6 + ["add", "rename"]))
    if action == "change":
        value = draw(changed(tree[place]))
        if value is REMOVED:
            del copy[place]
        else:
            copy[place] = value
    elif isinstance(copy, list):
        copy.append(draw(JUNK))
    else:
        value = copy.pop(place) if action == "rename" else draw(JUNK)
        copy[draw(st.sampled_from(KEYS))] = value
    return copy


def written(file: Path, tree: Any) -> None:
    """The value as JSON, with what Python's writer lets through."""
    file.write_bytes(json.dumps({} if tree is REMOVED else tree).encode())


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes with a piece replaced by others."""
    start = draw(st.integers(0, len(data)))
    piece = draw(st.binary(max_size=4) | st.sampled_from([b"", b"\n", b'"', b"[" * 5000, b"\xff", b"{}\n", b"null\n"]))
    return data[:start] + piece + data[start + draw(st.sampled_from([0, 1, 5, len(data)])) :]


WORDS = st.text(st.characters(exclude_characters="/~."), max_size=6)
ODD_VALUES = """null [] {} [a {a:1} ' "a \\ a,b a:b a=b ${k} ${oc.env:HOME} ?? - 1e999 nan 0x10 1_000 true [1,2] @x"""
ODD_VALUES = [*ODD_VALUES.split(), "", " 1 ", "\udcff", "\0", "ö" * 300, "!!int 1"]


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A verb with settings of its own; where it would work, what it works on is not there."""
    verb = draw(st.sampled_from(sorted(MODULES)))
    declared = find_verb(verb).settings
    missing = {"index": "missing", "run": "missing", "encoder": "empty", "corpus.files": "missing.jsonl", "out": "made"}
    overrides = [f"{key}={value}" for key, value in missing.items() if key in declared and draw(st.integers(0, 9))]
    known = st.sampled_from(sorted(declared))
    for key in draw(
        st.lists(known | known | known | WORDS | st.sampled_from(["hydra.run.dir", "k.", ".k"]), max_size=3)
    ):
        value = draw(values_of(declared[key])) if key in declared else draw(WORDS)
        marks = draw(st.sampled_from(["", "", "", "", "", "+", "++", "~"]))
        overrides = [each for each in overrides if not each.startswith(f"{key}=")] + [f"{marks}{key}={value}"]
    return [verb, *overrides, *draw(st.lists(WORDS | st.sampled_from(["<mask>", "--", "-k", "--help"]), max_size=1))]


def values_of(setting: Setting) -> st.SearchStrategy[str]:
    """Values that a setting may have, values of other kinds, and what a shell may make of either."""
    kinds = [setting.kind, *get_args(setting.kind)]
    members = [member.value for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum) for member in kind]
    usual = st.sampled_from([str(value) for value in members or NUMBERS])
    return usual | usual | st.sampled_from(ODD_VALUES) | WORDS


@fuzz(50)
@given(arguments=command_lines())
def test_settings_at_random_are_taken_or_refused(ground: Ground, arguments: list[str]) -> None:
    ground.run(*arguments)


def sealed(index: Path, file: Path, content: Any) -> None:
    """Write a manifest with a digest that fits, and put it into the manifests of the folders it is part of."""
    with contextlib.suppress(ValueError):  # digests are made of what may stand in JSON
        if isinstance(content, dict):
            content["digest"] = digest_of({name: value for name, value in content.items() if name != "digest"})
    written(file, content)
    for folder in file.parent.parents:
        above = folder / "manifest.json"
        if folder.is_relative_to(index) and above.is_file():
            whole = json.loads(above.read_bytes())
            name = file.parent.relative_to(folder).as_posix()
            if name in whole["parts"] and isinstance(content, dict):
                sealed(index, above, whole | {"parts": {**whole["parts"], name: content.get("digest")}})
                return


SHARDED = [f"{part}-*/{shard}" for part in ("corpus", "vectors", "lexicon") for shard in ("", "00000/")]
MANIFESTS = ["", "", "encoder-*/", "search-*/", *SHARDED]
COMMANDS = {
    "inspect": [],
    "verify": ["reencoded_batches=0"],
    "delete": ["ids=[iceland]"],
    "compact": [],
    "fill": ["The capital of Iceland is <mask>."],
}


@fuzz(30)
@given(data=st.data())
def test_manifests_with_right_digests_are_read_or_refused(
    ground: Ground, built_index: Path, data: st.DataObject
) -> None:
    index = ground.copy(built_index, "index")
    (file,) = index.glob(data.draw(st.sampled_from(MANIFESTS)) + "manifest.json")
    content = data.draw(changed(json.loads(file.read_bytes())))
    sealed(index, file, content)
    verb = data.draw(st.sampled_from(sorted(COMMANDS)))
    before = all_bytes(index)
    ground.run(verb, "index=index", *COMMANDS[verb])
    if verb not in ("delete", "compact"):
        assert all_bytes(index) == before


@fuzz(40)
@given(data=st.data())
def test_encoders_changed_at_random_work_or_are_refused(
    ground: Ground, tiny_encoder_folder: Path, data: st.DataObject
) -> None:
    folder = ground.copy(tiny_encoder_folder, "encoder")
    file = folder / data.draw(st.sampled_from(["config.json", "tokenizer.json", "tokenizer_config.json"]))
    if data.draw(st.integers(0, 3)):
        written(file, data.draw(changed(json.loads(file.read_bytes()))))
    else:
        file.write_bytes(data.draw(damaged(file.read_bytes())))
    with ground.guarded(), contextlib.suppress(UserError):
        encoder = Encoder.load(str(folder), device="cpu", dtype="float32")
        encode_queries(encoder, ["The capital of Ærø is <mask>."])


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    toy_trainer(run, max_steps=2, parts=("masked",)).train()
    return run


@fuzz(30)
@given(data=st.data())
def test_run_folders_changed_at_random_go_on_or_are_refused(
    ground: Ground, finished_run: Path, data: st.DataObject
) -> None:
    run = ground.copy(finished_run, "run")
    (manifest,) = (run / "checkpoints").glob("*/manifest.json")
    file = data.draw(st.sampled_from([manifest, run / "settings.json", run / "metrics.jsonl"]))
    if file == run / "metrics.jsonl" or not data.draw(st.integers(0, 3)):
        file.write_bytes(data.draw(damaged(file.read_bytes())))
    else:
        content = data.draw(changed(json.loads(file.read_bytes())))
        sealed(run, file, content) if file == manifest else written(file, content)
    with ground.guarded(), contextlib.suppress(UserError):
        read_curves(run, CurveSettings())
    with ground.guarded(), contextlib.suppress(UserError):
        toy_trainer(run, max_steps=2, parts=("masked",)).resume()


@fuzz(15)
@given(data=st.data())
def test_results_changed_at_random_are_compared_or_refused(ground: Ground, data: st.DataObject) -> None:
    line = {"task": "demo", "method": "npm", "text": "It is <mask>.", "gold": "Oslo", "correct": True}
    lines = [{**line, "id": str(number)} for number in range(3)]
    for name in ("a", "b"):
        shutil.rmtree(ground.given / name, ignore_errors=True)
        Result({}, lines, {}, []).write(ground.given / name)
        lines[1] = data.draw(changed(lines[1]).filter(lambda each: each is not REMOVED))
        with contextlib.suppress(ValueError):  # such as half a character, which our writer does not write
            lines = json.loads(json.dumps(lines, allow_nan=False))
    ground.run("compare", "a", "b", "resamples=10")


@pytest.fixture(scope="module")
def filler(built_index: Path) -> PhraseFiller:
    return PhraseFiller.open(built_index)


PIECES = [
    "<mask>",
    "[MASK]",
    "[SEP]",
    "The capital of Iceland is ",
    " Łódź ",
    "\0",
    "\n",
    "\r",
    "\ud800",
    "e\u0301",
    "🜨",
]
TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=12), max_size=6).map("".join)


@fuzz(80)
@given(text=TEXT, before=TEXT, retrieval=st.sampled_from(["dense", "bm25", "hybrid"]), k=st.integers(1, 9))
@example(text="Reykjavík " * 400 + "<mask>", before="", retrieval="hybrid", k=1)
def test_any_text_is_answered_or_refused(filler: PhraseFiller, text: str, before: str, retrieval: str, k: int) -> None:
    if "<mask>" not in text:
        text = f"{before}<mask>{text}"
    with contextlib.suppress(UserError):
        answer = filler.fill(text, k=k, retrieval=retrieval)
        assert json.loads(answer_json(answer))["text"] == text
        assert len(answer.phrases) <= k
        assert sum(phrase.score for phrase in answer.phrases) <= 1 + 1e-6
        for phrase in answer.phrases:
            for place in phrase.occurrences:
                assert TEXTS[place.document][place.start_char : place.end_char].split()


LINES = TEXT.map(lambda text: text.encode(errors="surrogatepass")) | st.binary(max_size=9)


@fuzz(20)
@given(lines=st.lists(LINES, max_size=4))
def test_any_file_of_texts_is_answered_or_refused(ground: Ground, filler: PhraseFiller, lines: list[bytes]) -> None:
    (ground.given / "texts.txt").write_bytes(b"\n".join(lines))
    with mock.patch.object(PhraseFiller, "open", lambda *_, **__: filler):
        ground.run("fill", "index=index", "texts=texts.txt", "output=json")


SUFFIXES = sorted({".jsonl", ".txt", ".csv", ".tsv", ".md", ".html"} & set(FORMATS))
HEADS = {".csv": b"id,title,text\n", ".tsv": b"id\ttitle\ttext\n"}
TOKENIZERS = {"wordpiece": wordpiece_tokenizer(), "byte_bpe": byte_bpe_tokenizer()}


@st.composite
def corpora(draw: st.DrawFn, suffix: str) -> bytes:
    """Lines of a corpus, most of them right ones, some changed, some any bytes."""
    lines = [b"" if suffix == ".jsonl" else HEADS.get(suffix, b"")]
    for document in draw(st.lists(st.sampled_from(DOCUMENTS), max_size=4)):
        content = draw(st.just(document) | changed(document))
        if suffix == ".jsonl":
            line = json.dumps(None if content is REMOVED else content, ensure_ascii=draw(st.booleans()))
        else:
            cells = content.values() if isinstance(content, dict) else [document["text"], draw(st.text())]
            line = {".csv": ",", ".tsv": "\t"}.get(suffix, " ").join(map(str, cells))
        lines.append(line.encode(errors="surrogatepass") + b"\n")
    data = b"".join(lines)
    return draw(st.just(data) | damaged(data))


@fuzz(80)
@given(data=st.data())
def test_any_corpus_is_read_whole_or_refused(ground: Ground, data: st.DataObject) -> None:
    suffix, tokenizer = data.draw(st.sampled_from(SUFFIXES)), data.draw(st.sampled_from(sorted(TOKENIZERS)))
    file = ground.given / f"corpus{suffix}"
    file.write_bytes(data.draw(corpora(suffix)))
    shutil.rmtree(ground.given / "store", ignore_errors=True)
    packer = BlockPacker(TOKENIZERS[tokenizer], BlockSettings(max_block_tokens=24))
    with ground.guarded(), contextlib.suppress(UserError):
        documents = list(read_corpus(CorpusSettings(files=[str(file)], kept_fields=["title"])))
        assert documents
        store = build_block_store(ground.given / "store", documents, packer, settings={})
        stored = [store.document(number).text for number in range(store.document_count)]
        assert stored == [document.text for document in documents]
        assert all(map(store.block_text, range(store.block_count)))

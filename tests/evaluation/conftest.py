"""A tiny random encoder, an index over five passages, and questions about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npm.corpus.blocks import BlockSettings
from npm.corpus.settings import CorpusSettings
from npm.indexing.build import build_index
from npm.indexing.settings import IndexBuildSettings
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead
from tests.helpers.language_models import bert_with_words, random_language_model
from tests.helpers.tiny_models import FAMILIES, tiny_encoder

PASSAGES = {
    "iceland": "Reykjavík is the capital of Iceland. It lies on the coast of Faxaflói.",
    "france": "Paris is the capital of France, and the Seine flows through Paris.",
    "rhine": "The river Rhine rises in Switzerland and flows to the North Sea in the Netherlands.",
    "quixote": "Don Quixote was written by Miguel de Cervantes. It appeared in 1605 in Madrid.",
    "norway": "Norway's capital, Oslo, lies at the end of the Oslofjord.",
}
QUESTIONS = [
    ("q1", "capital", "The capital of Iceland is <mask>.", ["Reykjavík", "Reykjavik"], "test"),
    ("q2", "capital", "<mask> is the capital of France.", ["Paris"], "test"),
    ("q3", "river", "The river that flows to the North Sea is <mask>.", ["the Rhine", "Rhine river"], "test"),
    ("q4", "capital", "Norway's capital is <mask>.", ["Oslo"], "dev"),
    ("q5", "book", "Who wrote Don Quixote? <mask>.", ["Cervantes", "Miguel de Cervantes"], "test"),
    ("q6", "moon", "A moon of Mars is <mask>.", ["Phobos"], "test"),
]


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    return tiny_encoder("bert", sentences=tuple(PASSAGES.values()))


@pytest.fixture(scope="session")
def index_folder(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluation")
    corpus = folder / "passages.jsonl"
    lines = [json.dumps({"id": name, "title": name.title(), "text": text}) for name, text in PASSAGES.items()]
    corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = IndexBuildSettings(
        corpus=CorpusSettings(files=[str(corpus)]), blocks=BlockSettings(max_block_tokens=encoder.max_input_tokens)
    )
    build_index(folder / "index", settings, encoder)
    return folder / "index"


@pytest.fixture(scope="session")
def questions_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = ("id", "kind", "text", "answers", "split")
    file = tmp_path_factory.mktemp("questions") / "questions.json"
    entries = [dict(zip(keys, question, strict=True)) for question in QUESTIONS]
    file.write_text(json.dumps({"questions": entries}, ensure_ascii=False), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def bert() -> Encoder:
    """A tiny encoder whose vocabulary holds some whole words."""
    return bert_with_words()


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, MaskedHead, Path]:
    """A masked language model of each family with random weights, and the folder it is saved in."""
    folder = tmp_path_factory.mktemp(request.param)
    return *random_language_model(request.param, folder), folder

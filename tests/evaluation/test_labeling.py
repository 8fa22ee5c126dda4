"""Labels for texts without gold: what labels may be, scores that compete and scores that do not, and their places."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npm
from npm import PhraseFiller
from npm.core.errors import CorpusError, QueryError, SettingError, UserError
from npm.core.types import silent
from npm.evaluation import labeling
from npm.evaluation.labeling import LabeledText, label_rows, label_task, read_examples
from npm.evaluation.methods.nonparametric import NonparametricLabels, corpus_prompts
from npm.evaluation.methods.occurrences import find_occurrences
from npm.evaluation.tasks import Task
from npm.retrieval.settings import FillSettings
from tests.evaluation.methods.word_indexes import index_of_texts
from tests.helpers.tiny_models import SENTENCES, tiny_encoder

WORDS = {"city": ["city", "capital"], "river": ["river", "North Sea"], "written": ["novel", "written"]}
TEXTS = ["Paris lies on the Seine.", "The Rhine", "In Poland, and in 1605:", "Oslo", "Don Quixote"]
TEMPLATE = "{text} It is a <mask>."
ROWS = [(f"text {number}", {"text": text}) for number, text in enumerate(TEXTS)]
TASK_FILE = """
suite: closed
data: {file: rows.csv, columns: {text: body}}
template: "{{ text }} It was <mask>."
labels: [{value: 0, words: [bad]}, {value: 1, words: [great]}]
"""


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> PhraseFiller:
    encoder = tiny_encoder("roberta")
    texts = [*SENTENCES, "The novel was written in a city.", "A capital by the North Sea and the river."] * 2
    index = index_of_texts(tmp_path_factory.mktemp("labels") / "index", texts, encoder)
    return PhraseFiller(index, encoder, FillSettings())


def labeled(filler: PhraseFiller, labels: object = WORDS, **options: Any) -> list[LabeledText]:
    return list(label_rows(filler, label_task(labels, TEMPLATE), ROWS, **options))


def words_of(task: Task) -> dict[str, list[str]]:
    return {label.name: label.words for label in task.labels}


def test_labels_are_words_by_name_or_names_alone_written_or_in_a_file(tmp_path: Path) -> None:
    alone = {"city": ["city"], "river": ["river"]}
    for name, content in (("a.yaml", "city: [city]\nriver: [river]"), ("b.json", '["city", "river"]')):
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert words_of(label_task("{yes: [no, 2024], 7: [null]}")) == {"yes": ["no", "2024"], "7": ["null"]}
    given: list[object] = [alone, ["city", "river"], "[city, river]", "{city: [city], river: [river]}"]
    for labels in (*given, str(tmp_path / "a.yaml"), tmp_path / "b.json"):
        task = label_task(labels, TEMPLATE, "body")
        assert words_of(task) == alone
        assert task.prompt.render({"text": "Oslo."}) == "Oslo. It is a <mask>."
        assert task.data.columns == {"text": "body"}


def test_an_index_without_vectors_of_tokens_labels_nothing(filler: PhraseFiller, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The city of Oslo. The river Rhine.")
    vectors = {"tokens": False, "blocks": False}
    blocks = {"max_block_tokens": 64}
    npm.build([str(tmp_path / "a.txt")], tmp_path / "index", encoder=filler.encoder, vectors=vectors, blocks=blocks)
    with PhraseFiller.open(tmp_path / "index", filler.encoder) as words, pytest.raises(SettingError, match="vectors="):
        list(label_rows(words, label_task(["city", "river"], TEMPLATE), ROWS))


def test_columns_of_a_template_may_have_any_name(filler: PhraseFiller) -> None:
    task = label_task(WORDS, "{pen name} wrote {stop} in {text}: {not} <mask>, {pen name}", "body")
    row = {"pen name": "Ann", "stop": "it", "body": "Rome", "not": "a"}
    (example,) = read_examples(task, [("a.csv:2", row)], filler.encoder)
    assert example.text == "Ann wrote it in Rome: a <mask>, Ann"
    with pytest.raises(CorpusError, match="'pen name'"):
        read_examples(task, [("a.csv:2", row | {"pen name": ""})], filler.encoder)


def test_labels_of_a_task_come_with_its_template_and_columns(tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(TASK_FILE, encoding="utf-8")
    task = label_task(file)
    assert words_of(task) == {"bad": ["bad"], "great": ["great"]}
    assert (task.template, task.data.columns) == ("{{ text }} It was <mask>.", {"text": "body"})
    other = label_task(str(file), "{text}: <mask>", "review")
    assert (other.template, other.data.columns) == ("{{ text }}: <mask>", {"text": "review"})
    assert words_of(label_task("agn")).keys() == {"world", "sports", "business", "technology"}


@pytest.mark.parametrize(
    ("labels", "template", "part"),
    [
        ("", "", "labels is required"),
        (["city"], "", "at least two"),
        ({"a": ["x"], "b": ["X"]}, "", "different words"),
        ({"a": [], "b": ["x"]}, "", "words"),
        ("{a: [x, b: }", "", "cannot read"),
        ("absent.yaml", "", "absent.yaml"),
        ("agm", "", "agn"),
        ("trex", "", "open task"),
        (["a", "b"], "{text}.", "<mask>"),
        (["a", "b"], "It is <mask>.", "column in single braces"),
        (["a", "b"], "{{ text }} It is <mask>.", "column in single braces"),
        (7, "", "labels"),
    ],
)
def test_what_are_no_labels_or_no_template_is_refused(labels: object, template: str, part: str) -> None:
    with pytest.raises(UserError, match=part):
        label_task(labels, template)


def test_scores_that_compete_are_those_of_an_evaluation(filler: PhraseFiller) -> None:
    task = label_task(WORDS, TEMPLATE)
    examples = read_examples(task, ROWS, filler.encoder)
    expected = NonparametricLabels(filler.index, filler.encoder).predict(task, examples, silent).answers
    for found, prediction in zip(labeled(filler), expected, strict=True):
        scores = dict(zip(WORDS, prediction.scores, strict=True))
        assert {each.label: each.score for each in found.ranked} == pytest.approx(scores, rel=1e-5)
        assert [each.label for each in found.ranked] == sorted(scores, key=lambda name: -scores[name])
        assert found.labels == found.ranked[:1]
        evidence = {list(WORDS)[each.label]: (each.word, each.occurrence) for each in prediction.evidence}
        assert {each.label: (each.word, each.occurrence) for each in found.ranked} == evidence
        for each in found.ranked:
            assert each.occurrence is not None and each.occurrence.parts[1].casefold() == str(each.word).casefold()


def plain_fit(filler: PhraseFiller, texts: list[str], sentences: list[str]) -> list[list[float]]:
    """Log of the mean over a label's words of each word's mean evidence over its mean log at the sentences."""
    words = [word for own in WORDS.values() for word in own]
    method = NonparametricLabels(filler.index, filler.encoder)
    scoring = method.prepare(label_task(WORDS, TEMPLATE))[0]
    occurrences = find_occurrences(filler.index, filler.encoder, words)
    logs = method.word_scores(occurrences, scoring, [*texts, *sentences]).log_sums.tolist()
    table = []
    for row in logs[: len(texts)]:
        fit = dict[str, float]()
        for number, word in enumerate(words):
            fit[word] = row[number] - sum(each[number] for each in logs[len(texts) :]) / len(sentences)
        table.append([math.log(sum(math.exp(fit[word]) for word in own) / len(own)) for own in WORDS.values()])
    return table


def test_scores_that_do_not_compete_count_the_sentences_that_fit_less(filler: PhraseFiller) -> None:
    task = label_task(WORDS, TEMPLATE)
    texts = [example.text for example in read_examples(task, ROWS, filler.encoder)]
    sentences = corpus_prompts(task, filler.index)
    fits = np.array(plain_fit(filler, [*texts, *sentences], sentences))  # f64 [q + prompts, 3]
    found = labeled(filler, multi_label=True, min_score=0.5)
    counts = set()
    for own, fit in zip(found, fits[: len(texts)], strict=True):
        below = {name: float((fits[len(texts) :, n] < fit[n] - 1e-4).mean()) for n, name in enumerate(WORDS)}
        scores = {each.label: each.score for each in own.ranked}
        assert scores == pytest.approx(below, abs=1.5 / len(sentences))  # a text may be one of the sentences
        assert [each.label for each in own.labels] == [each.label for each in own.ranked if each.score >= 0.5]
        counts.add(len(own.labels))
    assert len(counts) > 1


def test_sentences_of_the_corpus_with_a_mask_are_no_prompts(tmp_path: Path) -> None:
    texts = ["Oslo is the <mask> of Norway, as everybody knows.", "A capital by the North Sea and the river."]
    encoder = tiny_encoder("roberta")
    filler = PhraseFiller(index_of_texts(tmp_path / "index", texts, encoder), encoder, FillSettings())
    assert corpus_prompts(label_task(WORDS, TEMPLATE), filler.index) == [f"{texts[1]} It is a <mask>."]
    assert len(labeled(filler, {"capital": ["capital"], "river": ["river"]})) == len(TEXTS)


def test_a_text_below_the_threshold_has_no_label(filler: PhraseFiller) -> None:
    best = [found.labels[0].score for found in labeled(filler)]
    least = sorted(best)[2]
    for found, score in zip(labeled(filler, min_score=least), best, strict=True):
        assert len(found.labels) == (score >= least)
        assert found.ranked[0].score == score
    assert not any(found.labels for found in labeled(filler, multi_label=True, min_score=1.0) if not found.ranked)


@pytest.mark.parametrize("multi_label", [True, False])
def test_labels_do_not_depend_on_how_texts_are_batched(
    multi_label: bool, filler: PhraseFiller, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = labeled(filler, multi_label=multi_label)
    steps: list[float] = []
    monkeypatch.setattr(labeling, "TEXTS_AT_ONCE", 2)
    apart = labeled(filler, multi_label=multi_label, progress=lambda _, done, total: steps.append(done))
    assert steps == [2, 4, 5]
    for one, other in zip(together, apart, strict=True):
        assert [each.label for each in one.ranked] == [each.label for each in other.ranked]
        assert [each.score for each in one.ranked] == pytest.approx([each.score for each in other.ranked], abs=1e-5)


def test_a_text_longer_than_the_encoder_takes_keeps_its_beginning(filler: PhraseFiller) -> None:
    task = label_task(WORDS, TEMPLATE)
    long = "first " + "and so on " * filler.encoder.max_input_tokens
    short, cut = read_examples(task, [ROWS[0], ("long", {"text": long})], filler.encoder)
    assert (short.cut, cut.cut) == (False, True)
    assert cut.text.startswith("first and so on") and cut.text.endswith("It is a <mask>.")


def test_rows_that_cannot_be_read_and_words_that_do_not_occur_are_named(filler: PhraseFiller) -> None:
    task = label_task(WORDS, TEMPLATE)
    for row, part in (({"body": "x"}, "a.csv:2: no column 'text'"), ({"text": ""}, "a.csv:2: 'text' must be text")):
        with pytest.raises(CorpusError, match=part):
            read_examples(task, [("a.csv:2", row)], filler.encoder)
    with pytest.raises(QueryError, match=r"a\.csv:2: column 'text' contains <mask>"):
        read_examples(task, [("a.csv:2", {"text": "a <mask>"})], filler.encoder)
    with pytest.raises(SettingError, match=r"zeppelin.*labels$"):
        labeled(filler, ["city", "zeppelin"])
    notes: list[str] = []
    labeled(filler, {"city": ["city", "zeppelin"], "river": ["river"]}, notice=notes.append)
    assert len(notes) == 1 and "zeppelin (0)" in notes[0]


def test_python_labels_texts_and_rows_from_a_filler_or_a_folder(filler: PhraseFiller) -> None:
    assert npm.label(TEXTS, WORDS, filler, template=TEMPLATE) == labeled(filler)
    rows = [{"head": text, "n": 1} for text in TEXTS]
    assert npm.label(rows, json.dumps(WORDS), filler, template="{head} It is a <mask>.") == labeled(filler)
    folder = filler.index.folder
    assert npm.label([*TEXTS], WORDS, folder, filler.encoder, template=TEMPLATE) == labeled(filler)
    with pytest.raises(SettingError, match="min_score"):
        npm.label(TEXTS, WORDS, filler, min_score=2)

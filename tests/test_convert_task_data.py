"""Published folders as tasks read them: LAMA, KAMEL, TempLAMA, TriviaQA in small files of exactly their form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npm.core.errors import CorpusError
from npm.evaluation.tasks import load_task
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead
from scripts.convert_task_data import drop_guessed, has_one_mask, main
from tests.evaluation.task_samples import SHIPPED, read_examples, written
from tests.helpers.language_models import random_language_model
from tests.helpers.tiny_models import tiny_encoder


def trex_row(uuid: str, subject: str, right: str, *evidences: dict[str, str]) -> dict[str, Any]:
    return {"uuid": uuid, "obj_label": right, "sub_label": subject, "evidences": list(evidences)}


def evidence(surface: str, sentence: str = "[X] lives in [MASK].") -> dict[str, str]:
    return {"sub_surface": "She", "obj_surface": surface, "masked_sentence": sentence}


def write_lama(folder: Path) -> Path:
    """LAMA with two relations of T-REx and one of Google-RE."""
    lama = folder / "LAMA"
    relations = [
        {"relation": "P19", "template": "[X] was born in [Y] .", "type": "N-1"},
        {"relation": "P37", "template": "The official language of [X] is [Y] .", "type": "N-M"},
    ]
    written(lama, relations, "relations.jsonl")
    born = [
        trex_row("a", "Ada Lovelace", "London", evidence("London"), evidence("the City of London")),
        trex_row("b", "London Breed", "London", evidence("London")),
        trex_row("c", "Ann", "Rome", evidence("Rome", "[MASK] or [MASK]"), evidence("Roma")),
        trex_row("d", "Bob", "Oslo", evidence("Oslo", "no place at all")),
    ]
    written(lama, born, "TREx/P19.jsonl")
    written(lama, [trex_row("e", "Norway", "Norwegian")], "TREx/P37.jsonl")
    google = {"sub_label": "Eve", "obj_label": "Bath", "evidences": [{"url": "", "snippet": ""}]}
    rows = [
        {**google, "uuid": "g", "masked_sentences": ["Eve was born", "in [MASK] ."]},
        {**google, "uuid": "h", "masked_sentences": ["[MASK] is", "[MASK]"]},
    ]
    written(lama, rows, "Google_RE/place_of_birth_test.jsonl")
    return lama


def asked(name: str, data_dir: Path) -> list[tuple[str, tuple[str, ...], str, tuple[str, ...]]]:
    """The examples of a shipped task, of all its rows."""
    task = load_task(name, folder=SHIPPED)
    rows = (data_dir / task.data.file).read_text("utf-8")
    written(data_dir, [json.loads(row) for row in rows.splitlines()] * 2, task.data.file)  # one half is for development
    found = read_examples(task, data_dir, encoder=tiny_encoder("bert"))
    return [(each.text, each.answers, each.group, each.subsets) for each in found[-len(rows.splitlines()) :]]


def test_trex_takes_the_relations_template_and_every_surface_of_the_object(tmp_path: Path) -> None:
    main("lama", str(write_lama(tmp_path)), str(tmp_path / "open"))
    assert asked("trex", tmp_path) == [
        ("Ada Lovelace was born in <mask>.", ("London", "the City of London"), "P19", ("uhn",)),
        ("London Breed was born in <mask>.", ("London",), "P19", ()),
        ("Ann was born in <mask>.", ("Rome", "Roma"), "P19", ("uhn",)),
        ("The official language of Norway is <mask>.", ("Norwegian",), "P37", ("uhn",)),
    ]
    assert asked("google_re", tmp_path)[-1] == ("Eve was born in <mask>.", ("Bath",), "place_of_birth", ("uhn",))


def test_the_published_subsets_are_taken_by_id(tmp_path: Path) -> None:
    lama = write_lama(tmp_path)
    written(lama, [trex_row("b", "London Breed", "London")], "TREx_UHN/P19.jsonl")
    written(lama, [trex_row("c", "Ann", "Rome")], "TREx-easy-hard/Hard/P19.jsonl")
    main("lama", str(lama), str(tmp_path / "open"))
    assert [subsets for *_, subsets in asked("trex", tmp_path)] == [(), ("uhn",), ("hard",), ()]
    written(lama, [], "TREx_UHN/P19.jsonl").write_text("\n", "utf-8")
    with pytest.raises(CorpusError, match="TREx_UHN is missing or empty"):
        main("lama", str(lama), str(tmp_path / "open"))


@pytest.mark.parametrize(
    ("row", "stays"),
    [
        (trex_row("m", "Ann", "Rome"), True),
        (trex_row("m", "Ann", "Rome", evidence("Rome"), evidence("Rome")), True),  # two sentences with one mask each
        (trex_row("m", "Ann", "Rome", evidence("Rome", "[MASK] [MASK]"), evidence("Rome")), True),
        (trex_row("m", "Ann", "Rome", evidence("Rome", "[MASK] [MASK]"), evidence("Rome", "none")), False),
        ({**trex_row("m", "Ann", "Rome"), "masked_sentences": ["Ann lives", "in [MASK]."]}, True),
        ({**trex_row("m", "Ann", "Rome"), "masked_sentences": ["in [MASK].", "[MASK]"]}, False),
    ],
)
def test_a_fact_stays_if_a_text_has_exactly_one_mask(row: dict[str, Any], stays: bool) -> None:
    assert has_one_mask(row, row["evidences"]) == stays


def test_a_name_that_lets_the_model_guess_takes_a_row_out_of_uhn(tmp_path: Path) -> None:
    from npm.evaluation.methods.parametric import masked_logits
    from npm.retrieval.queries import encode_masks

    found: tuple[Encoder, MaskedHead] = random_language_model("roberta", tmp_path)
    encoder, head = found
    guesses = set()
    for name in ("Ann", "Bo"):
        text = f"{name} is a common name in the following city: <mask>."
        ((_, logits),) = masked_logits(head, encode_masks(encoder, [text], masks_per_text=1).vectors[:, 0])
        best = sorted(range(logits.shape[1]), key=lambda token: -float(logits[0, token]))[:3]
        guesses |= {encoder.tokenizer.decode([token]).strip() for token in best}
    row = {"relation": "P19", "subject": "Ann Bo", "uhn": True}
    rows = [{**row, "answers": [word, "other"]} for word in sorted(guesses)]
    others = [{**row, "answers": ["Llanfairpwll"]}, {**rows[0], "relation": "P37"}]
    drop_guessed(both := [*rows, *others], str(tmp_path))
    assert [each["uhn"] for each in both] == [False] * len(guesses) + [True, True]


def test_kamel_asks_the_question_of_the_relation(tmp_path: Path) -> None:
    kamel = tmp_path / "KAMEL"
    rows = [{"index": [1], "sub_label": "Ann", "obj_label": ["Ajax", "A.C."]}]
    written(kamel / "data" / "KAMEL", rows, "P54/dev.jsonl")
    (kamel / "question-templates.csv").write_text("relation,question\nP54, What team, if any, was [S] in?\n", "utf-8")
    main("kamel", str(kamel), str(tmp_path / "open"))
    expected = ("What team, if any, was Ann in? Answer: <mask>", ("Ajax", "A.C."), "P54", ())
    assert asked("kamel", tmp_path)[-1] == expected


def fact(subject: str, date: str, *names: str, aliases: tuple[str, ...] = ()) -> dict[str, Any]:
    answer = [{"wikidata_id": f"Q{name}", "name": name, "aliases": list(aliases)} for name in names]
    identifier = f"{subject}_P54_{date}"
    return {"query": f"{subject} plays for _X_.", "answer": answer, "date": date, "id": identifier, "relation": "P54"}


FACTS = [
    fact("same", "2010", "Ajax"),
    fact("same", "2020", "Ajax", aliases=("AFC Ajax",)),
    fact("moved", "2010", "Ajax"),
    fact("moved", "2015", "Roma"),
    fact("moved", "2020", "Lyon"),
    fact("partly", "2010", "Ajax", "Roma"),
    fact("partly", "2020", "Ajax"),
    fact("new", "2020", "Lyon"),
    fact("several", "2010", "A"),
    fact("several", "2010", "B"),
    fact("several", "2020", "B", "A"),
]


def test_templama_compares_two_dates(tmp_path: Path) -> None:
    folder = tmp_path / "templama"
    written(folder, FACTS, "test.json")
    main("templama", str(folder), str(tmp_path / "open"))
    assert asked("templama", tmp_path)[-3:] == [
        ("same plays for <mask>.", ("Ajax", "AFC Ajax"), "P54", ("unchanged",)),
        ("moved plays for <mask>.", ("Lyon",), "P54", ("changed",)),
        ("several plays for <mask>.", ("B", "A"), "P54", ("unchanged",)),
    ]
    main("templama", str(folder), str(tmp_path / "open"), "2020", "2010")
    rows = [json.loads(row) for row in (tmp_path / "open" / "templama-test.jsonl").read_text("utf-8").splitlines()]
    assert [(row["answers"], row["old_answers"]) for row in rows][:2] == [(["Ajax"], []), (["Ajax"], ["Lyon"])]
    with pytest.raises(CorpusError, match="2011 and 2020 have no fact"):
        main("templama", str(folder), str(tmp_path / "open"), "2011", "2020")


def test_trivia_qa_has_all_names_of_the_answer(tmp_path: Path) -> None:
    answer = {"Value": "Ann", "Aliases": ["Ann B", "Ann"], "NormalizedAliases": ["ann b"], "Type": "WikipediaEntity"}
    written(tmp_path, [{"Data": [{"Question": "Who wrote it?", "Answer": answer}]}], "unfiltered-web-dev.json")
    main("trivia_qa", str(tmp_path), str(tmp_path / "open"))
    expected = ("Who wrote it? The answer is: <mask>.", ("Ann", "Ann B", "ann b"), "", ())
    assert asked("trivia_qa", tmp_path)[-1] == expected


def test_lists_of_words_are_cut_to_the_shortest(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("capital, city, town\n\nriver, stream\n", encoding="utf-8")
    main("verbalizer", str(tmp_path / "mine.txt"), str(tmp_path / "mine.json"))
    assert json.loads((tmp_path / "mine.json").read_text("utf-8")) == [["capital", "city"], ["river", "stream"]]

"""Published folders as they are: LAMA, KAMEL, TempLAMA in small files of exactly their form, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from npm.core.errors import CorpusError, SettingError
from npm.evaluation.tasks.data import TaskExamples, read_task
from npm.evaluation.tasks.readers import UHN_BY_STRING, read_published
from npm.evaluation.tasks.task import Example, Task
from npm.evaluation.tasks.task_file import load_task
from npm.evaluation.zero_shot.unhelpful_names import lacks_name_filter, without_guessed_names
from npm.models.encoder import Encoder
from npm.models.masked_lm import MaskedHead
from tests.evaluation.tasks.task_samples import SHIPPED, read_examples, task_written, written
from tests.helpers.tiny_models import tiny_encoder

REPRODUCTION = Path(__file__).parents[3] / "docs" / "reproduction.md"
SHARED_TREX = Path(__file__).parents[4] / "shared" / "data" / "open" / "lama-trex.jsonl"


@pytest.fixture(scope="module")
def counting() -> Encoder:
    """What counts the tokens of answers."""
    return tiny_encoder("bert")


def evidence(surface: str, sentence: str = "[X] lives in [MASK].") -> dict[str, str]:
    return {"sub_surface": "She", "obj_surface": surface, "masked_sentence": sentence}


def trex_row(uuid: str, subject: str, right: str, *evidences: dict[str, str], relation: str = "P19") -> dict[str, Any]:
    return {
        "uuid": uuid,
        "obj_uri": "Q1",
        "obj_label": right,
        "sub_uri": "Q2",
        "sub_label": subject,
        "predicate_id": relation,
        "evidences": list(evidences),
    }


def write_lama(folder: Path) -> Path:
    """LAMA with two relations of T-REx and one of Google-RE."""
    lama = folder / "LAMA"
    relations = [
        {"relation": "P19", "template": "[X] was born in [Y] .", "label": "place of birth", "type": "N-1"},
        {"relation": "P37", "template": "The official language of [X] is [Y] .", "label": "language", "type": "N-M"},
    ]
    written(lama, relations, "relations.jsonl")
    born = [
        trex_row("a", "Ada Lovelace", "London", evidence("London"), evidence("the City of London")),
        trex_row("b", "London Breed", "London", evidence("London")),
        trex_row("c", "Ann", "Rome", evidence("Rome", "[MASK] or [MASK]"), evidence("Roma")),
        trex_row("d", "Bob", "Oslo", evidence("Oslo", "no place at all")),
    ]
    written(lama, born, "TREx/P19.jsonl")
    written(lama, [trex_row("e", "Norway", "Norwegian", relation="P37")], "TREx/P37.jsonl")
    google = {"pred": "/people/person/place_of_birth", "sub_label": "Eve", "obj_label": "Bath", "uuid": "g"}
    google |= {"evidences": [{"url": "", "snippet": ""}], "judgments": []}
    rows = [
        {**google, "masked_sentences": ["Eve was born", "in [MASK] ."]},
        {**google, "uuid": "h", "masked_sentences": ["[MASK] is", "[MASK]"]},
    ]
    written(lama, rows, "Google_RE/place_of_birth_test.jsonl")
    return lama


def asked(read: TaskExamples) -> list[tuple[str, tuple[str, ...], str, tuple[str, ...]]]:
    return [(each.text, each.answers, each.group, each.subsets) for each in read.examples]


def lama_task(folder: Path, **more: Any) -> Task:
    """T-REx as the page on reproduction asks it, beside the folder."""
    (page,) = re.findall(r"```yaml\n(.*?)```", REPRODUCTION.read_text(encoding="utf-8"), flags=re.DOTALL)
    return load_task(task_written(folder, page), folder=SHIPPED, **more)


def test_trex_takes_the_relations_template_and_every_surface_of_the_object(tmp_path: Path, counting: Encoder) -> None:
    write_lama(tmp_path)
    read = read_task(lama_task(tmp_path), encoder=counting)
    assert asked(read) == [
        ("Ada Lovelace was born in <mask>.", ("London", "the City of London"), "P19", ("uhn",)),
        ("London Breed was born in <mask>.", ("London",), "P19", ()),
        ("Ann was born in <mask>.", ("Rome", "Roma"), "P19", ("uhn",)),
        ("The official language of Norway is <mask>.", ("Norwegian",), "P37", ("uhn",)),
    ]
    assert read.subsets == ("uhn",)
    assert read.notes == (
        "mine: left out: 1 row without exactly one [MASK].",
        f"mine: {UHN_BY_STRING}",
        "mine: the data does not say which examples are hard.",
    )


def test_the_published_subsets_are_taken_by_id_where_they_lie_beside_the_part(
    tmp_path: Path, counting: Encoder
) -> None:
    lama = write_lama(tmp_path)
    written(lama, [trex_row("b", "London Breed", "London")], "TREx_UHN/P19.jsonl")
    written(lama, [trex_row("c", "Ann", "Rome")], "TREx-easy-hard/Hard/P19.jsonl")
    read = read_task(lama_task(tmp_path), encoder=counting)
    assert [each.subsets for each in read.examples] == [(), ("uhn",), ("hard",), ()]
    assert read.subsets == ("uhn", "hard") and "published subset" in read.notes[1]
    assert not lacks_name_filter(read)


@pytest.mark.parametrize("rows", [{}, {"inner/P19.jsonl": ["a"]}, {"P19.jsonl": []}])
@pytest.mark.parametrize("subset", ["TREx_UHN", "TREx-easy-hard/Hard"])
def test_a_folder_of_a_subset_without_ids_is_told_with_what_it_holds(
    tmp_path: Path, subset: str, rows: dict[str, list[str]]
) -> None:
    place = write_lama(tmp_path) / subset
    place.mkdir(parents=True)
    for name, ids in rows.items():
        written(place, [trex_row(uuid, "Ann", "Rome") for uuid in ids], name)
    told = refusal(load_task("trex", folder=SHIPPED), tmp_path)
    assert str(place) in told and "uuid" in told


def test_a_subset_none_of_whose_ids_is_known_is_told_with_one_of_them(tmp_path: Path, counting: Encoder) -> None:
    lama = write_lama(tmp_path)
    written(lama, [trex_row("x1", "Ann", "Rome"), trex_row("x2", "Ann", "Rome")], "TREx_hard/P19.jsonl")
    told = refusal(lama_task(tmp_path), tmp_path, encoder=counting)
    assert "TREx_hard/P19.jsonl:1" in told and "'x1'" in told


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
def test_a_fact_stays_if_its_text_or_one_of_its_evidences_has_exactly_one_mask(
    tmp_path: Path, row: dict[str, Any], stays: bool
) -> None:
    written(write_lama(tmp_path), [row], "TREx/P37.jsonl")
    published = read_published(load_task("trex", folder=SHIPPED), tmp_path / "LAMA")
    assert [own["uuid"] for _, own in published.rows] == ["a", "b", "c", *["m"] * stays]
    assert published.notes[0] == f"left out: {'1 row' if stays else '2 rows'} without exactly one [MASK]."


def test_google_re_takes_the_templates_of_the_original_and_sentences_with_one_mask(
    tmp_path: Path, counting: Encoder
) -> None:
    write_lama(tmp_path)
    read = read_task(load_task("google_re", folder=SHIPPED), tmp_path, encoder=counting)
    assert asked(read) == [("Eve was born in <mask>.", ("Bath",), "place_of_birth", ("uhn",))]


def test_a_table_at_hand_goes_before_the_folder(tmp_path: Path) -> None:
    write_lama(tmp_path)
    row = {"relation": "P1", "template": "[X] is [Y] .", "subject": "Ann", "answers": ["old"]}
    written(tmp_path, [row], "open/lama-trex.jsonl")
    read = read_task(load_task("trex", folder=SHIPPED), tmp_path)
    assert asked(read) == [("Ann is <mask>.", ("old",), "P1", ())] and read.subsets == ()


@pytest.mark.skipif(not SHARED_TREX.is_file(), reason="the shared data is not here")
def test_the_shared_table_of_trex_is_asked_as_before() -> None:
    found = read_examples(load_task("trex", folder=SHIPPED), SHARED_TREX.parents[1], limit=2000)
    assert len(found) == 2000 and found[0].text.count("<mask>") == 1
    assert all(len(each.answers) == 1 and not each.subsets and not each.where for each in found)


def test_a_name_that_lets_the_model_guess_takes_an_example_out_of_uhn(
    model: tuple[Encoder, MaskedHead, Path],
) -> None:
    encoder, head, _ = model
    example = Example(
        "0", "Ann Bo was born in <mask>.", answers=("?",), group="P19", subject="Ann Bo", subsets=("uhn",)
    )
    guesses = set()
    from npm.evaluation.zero_shot.parametric import masked_logits
    from npm.retrieval.queries import encode_masks

    for name in ("Ann", "Bo"):
        vector = encode_masks(
            encoder, [f"{name} is a common name in the following city: <mask>."], masks_per_text=1
        ).vectors[:, 0]
        ((_, logits),) = masked_logits(head, vector)
        for token in sorted(range(logits.shape[1]), key=lambda token: -float(logits[0, token]))[:3]:
            guesses.add(encoder.tokenizer.decode([token]).strip())
    words = [*sorted(guesses), "Llanfairpwll"]
    examples = [Example(**{**_fields(example), "answers": (word, "other")}) for word in words]
    elsewhere = Example(**{**_fields(examples[0]), "group": "P37"})
    read = TaskExamples([*examples, elsewhere], ("uhn",), (f"t: {UHN_BY_STRING}",))
    found = without_guessed_names(read, encoder, head)
    assert [each.subsets for each in found.examples] == [()] * len(guesses) + [("uhn",), ("uhn",)]
    assert lacks_name_filter(read) and not lacks_name_filter(found) and encoder.name in found.notes[0]


def _fields(example: Example) -> dict[str, Any]:
    return {name: getattr(example, name) for name in Example.__dataclass_fields__}


def test_kamel_asks_the_question_of_the_relation(tmp_path: Path) -> None:
    kamel = tmp_path / "KAMEL"
    rows = [{"index": [1], "sub_label": "Ann", "obj_label": ["Ajax", "A.C."]}]
    written(kamel / "data" / "KAMEL", rows, "P54/dev.jsonl")
    (kamel / "question-templates.csv").write_text("P54, What teams was [S] a member of?\n", encoding="utf-8")
    read = read_task(load_task("kamel", folder=SHIPPED), tmp_path)
    assert asked(read) == [("What teams was Ann a member of? Answer: <mask>", ("Ajax", "A.C."), "P54", ())]


def fact(subject: str, date: str, *names: str, aliases: Sequence[str] = ()) -> dict[str, Any]:
    answer = [{"wikidata_id": f"Q{name}", "name": name, "aliases": list(aliases)} for name in names]
    identifier = f"{subject}_P54_{date}"
    return {"query": f"{subject} plays for _X_.", "answer": answer, "date": date, "id": identifier, "relation": "P54"}


FACTS = [
    fact("same", "2010", "Ajax"),
    fact("same", "2020", "Ajax", aliases=["AFC Ajax"]),
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


@pytest.mark.parametrize("form", ["lines", "list"])
def test_templama_compares_two_dates_and_counts_what_lies_between(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "templama"
    written(folder, FACTS, "test.json")
    if form == "list":
        (folder / "test.json").write_text(json.dumps(FACTS), encoding="utf-8")
    task = load_task("templama", folder=SHIPPED)
    read = read_task(task, tmp_path)
    assert asked(read) == [
        ("same plays for <mask>.", ("Ajax", "AFC Ajax"), "P54", ("unchanged",)),
        ("moved plays for <mask>.", ("Lyon",), "P54", ("changed",)),
        ("several plays for <mask>.", ("B", "A"), "P54", ("unchanged",)),
    ]
    assert [each.old_answers for each in read.examples] == [(), ("Ajax",), ()]
    assert read.notes == (
        "templama: asked about 2020; left out: 1 fact that changed in part and 1 with one date only.",
    )
    before = read_task(task, tmp_path, date="2010").examples
    assert [(each.answers, each.old_answers) for each in before][:2] == [(("Ajax",), ()), (("Ajax",), ("Lyon",))]
    with pytest.raises(SettingError, match=r"zero_shot\.date .*2010 or 2020.*2015"):
        read_task(task, tmp_path, date="2015")


def test_facts_none_of_which_can_be_compared_are_counted_in_the_message(tmp_path: Path) -> None:
    partly = [fact("two", "2010", "Ajax", "Roma"), fact("two", "2020", "Ajax")]
    written(tmp_path / "templama", [*FACTS[5:8], *partly], "test.json")
    told = refusal(load_task("templama", folder=SHIPPED), tmp_path)
    assert "2 facts that changed in part and 1 with one date only" in told


def refusal(task: Task, data_dir: Path, **more: Any) -> str:
    with pytest.raises(CorpusError) as raised:
        read_task(task, data_dir, **more)
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "folder", "looked_for"),
    [
        ("trex", "LAMA", "TREx/P*.jsonl and relations.jsonl"),
        ("google_re", "LAMA", "Google_RE/*_test.jsonl"),
        ("kamel", "KAMEL", "question-templates.csv and P*/dev.jsonl"),
        ("templama", "templama", "test_with_aliases.json or test_with_aliases.jsonl or test.json or test.jsonl"),
    ],
)
def test_a_folder_of_another_form_is_told_with_what_was_looked_for_and_found(
    tmp_path: Path, name: str, folder: str, looked_for: str
) -> None:
    task = load_task(name, folder=SHIPPED)
    (tmp_path / folder).mkdir()
    assert f"{looked_for}, got nothing" in refusal(task, tmp_path)
    written(tmp_path / folder, [{}], "readme.txt")
    assert refusal(task, tmp_path).endswith("got readme.txt")


def test_a_relation_without_template_is_told_with_its_file(tmp_path: Path, counting: Encoder) -> None:
    lama = write_lama(tmp_path)
    written(lama, [trex_row("x", "Ann", "Rome")], "TREx/P999.jsonl")
    told = refusal(lama_task(tmp_path), tmp_path, encoder=counting)
    assert "P999.jsonl: no template of the relation P999" in told
    written(lama, [{}], "Google_RE/shoe_size_test.jsonl")
    told = refusal(load_task("google_re", folder=SHIPPED), tmp_path, encoder=counting)
    assert "no template of the relation shoe_size" in told
    kamel = tmp_path / "KAMEL"
    written(kamel, [{"sub_label": "Ann", "obj_label": ["x"]}], "P1/dev.jsonl")
    (kamel / "question-templates.csv").write_text("P2, Who is [S]?\nP3, no question\n", encoding="utf-8")
    assert "question-templates.csv:2" in refusal(load_task("kamel", folder=SHIPPED), tmp_path)
    (kamel / "question-templates.csv").write_text("P2, Who is [S]?\n", encoding="utf-8")
    assert "no template of the relation P1" in refusal(load_task("kamel", folder=SHIPPED), tmp_path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"date": "soon"}, "an ISO date"),
        ({"date": None}, "text"),
        ({"id": ""}, "text"),
        ({"answer": "Ajax"}, "wikidata_id"),
        ({"answer": [{"name": None}]}, "text"),
        ({"answer": [{"name": "a", "aliases": "b"}]}, "a list of strings"),
    ],
)
def test_a_date_that_is_none_and_other_wrong_cells_are_told_with_their_line(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    written(tmp_path / "templama", [*FACTS, {**FACTS[0], **change}], "test.json")
    told = refusal(load_task("templama", folder=SHIPPED), tmp_path)
    assert expected in told and "test.json:12" in told


def test_a_date_that_no_fact_has_is_told_with_those_there_are(tmp_path: Path) -> None:
    written(tmp_path / "templama", FACTS[:2] + FACTS[3:4], "test.json")
    task = load_task(
        task_written(tmp_path, (SHIPPED / "templama.yaml").read_text("utf-8").replace("2020]", "2021]")), folder=SHIPPED
    )
    told = refusal(task, tmp_path)
    assert "2021" in told and "2010 to 2020" in told


def test_a_part_that_lama_does_not_have_is_refused(tmp_path: Path) -> None:
    write_lama(tmp_path)
    text = (SHIPPED / "trex.yaml").read_text("utf-8").replace("config: TREx", "config: Squad")
    told = refusal(load_task(task_written(tmp_path, text), folder=SHIPPED), tmp_path)
    assert told.endswith("got 'Squad'")


QUIZ = {"Question": "Who wrote it?", "QuestionId": "q", "Answer": {"Value": "Ann", "Aliases": ["Ann B", "Ann"]}}


def test_trivia_qa_is_read_as_it_is_published(tmp_path: Path) -> None:
    folder = tmp_path / "triviaqa-unfiltered"
    answer = {**QUIZ["Answer"], "NormalizedAliases": ["ann b"], "Type": "WikipediaEntity"}
    content = {"Data": [{**QUIZ, "Answer": answer}], "Domain": "unfiltered-web", "Version": 1.0}
    written(folder, [content], "unfiltered-web-dev.json")
    task = load_task("trivia_qa", folder=SHIPPED)
    read = read_task(task, tmp_path)
    assert asked(read) == [("Who wrote it? The answer is: <mask>.", ("Ann", "Ann B", "ann b"), "", ())]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, "a list of questions"),
        ({"Data": ["x"]}, "an object with Value and Aliases"),
        ({"Data": [{**QUIZ, "Answer": {}}]}, "text"),
        ({"Data": [{**QUIZ, "Question": None}]}, "text"),
        ({"Data": [{**QUIZ, "Answer": {"Value": "a", "Aliases": "b", "NormalizedAliases": [3]}}]}, "a list of strings"),
    ],
)
def test_a_quiz_of_another_form_is_told(tmp_path: Path, content: dict[str, Any], expected: str) -> None:
    written(tmp_path / "triviaqa-unfiltered", [content], "unfiltered-web-dev.json")
    assert expected in refusal(load_task("trivia_qa", folder=SHIPPED), tmp_path)


def test_lama_with_strange_evidences_templates_and_folders_for_files_is_told(tmp_path: Path, counting: Encoder) -> None:
    lama, task = write_lama(tmp_path), load_task("trex", folder=SHIPPED)
    for strange in ("Ann was born in [MASK]", ["[MASK]"]):
        written(lama, [{**trex_row("x", "Ann", "Rome"), "evidences": strange}], "TREx/P37.jsonl")
        assert "P37.jsonl:1: evidences" in refusal(task, tmp_path, encoder=counting)
    written(lama, [{"relation": "P19"}], "relations.jsonl")
    assert "relations.jsonl:1" in refusal(task, tmp_path, encoder=counting)
    (lama / "relations.jsonl").unlink()
    (lama / "relations.jsonl").mkdir()
    assert "is not the published folder" in refusal(task, tmp_path, encoder=counting)
    written(write_lama(tmp_path / "other"), [], "TREx/P37.jsonl").unlink()
    (tmp_path / "other" / "LAMA" / "TREx" / "P37.jsonl").mkdir()
    with pytest.raises(CorpusError, match=r"P37\.jsonl is not a regular file"):
        read_task(task, tmp_path / "other", encoder=counting)


def test_a_date_asked_of_a_table_which_no_reader_compares_is_refused(tmp_path: Path) -> None:
    written(tmp_path, [{"query": "Ann plays for _X_.", "answers": ["Ajax"], "relation": "P54"}], "templama-test.jsonl")
    text = (SHIPPED / "templama.yaml").read_text("utf-8").replace("open/templama-test.jsonl", "templama-test.jsonl")
    task = load_task(task_written(tmp_path, text), folder=SHIPPED)
    assert len(read_task(task, tmp_path).examples) == 1
    with pytest.raises(SettingError, match=r"zero_shot\.date=2010"):
        read_task(task, tmp_path, date="2010")

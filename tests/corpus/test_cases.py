"""Small files as people have them, asked, looked up and traced with the shipped models: what a reader expects.

The files are in the folder `cases` beside the repository; without it these tests are skipped.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

import npm
from npm.core.types import Answer
from npm.corpus.folding import folded
from npm.corpus.sources import find_sources, unread_files
from npm.retrieval.filler import PhraseFiller
from tests.helpers.command_line import CommandLine

CASES = Path(__file__).parents[3] / "shared" / "cases"
pytestmark = [
    pytest.mark.slow("models"),
    pytest.mark.skipif(not CASES.is_dir(), reason=f"{CASES} is not there"),
]

FIRST = {
    "02-markdown-table/rates6.md": {
        "The manager of Faro is <mask>.": "Uma Nair",
        "Who manages the depot in Braga?": "Ana Duarte",
        "Who manages the depot in Lisbon?": "Bo Persson",
    },
    "02-markdown-table/plants.md": {"The southern name of the stone fern is <mask>.": "Pelona"},
    "03-word-table-row/agreement.docx": {"The price of the pump is <mask>.": "812 euros"},
    "05-identifiers-cut/guide.md": {
        "To search compressed files, pass the flag <mask>.": "-z/--search-zip",
        "Limits are stored in the file <mask>.": "/etc/tool/limits.toml",
        "The code can be found at <mask>.": "https://example.org/lab/reader",
        "The cookie that is kept for one year is <mask>.": "session_user",
        "The location of the config file is given by the <mask> environment variable.": "TOOL_CONFIG_PATH",
    },
    "06-strike-markdown/prices.md": {
        "The pump costs <mask>.": "350 EUR",
        "How much does the pump cost?": "350 EUR",
        "The depot is in <mask>.": "Faro",
    },
    "07-find-unicode-forms/uni.jsonl": {"The contract costs <mask>.": "12 500 €"},
    "09-sup-and-sub/plate.html": {
        "The strength of the plate is <mask>.": "890 N/mm2",
        "The volume of the pool is <mask>.": "25 m3",
    },
    "12-function-word-names/stop.jsonl": {
        "The telephone provider of the library is <mask>.": "AT&T",
        "The sailors lacked <mask>.": "vitamin A",
        "The Danish team plays in <mask>.": "Group A",
        "The publisher of the malaria report is <mask>.": "WHO",
        "In which month does the lease of the harbour office end?": "May",
    },
    "18-word-parts-lost/agreement.docx": {
        "The contract number is <mask>.": "QX-7781",
        "The total area is <mask>.": "5 m2",
    },
    "21-obsidian/note.md": {"The freeze is owned by <mask>.": "Ana", "The mail relay runs in <mask>.": "Frankfurt"},
}
FOUND = {
    "07-find-unicode-forms/uni.jsonl": {
        **dict.fromkeys(
            ["café", "José Peña", "naïve façade", "Zoë Müller", "scientific office", "final reflection"], 1
        ),
        **dict.fromkeys(
            ["Johann Andrews", "Vienna", "Donaudampfschifffahrt", "helpless", "izmir", "AB-1234", "5000"], 1
        ),
    },
    "08-find-word-with-markup/notes.md": dict.fromkeys(["CO2", "The gas is CO2 here", "Word", "gPRC"], 1),
    "08-find-word-with-markup/notes.html": dict.fromkeys(["CO2", "The gas is CO2 here", "Word", "Anchorage"], 1),
    "09-sup-and-sub/plate.html": {"N/mm2": 1, "25 m3": 1, "1st prize": 1, "founder 1": 0, "1998 4": 0},
    "12-function-word-names/stop.jsonl": {"WHO": 1, "AT&T": 1},
    "15-declared-charset/cp1252.html": {"José Peña – the “first” owner": 1},
    "15-declared-charset/utf16.txt": {"José Peña": 1},
    "16-other-separators/export.csv": {"Otto Lind": 1, "Noa Levi": 1, "m1": 0},
    "16-other-separators/pipe.csv": {"Otto Lind": 1},
    "16-other-separators/unicode-text.csv": {"Otto Lind": 1},
    "18-word-parts-lost/agreement.docx": {"nine percent": 0},
    "19-hidden-html/page.html": {"Mallory Fox": 0, "Eve Fox": 0},
    "20-pdf-words/letters-apart.pdf": {"perform": 1, "model": 1, "best prediction quality": 1},
    "20-pdf-words/real-hyphens.pdf": {
        "dual-encoder framework": 2,
        "open-domain answers": 1,
        "long-term costs": 1,
        "comparison": 1,
    },
    "21-obsidian/note.md": {"The freeze starts on 3 May and is owned by Ana": 1, "An Obsidian comment": 0, "Dublin": 0},
}
TRACED = {
    "07-find-unicode-forms/uni.jsonl": {
        "The café was opened by José Peña.": ["José Peña"],
        "Johann Andrews founded it in Vienna.": ["Johann Andrews", "Vienna"],
        "The contract costs 12 500 € and runs 45 days.": ["12 500 €", "45 days"],
        "The café was opened by José Peña [1]. It was founded in Vienna [2].": ["José Peña", "Vienna"],
    },
    "12-function-word-names/stop.jsonl": {
        "The malaria report was published by WHO. The library is with AT&T. The lease ends in May.": [
            *("WHO", "AT&T", "May")
        ]
    },
}
FORMS = """
Who rebuilt the harbour?
Who rebuilt the harbour
who rebuilt the harbour ?
harbour rebuilt by
harbour
HARBOUR
Harbour!
¿harbour?
Why was the harbour rebuilt?
How was the harbour rebuilt?
Is the harbour rebuilt?
In which year was the harbour rebuilt, and by whom?
What about the harbour and the mill?
Tell me who rebuilt the harbour.
The harbour was rebuilt by Ana Duarte.
The harbour was rebuilt by ___
The harbour was rebuilt by [MASK].
<mask> rebuilt the harbour.
<mask> rebuilt the harbour and <mask> the mill
the harbour, the mill; the tower
""".strip().splitlines()
ENDINGS = "The harbour was rebuilt by <mask>", "The mill was rebuilt by ___", "Who rebuilt the tower", "harbour"


@cache
def over(name: str) -> PhraseFiller:
    if name.endswith((".docx", ".pdf")):
        pytest.importorskip("mammoth")
        pytest.importorskip("pypdfium2")
    return PhraseFiller.over_files([CASES / name])


def asked(name: str, question: str) -> Answer:
    return over(name).fill(question, 5)


def plain(text: str) -> str:
    return " ".join(folded(text).split())


@pytest.mark.parametrize("name", FIRST)
def test_the_first_phrase_is_the_whole_answer(name: str) -> None:
    answers = {question: plain(asked(name, question).phrases[0].phrase) for question in FIRST[name]}
    assert answers == {question: plain(phrase) for question, phrase in FIRST[name].items()}


@pytest.mark.parametrize("name", FOUND)
def test_a_phrase_is_found_as_a_reader_sees_it(name: str) -> None:
    assert {phrase: npm.find(phrase, over(name)).count for phrase in FOUND[name]} == FOUND[name]


@pytest.mark.parametrize("name", TRACED)
def test_names_and_numbers_are_traced_whole_each_with_its_place(name: str) -> None:
    for text, spans in TRACED[name].items():
        traced = npm.trace(text, over(name)).spans
        assert [span.text for span in traced] == spans
        assert all(span.verdict == "found" and span.place for span in traced)


def test_a_name_ends_before_what_the_sentence_adds() -> None:
    name = "01-sentence-tail/notes.jsonl"
    notes = (CASES / "01-sentence-tail/expected.md").read_text(encoding="utf-8")
    for thing, who in re.findall(r"^\| (\w+) \| (\w+ \w+) \| \w", notes, re.MULTILINE):
        forms = f"The {thing} was rebuilt by <mask>.", f"Who was the {thing} rebuilt by?", f"Who rebuilt the {thing}?"
        assert [asked(name, form).phrases[0].phrase for form in forms] == [who] * 3


def test_rows_of_long_tables_answer_for_themselves() -> None:
    name = "02-markdown-table/rates40.md"
    table = (CASES / name).read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table if line.startswith("|")][2:]
    right = 0
    for place, rate, manager, opened in rows[:12]:
        expected = {
            f"The daily rate of {place} is <mask>.": rate,
            f"What is the daily rate of {place}?": rate,
            f"The manager of the depot {place} is <mask>.": manager,
            f"The depot in {place} was opened on <mask>.": opened,
        }
        right += sum(asked(name, question).phrases[0].phrase == cell for question, cell in expected.items())
    assert right >= 46


def test_values_of_every_kind_are_never_cut() -> None:
    name = "04-numbers-cut/num.jsonl"
    expected = (CASES / "04-numbers-cut/expected.md").read_text("utf-8")
    rows = re.findall(r"^\| (\w+) \| (.+?) \|$", expected, re.MULTILINE)
    texts = [json.loads(line)["text"] for line in (CASES / name).read_text("utf-8").splitlines()]
    values = {kind: value for kind, value in rows if kind != "name"}
    sentences = {kind: next(text for text in texts if f"The registered {kind} of" in text) for kind in values}
    copies = {
        kind: re.search(rf"The registered {kind} of .*", sentences[kind])[0].replace(value, "<mask>", 1)  # type: ignore[index]
        for kind, value in values.items()
    }
    others = {kind: f"For the Zentar unit the {kind} is <mask>." for kind in values}
    assert {kind: plain(asked(name, text).phrases[0].phrase) for kind, text in copies.items()} == {
        kind: plain(value) for kind, value in values.items()
    }
    right = sum(plain(asked(name, text).phrases[0].phrase) == plain(values[kind]) for kind, text in others.items())
    assert len(values) == 52 and right >= 49


def test_contexts_have_no_invisible_characters_and_rows_the_cells_of_their_header() -> None:
    gas = asked("10-invisible-in-json/notes.md", "The gas is <mask> here.").phrases[0].occurrences[0]
    assert (gas.context, gas.parts[1]) == ("The gas is CO2 here.", "CO2")
    pump = asked("03-word-table-row/agreement.docx", "The price of the pump is <mask>.").phrases[0].occurrences[0]
    assert pump.context == "Item: Pump; Price: 812 euros"


def test_files_of_a_folder_are_read_or_named() -> None:
    folder = str(CASES / "14-skipped-without-a-word/docs")
    assert [source.name for source in find_sources([folder])] == [
        *("a.md", "b.rst", "c.adoc", "d.markdown", "e.xhtml", "g.org")
    ]
    assert re.search(r"2 files .*not read \(1 \.eml, 1 without ending\)", unread_files([folder]))


def test_no_text_is_refused_for_its_form_and_each_gets_a_sentence() -> None:
    for answer in over("01-sentence-tail/notes.jsonl").fill(list(FORMS), 5):
        phrases = answer.masks[0].phrases if isinstance(answer, npm.JointAnswer) else answer.phrases
        contexts = [place.context for each in phrases for place in each.occurrences]
        assert any("harbour" in context for context in contexts), answer


def test_a_full_stop_at_the_end_changes_nothing() -> None:
    filler = over("01-sentence-tail/notes.jsonl")
    for text in ENDINGS:
        without, with_full_stop = filler.fill(text, 5), filler.fill(f"{text}.", 5)
        assert (without.phrases, without.confidence) == (with_full_stop.phrases, with_full_stop.confidence)


def test_scores_descend_in_the_order_of_the_phrases() -> None:
    for name, questions in FIRST.items():
        for answer in over(name).fill(list(questions), 5):
            scores = [round(phrase.score, 3) for phrase in answer.phrases]  # as they are shown
            assert scores == sorted(scores, reverse=True)


def test_words_of_labels_that_occur_without_a_vector_are_told_so(npmlm: CommandLine, tmp_path: Path) -> None:
    folder = CASES / "22-label-words"
    assert npmlm("build", f"corpus.files={folder / 'corpus.jsonl'}", f"index={tmp_path / 'index'}").status == 0
    asked = ("label", f"index={tmp_path / 'index'}", f"texts={folder / 'texts.csv'}")
    npmlm(*asked, "labels=[yes, no]").refused("no (2)", "vectors.pruning=word_boundaries")
    assert npmlm(*asked, "labels={code: [C++], food: [salmon]}").status == 0  # C++ is one word

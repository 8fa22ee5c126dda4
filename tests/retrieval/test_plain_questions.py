"""Plain questions as statements: sixty written out, sentences made by a grammar, and the places where they enter."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npm.core.errors import QueryError
from npm.core.types import MASK_TEXT
from npm.retrieval.plain_questions import is_question, statement_of
from npm.retrieval.queries import checked_queries, read_query

STATEMENTS = """
What is the capital of Iceland? -> The capital of Iceland is <mask>.
Who wrote Hamlet? -> <mask> wrote Hamlet.
Who was the first president of Ghana? -> The first president of Ghana was <mask>.
Who was president of the United States in 1963? -> <mask> was president of the United States in 1963.
Who was born in Ulm in 1879? -> <mask> was born in Ulm in 1879.
Who is Iceland named after? -> Iceland is named after <mask>.
What is Iceland known for? -> Iceland is known for <mask>.
What is Iceland famous for? -> Iceland is famous for <mask>.
When did Victor Hugo die? -> Victor Hugo died in <mask>.
When was Abraham Lincoln born? -> Abraham Lincoln was born in <mask>.
When was the Treaty of Versailles signed? -> The Treaty of Versailles was signed in <mask>.
When was the United States founded? -> The United States was founded in <mask>.
When was the battle of Hastings? -> The battle of Hastings was in <mask>.
When was the first book printed in Europe? -> The first book was printed in Europe in <mask>.
When did World War II end? -> World War II ended in <mask>.
When did Norway gain independence from Denmark? -> Norway gained independence from Denmark in <mask>.
Where is the Louvre? -> The Louvre is in <mask>.
Where is the Louvre located? -> The Louvre is located in <mask>.
Where did Frida Kahlo grow up? -> Frida Kahlo grew up in <mask>.
Where does coffee come from? -> Coffee comes from <mask>.
Where was the archduke shot? -> The archduke was shot in <mask>.
In which year did the Titanic sink? -> The Titanic sank in the year <mask>.
In which city was Mozart born? -> Mozart was born in the city <mask>.
Which river flows through Rome? -> The river that flows through Rome is <mask>.
Which country borders Portugal? -> The country that borders Portugal is <mask>.
Which language is spoken in Brazil? -> The language spoken in Brazil is <mask>.
What language do people speak in Brazil? -> People speak the language <mask> in Brazil.
Which planet is closest to the Sun? -> The planet that is closest to the Sun is <mask>.
Which planet has the most prominent rings? -> The planet that has the most prominent rings is <mask>.
What color is the sky? -> The sky is the color <mask>.
What year did the war end? -> The war ended in the year <mask>.
Which river does the Charles Bridge cross? -> The Charles Bridge crosses the river <mask>.
Which of the planets has rings? -> The one of the planets that has rings is <mask>.
What did Alexander Fleming discover in 1928? -> Alexander Fleming discovered <mask> in 1928.
What does Iceland export to Norway? -> Iceland exports <mask> to Norway.
What do you call a baby kangaroo? -> You call a baby kangaroo <mask>.
What is a baby kangaroo called? -> A baby kangaroo is called <mask>.
What is the only element named after a woman? -> The only element named after a woman is <mask>.
Who did Napoleon marry? -> Napoleon married <mask>.
Who painted the Mona Lisa? -> <mask> painted the Mona Lisa.
Who has won the most medals? -> <mask> has won the most medals.
Who will win the cup? -> <mask> will win the cup.
What can penguins do? -> Penguins can do <mask>.
How many people live in Iceland? -> <mask> people live in Iceland.
How many moons does Jupiter have? -> Jupiter has <mask> moons.
How many moons are there in the Solar System? -> There are <mask> moons in the Solar System.
How many legs are on a spider? -> <mask> legs are on a spider.
How many goals has Messi scored? -> Messi has scored <mask> goals.
How tall is Mount Everest? -> Mount Everest is <mask> tall.
How old is the Earth? -> The Earth is <mask> years old.
How long is the Nile? -> The Nile is <mask> long.
How long did the war last? -> The war lasted <mask>.
How long did Victoria reign? -> Victoria reigned for <mask>.
How far is the Moon from the Earth? -> The Moon is <mask> from the Earth.
How much does a ticket cost? -> A ticket costs <mask>.
By whom was Guernica painted? -> Guernica was painted by <mask>.
Who does Jean Valjean steal from? -> Jean Valjean steals from <mask>.
Perth is the capital of which Australian state? -> Perth is the capital of the Australian state <mask>.
What's the highest mountain in Scotland? -> The highest mountain in Scotland is <mask>.
What happened in 1066? -> <mask> happened in 1066.
Which metal protects galvanised steel? -> The metal that protects galvanised steel is <mask>.
Which country's president lives in Lusaka? -> <mask>'s president lives in Lusaka.
What is the largest animal that has ever lived? -> The largest animal that has ever lived is <mask>.
Which planet is the Great Red Spot a giant storm on? -> The Great Red Spot is a giant storm on the planet <mask>.
When is the new film coming out? -> The new film is coming out in <mask>.
When was the last time the comet was seen? -> The last time the comet was seen was in <mask>.
Who does the voice of the clown? -> <mask> does the voice of the clown.
What types of cells lack a nucleus? -> The types of cells that lack a nucleus are <mask>.
who sang the song at the end -> <mask> sang the song at the end.
"""
ROWS = [line.split(" -> ") for line in STATEMENTS.strip().splitlines()]


@pytest.mark.parametrize(("question", "statement"), ROWS)
def test_a_plain_question_becomes_the_statement_that_its_answer_completes(question: str, statement: str) -> None:
    assert is_question(question)
    assert statement_of(question) == statement


UNTURNED = """
Why is the sky blue?|How do birds fly?|How did the king die?|Is Iceland an island?|Who didn't vote?|What?|?
Does it rain?|Where in Europe is Andorra?
"""


@pytest.mark.parametrize("question", UNTURNED.replace("\n", "|").strip("|").split("|"))
def test_a_question_that_no_rule_fits_is_refused_with_its_words(question: str) -> None:
    with pytest.raises(QueryError, match=re.escape(question)):
        read_query(question)


SUBJECTS = ["Ada Lovelace", "the king of Bhutan", "a small river", "Kenya's head of state", "it"]
VERBS = {
    "write": "wrote", "discover": "discovered", "carry": "carried", "use": "used", "plan": "planned",
    "visit": "visited",
    "cross": "crossed", "see": "saw", "play": "played", "stop": "stopped",
}  # fmt: skip
TAILS = ["", "in 1843", "with great care", "near the coast"]


@given(st.sampled_from(SUBJECTS), st.sampled_from([*VERBS]), st.sampled_from(TAILS))
def test_do_support_is_undone_for_any_subject_verb_and_tail(subject: str, verb: str, tail: str) -> None:
    """The sentence is made first, and the question from its parts."""
    end = f" {tail}" if tail else ""
    upper = subject[0].upper() + subject[1:]
    assert statement_of(f"What did {subject} {verb}{end}?") == f"{upper} {VERBS[verb]} {MASK_TEXT}{end}."
    assert (
        statement_of(f"When did {subject} {verb} the plan{end}?")
        == f"{upper} {VERBS[verb]} the plan{end} in {MASK_TEXT}."
    )
    assert statement_of(f"Who {VERBS[verb]} {subject}{end}?") == f"{MASK_TEXT} {VERBS[verb]} {subject}{end}."


@given(st.text(alphabet="whoisatredngWI?.,' \n<>_[]M", max_size=60))
def test_any_text_is_read_into_one_that_is_read_alike_or_refused(text: str) -> None:
    try:
        found = read_query(text, max_masks=8)
    except QueryError:
        return
    assert 1 <= found.count(MASK_TEXT) <= 8
    assert read_query(found, max_masks=8) == found


def test_other_marks_of_a_blank_count_only_in_texts_without_a_mask() -> None:
    assert read_query("It is [MASK].") == read_query("It is ______.") == "It is <mask>."
    assert read_query("___ and [mask]", max_masks=2) == "<mask> and <mask>"
    assert read_query("A form ___ with <mask>") == "A form ___ with <mask>"
    with pytest.raises(QueryError, match="exactly one"):
        read_query("___ and ___")


def test_only_the_last_sentence_of_a_text_is_turned() -> None:
    assert read_query("Who knows? It is cold. Where is it?") == "Who knows? It is cold. It is in <mask>."
    with pytest.raises(QueryError, match="text 2 of 2"):
        checked_queries(["Who wrote it?", "Nobody wrote it."])

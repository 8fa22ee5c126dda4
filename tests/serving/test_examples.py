"""Examples of the demo corpus that the page offers, answered by the shipped encoder."""

from __future__ import annotations

from pathlib import Path

from npm.core.types import Answer, JointAnswer
from npm.retrieval.fill import PhraseFiller
from tests.helpers.command_line import REPOSITORY

DEMO = REPOSITORY / "npm" / "assets" / "demo"
RIGHT = {
    "The biggest moon in the whole Solar System is <mask>.": ["Ganymede"],
    "Captain Ahab hunts a white whale in the novel by <mask>.": ["Herman Melville"],
    "Who painted The Last Supper?": ["Leonardo da Vinci"],
    "Plato and Aristotle walk side by side in a Vatican fresco by <mask>.": ["Raphael"],
    "Charles Bridge in Prague crosses the <mask>.": ["Vltava"],
    "Penicillin was discovered by <mask> in <mask>.": ["Alexander Fleming", "1928"],
    "The Great Red Spot is a giant storm on <mask>.": ["Jupiter"],
}
CLEAR_SHARE = 0.4  # below it the page calls no phrase the answer


def best(answer: Answer) -> tuple[list[str], float]:
    if isinstance(answer, JointAnswer):
        return list(answer.fillings[0].phrases), answer.fillings[0].score
    return [answer.phrases[0].phrase], answer.phrases[0].score


def test_every_example_is_right_first_but_those_under_the_heading_that_says_so(demo_index: Path) -> None:
    filler = PhraseFiller.open(demo_index)
    lines = (DEMO / "examples.txt").read_text(encoding="utf-8").splitlines()
    heading = lines.index("# An example with a wrong answer")
    assert len(lines) > heading + 1
    for number, text in enumerate(line for line in lines if not line.startswith("#")):
        phrases, share = best(filler.fill(text))
        assert (phrases == RIGHT[text]) == (number < heading), text
        assert share >= CLEAR_SHARE, text

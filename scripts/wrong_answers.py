"""Why the first answers of a demo evaluation are wrong, by cause: python scripts/wrong_answers.py OUT [OUT …]

OUT is what `npmlm evaluate task=demo split=dev index=… out=OUT` wrote. The first 50 questions whose first phrase is not
right are sorted by the first cause that holds; a passage is a document of the demo corpus.
"""

import json
import sys
from collections import Counter
from pathlib import Path

from npm.corpus.text import normalised_text
from npm.evaluation.metrics import exact_match

DEMO = Path(__file__).parents[1] / "npm" / "assets" / "demo"
MOST = 50
NOTHING = "no phrase at all"
BOUNDARIES = "boundaries: the phrase holds a right one, or is part of it"
PASSAGE = "passage: the first phrase stands where no right one does"
SCORING = "scoring: right passage, the right phrase is second to fifth"
PHRASE = "phrase: right passage, no right phrase among five"


def passages() -> dict[str, str]:
    """The texts of the demo corpus by document."""
    rows = (json.loads(line) for file in DEMO.glob("*.jsonl") for line in file.read_text("utf-8").splitlines())
    return {row["id"]: normalised_text(row["text"]) for row in rows}


def cause(prediction: dict, texts: dict[str, str]) -> str:
    """The first cause that holds for a wrong answer."""
    if not prediction["phrases"]:
        return NOTHING
    first = prediction["phrases"][0]
    phrase, answers = normalised_text(first["phrase"]), [normalised_text(each) for each in prediction["gold"]]
    if any(answer in phrase or phrase in answer for answer in answers):
        return BOUNDARIES
    if not any(answer in texts[prediction["evidence"][0]["document"]] for answer in answers):
        return PASSAGE
    is_among = any(exact_match(each["phrase"], prediction["gold"]) for each in prediction["phrases"])
    return SCORING if is_among else PHRASE


def main(folders: list[str]) -> None:
    """Print a table, a column for each evaluation."""
    texts, counts = passages(), []
    for folder in folders:
        lines = (Path(folder) / "predictions.jsonl").read_text("utf-8").splitlines()
        wrong = [each for each in map(json.loads, lines) if not each["correct"]][:MOST]
        counts.append(Counter(cause(each, texts) for each in wrong))
    rows = [["cause", *folders], ["---", *("---:" for _ in folders)]]
    rows += [[name, *(str(each[name]) for each in counts)] for name in (BOUNDARIES, PASSAGE, SCORING, PHRASE, NOTHING)]
    sys.stdout.write("".join(f"| {' | '.join(row)} |\n" for row in rows))


if __name__ == "__main__":
    main(sys.argv[1:])

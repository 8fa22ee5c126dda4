"""Turn people's questions into statements with a `<mask>`, where a few rules of English word order suffice.

*Who wrote Emma?* becomes *<mask> wrote Emma.*, *What is the capital of Peru?* becomes *The capital of Peru is <mask>.*,
and *When was the bridge opened?* becomes *The bridge was opened in <mask>.* A question that no rule fits is left out:
do-support, for one, would need the past form of its verb. Part of `scripts/make_questions.py`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from npm.core.files import replace_file
from npm.core.types import MASK_TEXT
from npm.corpus.questions import read_questions

AUXILIARY = r"(?:am|is|are|was|were|be|been|do|does|did|has|have|had|can|could|will|would|shall|should|may|might|must)"
OPEN_END = re.compile(
    r"(?i).*\b(?:of|in|on|at|to|for|by|with|from|as|about|into|over|under|like|after|called|named|known)"
)
"""A question whose mask belongs behind its last word, with the rest in another order."""
PREPOSITION = re.compile(r"(?i)(?:in|on|at|during|from|between|after|before|near|under|since|until|around) ")
NO_SUBJECT = re.compile(rf"(?i)(?:.* )?(?:the|an?|{AUXILIARY})|.*\b{AUXILIARY} .*")
"""Text before the participle of a subordinate clause: "the place the relay was" held."""
MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
DAY = re.compile(rf"\b\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {MONTH}\b|\b{MONTH} \d{{1,2}}\b")
"""A day of a month in a date."""
PARTICIPLE = r"(?:\w{3,}ed|born|built|made|held|founded|written|sold|won|lost|begun|given|taken|sent|shot|set|put)"
SUBJECT = re.compile(rf"(?i)who (?!.*\b(?:who|which)\b)(?P<rest>(?!{AUXILIARY} )[a-z]+ .+)")
EQUATION = re.compile(r"(?i)(?:what|who) (?P<be>is|was|are|were) (?P<rest>(?:the|an?|one of|[A-Z]\w+'s) .+)")
PLACED = re.compile(
    rf"(?i)(?:when|where|in (?:what|which) (?:year|country|city|century|decade|month)|(?:what|which) year) "
    rf"(?P<be>is|was|are|were) (?P<subject>(?!there\b).+?) (?P<participle>{PARTICIPLE})(?P<rest>(?: .+)?)"
)


def statement_of(question: str, answer: str) -> str | None:
    """The question as a statement whose `<mask>` the answer fills, None where no rule fits.

    >>> statement_of("Who wrote Emma?", "Jane Austen"), statement_of("When was Emma published?", "1815")
    ('<mask> wrote Emma.', 'Emma was published in <mask>.')
    """
    text = " ".join(question.rstrip(" ?.").split())
    if "," in text or MASK_TEXT in text or OPEN_END.fullmatch(text):
        return None
    if found := PLACED.fullmatch(text):
        if NO_SUBJECT.fullmatch(found["subject"]) or PREPOSITION.match(answer):
            return None
        preposition = "on" if DAY.search(answer) else "in"
        stem = f"{found['subject']} {found['be']} {found['participle']}{found['rest']} {preposition} {MASK_TEXT}."
        return stem[0].upper() + stem[1:]
    if found := EQUATION.fullmatch(text):
        rest = found["rest"]
        return f"{rest[0].upper()}{rest[1:]} {found['be'].lower()} {MASK_TEXT}."
    if found := SUBJECT.fullmatch(text):
        return f"{MASK_TEXT} {found['rest']}."
    return None


def write_statements(files: list[str], out: Path) -> str:
    """Write the rows whose question a rule turns into a statement, asked as that statement; return the counts."""
    counts: Counter[str] = Counter()
    lines: list[str] = []
    for _, row in read_questions(files, counts):
        statement = statement_of(row["question"], row["answers"][0]) if row["answers"] else None
        counts["questions"] += 1
        if statement is not None:
            kept = {name: value for name, value in row.items() if name != "start"} | {"asked": row["question"]}
            lines.append(json.dumps(kept | {"question": statement}, ensure_ascii=False) + "\n")
    replace_file(out, "".join(lines).encode())
    counts["statements"] = len(lines)
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common())

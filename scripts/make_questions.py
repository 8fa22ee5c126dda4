"""Questions with a `<mask>` and the passage that answers each: rows for `npmlm train experiment=span_supervision`.

    python -m scripts.make_questions entities "files=[wiki/*.jsonl.zst]" out=entities.jsonl
    python -m scripts.make_questions attributes "files=[wiki/*.jsonl.zst]" out=attributes.jsonl
    python -m scripts.make_questions facts "files=[wiki/*.zst]" facts=triples.jsonl templates=t.json out=facts.jsonl
    python -m scripts.make_questions statements files=[asked.jsonl] out=statements.jsonl
    python -m scripts.make_questions task files=[held-out.jsonl] out=FOLDER

`entities`: a sentence that names an article by its title, and another name, date, number or rare word of that article,
which is masked; the passage is the part of the article around it (cross-document cloze, Glass et al. 2019, arXiv
1906.04980). `attributes`: an attribute that an article states of its subject, such as its class, maker or material,
found by a pattern and asked for in other words (`scripts/attributes.yaml`). `facts`: a statement for each template of a
relation. A line of facts=FILE has subject, relation, object, document (its id) and start_char (of the object in the
document's text); templates=FILE holds lists of templates by relation, such as {"P36": ["The capital of [S] is [O]."]}.

`statements`: the rows of files=[…] whose question a rule turns into a statement with a `<mask>`, *Who wrote Emma?* into
*<mask> wrote Emma.* `task`: an open task that asks the questions of rows, which files=[…] are here too, of all their
passages: questions.jsonl, corpus.jsonl and task.yaml in out=FOLDER, for

    npmlm build "corpus.files=[FOLDER/corpus.jsonl]" index=FOLDER/index
    npmlm evaluate task=FOLDER/task.yaml index=FOLDER/index out=FOLDER/evaluation "method=[npm-hybrid]"
    python scripts/question_table.py FOLDER/questions.jsonl FOLDER/evaluation

Further arguments of the first three: exclude=[FILE,…], whose rows have a title, or a subject and answers: an article of
such a title, or such a pair, is not asked about; limit=N, a sample of so many rows; seed=0. Counts are printed. Rows:

    {"question", "answers", "title", "context", "negatives", "rivals", "wrong_title", "wrong_context",
     "kind": name|date|number|term, "style": clause|sentence|attribute|fact}

`rivals` are the other phrases of the block that are of the answer's kind; those of `attributes` are of other kinds:
values of the article's other attributes, and frequent phrases of the block. The wrong block is the best by BM25 among
the blocks of all rows that are of another article and without an answer.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from npm.core.errors import SettingError, UserError
from npm.core.settings import parse_list
from npm.corpus.questions import read_questions
from npm.corpus.text import lexical_query
from scripts.cloze_articles import Excluded
from scripts.cloze_attributes import attribute_rows
from scripts.cloze_questions import entity_rows, fact_rows, rivals, sampled
from scripts.question_statements import write_statements
from scripts.word_search import WordSearch

TASK = """\
suite: open
name: given_questions
data: {file: questions.jsonl, columns: {group: kind}}
template: "{{ text }}"
"""
VERBS = ("entities", "attributes", "facts", "statements", "task")
BEST = 50
"""Blocks that are looked through for a wrong one."""


def add_wrong_contexts(rows: list[dict[str, Any]]) -> None:
    """Add the best wrong block by BM25 to each row for which there is one."""
    blocks = list(dict.fromkeys((row["title"], row["context"]) for row in rows))
    found = WordSearch(blocks).best([lexical_query(row["question"]) for row in rows], BEST)
    for row, (numbers, _) in zip(rows, found, strict=True):
        answers = [answer.lower() for answer in row["answers"]]
        for title, text in (blocks[number] for number in numbers.tolist()):
            if title != row["title"] and not any(answer in f"{title} {text}".lower() for answer in answers):
                row |= {"wrong_title": title, "wrong_context": text}
                break


def write_task(files: list[str], out: Path) -> None:
    """Write an open task of the rows of `files`; each distinct passage of the rows is a document."""
    out.mkdir(parents=True, exist_ok=True)
    documents: dict[tuple[str, str], str] = {}
    with (out / "questions.jsonl").open("w", encoding="utf-8") as file:
        for _, row in read_questions(files):
            title = row.get("title", "")
            passages = [(title, row["context"]), *((title, each) for each in row.get("negatives") or ())]
            passages += [(row.get("wrong_title", ""), row["wrong_context"])] if row.get("wrong_context") else []
            first, *_ = [documents.setdefault(passage, str(len(documents))) for passage in passages]
            kept = {"kind": row.get("kind", ""), "style": row.get("style", ""), "document": first}
            asked = {"text": row["question"], "answers": row["answers"], **kept}
            file.write(json.dumps(asked, ensure_ascii=False) + "\n")
    with (out / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for (title, text), name in documents.items():
            file.write(json.dumps({"id": name, "title": title, "text": text}, ensure_ascii=False) + "\n")
    (out / "task.yaml").write_text(TASK, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Write the rows and print how many there are of each kind and style."""
    if not arguments or "--help" in arguments:
        sys.stdout.write(__doc__ or "")
        return 0
    verb, *pairs = arguments
    given = dict(pair.partition("=")[::2] for pair in pairs)
    needed = {"files", "out"} | ({"facts", "templates"} if verb == "facts" else set())
    optional = {"exclude", "limit", "seed"} if verb not in ("statements", "task") else set()
    try:
        if verb not in VERBS or not needed <= set(given) <= needed | optional:
            raise SettingError(
                f"give {', '.join(VERBS[:-1])} or {VERBS[-1]}, and the arguments that --help shows, got"
                f" {' '.join(arguments)!r}"
            )
        excluded = Excluded.read(parse_list(given.get("exclude", "[]"), "exclude"))
        files = parse_list(given["files"], "files")
        if verb == "task":
            write_task(files, Path(given["out"]))
            return 0
        if verb == "statements":
            sys.stdout.write(f"{write_statements(files, Path(given['out']))}\n")
            return 0
        for name in ("seed", "limit"):
            if not given.get(name, "1").isdecimal():
                raise SettingError(f"{name} must be a number of at least 0, such as {name}=1000, got {given[name]!r}")
        seed, limit = int(given.get("seed", 0)), int(given["limit"]) if "limit" in given else None
        rng = random.Random(seed)
        if verb == "facts":
            made = fact_rows(files, Path(given["facts"]), Path(given["templates"]), excluded, rng)
        else:
            made = (attribute_rows if verb == "attributes" else entity_rows)(files, excluded, rng)
        rows = sampled(made, limit=limit, seed=seed)
    except UserError as error:
        sys.stderr.write(f"make_questions: error: {error}\n")
        return 2
    for row in rows:
        if "rivals" not in row:
            row["rivals"] = rivals(row["context"], row["answers"], row["kind"])
    add_wrong_contexts(rows)
    with Path(given["out"]).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    counts = Counter(value for row in rows for value in ("rows", row["kind"], row["style"]))
    for name in ("negatives", "rivals", "wrong_context"):
        counts[f"with {name}"] = sum(bool(row.get(name)) for row in rows)
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    sys.stdout.write(f"{shown}; {excluded.dropped:,} subjects and pairs dropped\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

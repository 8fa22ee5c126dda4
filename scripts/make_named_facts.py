"""Facts of T-REx whose subjects are named in a corpus: corrections for `npmlm adapt`, and a task of other facts.

    python scripts/make_named_facts.py LAMA_TREX.jsonl OUT wiki.jsonl.zst …

A subject's passage is the first `PASSAGE_CHARS` characters of its article or, without one, as many around its first
mention. Of each relation, `PER_RELATION` facts are drawn by seed 0 from its first half to be learned, and as many from
its second half to be asked; no question occurs twice. OUT gets corpus.jsonl, learned.jsonl, asked.jsonl and task.yaml:

    npmlm build "corpus.files=[OUT/corpus.jsonl]" index=OUT/index
    npmlm evaluate task=OUT/task.yaml index=OUT/index out=OUT/before "method=[npm-hybrid,majority]"
    npmlm adapt index=OUT/index "questions=[OUT/learned.jsonl]"
    npmlm evaluate task=OUT/task.yaml index=OUT/index out=OUT/after method=npm-hybrid
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from npm.core.errors import UserError
from npm.corpus.documents import read_corpus
from npm.corpus.readers import read_rows
from npm.corpus.settings import CorpusSettings
from npm.evaluation.prompts import cloze

PASSAGE_CHARS, PER_RELATION = 600, 50
WORD = re.compile(r"\w+")
TASK = """\
suite: open
name: named_facts
data: {file: asked.jsonl, development_file: learned.jsonl, columns: {group: relation}}
template: "{{ question }}"
"""


def passages_of(subjects: set[str], files: list[str]) -> dict[str, tuple[str, str]]:
    """Title and text of the passage of each subject that the corpus names as whole words, in the same case."""
    by_word: dict[str, list[str]] = defaultdict(list)
    for subject in sorted(subjects):
        if word := WORD.search(subject):
            by_word[word[0]].append(subject)
    own: dict[str, tuple[str, str]] = {}
    mentioned: dict[str, tuple[str, str]] = {}
    for document in read_corpus(CorpusSettings(files=files)):
        title, text = document.title or "", document.text
        if title in subjects:
            own.setdefault(title, (title, text[:PASSAGE_CHARS]))
        for match in WORD.finditer(text):
            for subject in by_word.get(match.group(), ()):
                start = match.start() - subject.index(match.group())
                stop = start + len(subject)
                if subject not in mentioned and text[start:stop] == subject and not text[stop : stop + 1].isalnum():
                    first = max(0, start - PASSAGE_CHARS // 2)
                    mentioned[subject] = (title, text[first : first + PASSAGE_CHARS])
    return mentioned | own


def main(facts: str, out: str, files: list[str]) -> None:
    """Write the four files and print how many facts there are."""
    relations = defaultdict(list)
    for _, row in read_rows(Path(facts)):
        relations[row["relation"]].append(row)
    passages = passages_of({row["subject"] for rows in relations.values() for row in rows}, files)
    rng, seen = random.Random(0), set()
    drawn: dict[str, list[dict[str, Any]]] = {"learned": [], "asked": []}
    for rows in relations.values():
        half = len(rows) // 2
        for part, some in (("learned", rows[:half]), ("asked", rows[half:])):
            named = [row for row in some if row["subject"] in passages]
            for row in rng.sample(named, min(PER_RELATION, len(named))):
                question = cloze(row["template"], row["subject"])
                if question not in seen:
                    seen.add(question)
                    kept = {"relation": row["relation"], "subject": row["subject"]}
                    drawn[part].append({"question": question, "answers": row["answers"], **kept})
    asked_of = dict.fromkeys(passages[row["subject"]] for rows in drawn.values() for row in rows)
    documents = [{"id": str(number), "title": title, "text": text} for number, (title, text) in enumerate(asked_of)]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (drawn | {"corpus": documents}).items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        sys.stdout.write(f"{name}: {len(rows)} rows\n")
    (folder / "task.yaml").write_text(TASK, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 4 or "--help" in sys.argv:
        sys.exit(__doc__)
    try:
        main(sys.argv[1], sys.argv[2], sys.argv[3:])
    except UserError as error:
        sys.stderr.write(f"make_named_facts: error: {error}\n")
        sys.exit(2)

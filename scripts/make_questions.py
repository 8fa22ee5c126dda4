"""Questions with a `<mask>` and the passage that answers each: rows for `npmlm train experiment=span_supervision`.

    python scripts/make_questions.py entities "files=[wiki/*.jsonl.zst]" out=entities.jsonl
    python scripts/make_questions.py facts "files=[wiki/*.zst]" facts=triples.jsonl templates=t.json out=facts.jsonl

`entities`: a sentence that names an article by its title, and another name, date, number or rare word of that article,
which is masked; the passage is the part of the article around it (cross-document cloze, Glass et al. 2019, arXiv
1906.04980). `facts`: a statement for each template of a relation. A line of facts=FILE has subject, relation, object,
document (its id) and start_char (of the object in the document's text); templates=FILE holds lists of templates by
relation, such as {"P36": ["The capital of [S] is [O]."]}.

Further arguments: exclude=[FILE,…], whose rows have a title, or a subject and answers: an article of such a title, or
such a pair, is not asked about; limit=N, a sample of so many rows; seed=0. Counts are printed. The rows:

    {"question", "answers", "title", "block", "negatives", "kind": name|date|number|term, "style": clause|sentence|fact}
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from npm.core.errors import SettingError, UserError
from npm.core.settings import parse_list
from npm.corpus.cloze_questions import Excluded, entity_rows, fact_rows, write_questions


def main(arguments: list[str]) -> int:
    """Write the rows and print how many there are of each kind and style."""
    if not arguments or "--help" in arguments:
        sys.stdout.write(__doc__ or "")
        return 0
    verb, *pairs = arguments
    given = dict(pair.partition("=")[::2] for pair in pairs)
    needed = {"files", "out"} | ({"facts", "templates"} if verb == "facts" else set())
    try:
        if verb not in ("entities", "facts") or not needed <= set(given) <= needed | {"exclude", "limit", "seed"}:
            raise SettingError(
                f"expected entities or facts, and the arguments that --help shows, got {' '.join(arguments)!r}"
            )
        excluded = Excluded.read(parse_list(given.get("exclude", "[]"), "exclude"))
        files, seed = parse_list(given["files"], "files"), int(given.get("seed", 0))
        rng = random.Random(seed)
        if verb == "facts":
            rows = fact_rows(files, Path(given["facts"]), Path(given["templates"]), excluded, rng)
        else:
            rows = entity_rows(files, excluded, rng)
        limit = int(given["limit"]) if "limit" in given else None
        counts = write_questions(rows, Path(given["out"]), limit=limit, seed=seed)
    except UserError as error:
        sys.stderr.write(f"make_questions: error: {error}\n")
        return 2
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    sys.stdout.write(f"{shown}; {excluded.dropped:,} subjects and pairs dropped\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

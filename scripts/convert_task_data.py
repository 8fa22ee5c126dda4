"""Published data in the form that tasks read: one JSON object per line.

    python scripts/convert_task_data.py lama LAMA open [ENCODER]          lama-trex.jsonl, lama-google-re.jsonl
    python scripts/convert_task_data.py kamel KAMEL open                  kamel-dev.jsonl
    python scripts/convert_task_data.py trivia_qa triviaqa-unfiltered open    trivia-qa-dev.jsonl
    python scripts/convert_task_data.py templama templama open 2010 2020  templama-test.jsonl, about the second date
    python scripts/convert_task_data.py verbalizer FILE.txt FILE.json     a line of words per label; cut to the shortest

The first name is a folder as it is published, the second gets the files. LAMA's subset uhn is the published one where
TREx_UHN or Google_RE_UHN is there; else it omits examples whose subject holds the answer and, with ENCODER, a cased
masked language model, those whose answer it guesses from the person's name (Poerner et al. 2019, arXiv 1911.03681).
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from npm.core.errors import CorpusError, UserError
from npm.core.types import MASK_TEXT
from npm.corpus.readers import read_lines, read_rows

Row = dict[str, Any]
PARTS = {"TREx": ("P*.jsonl", "lama-trex.jsonl"), "Google_RE": ("*_test.jsonl", "lama-google-re.jsonl")}
GOOGLE_RE_TEMPLATES = {
    "place_of_birth": "[X] was born in [Y] .",
    "date_of_birth": "[X] (born [Y]).",
    "place_of_death": "[X] died in [Y] .",
}
"""Those of the original, which the folder does not hold."""
KIND_OF_ANSWER = {
    **dict.fromkeys(("P19", "P20", "place_of_birth", "place_of_death"), "city"),
    "P27": "country",
    **dict.fromkeys(("P103", "P1412"), "language"),
}
"""What a name is to tell, by relation; others are not filtered."""
GUESSES, NAMES_PER_CALL = 3, 256


def rows_of(files: Iterable[Path], needed: str) -> list[tuple[Path, Row]]:
    """The rows of all files, each with its file. Raises CorpusError where there is no row."""
    rows = [(file, dict(row)) for file in files for _, row in read_rows(file)]
    if not rows:
        raise CorpusError(f"{needed} is missing or empty: give the folder as it is published")
    return rows


def lama(folder: Path, encoder: str = "") -> Iterator[tuple[str, list[Row]]]:
    """Rows of T-REx and Google-RE, with what their subsets are: relation, template, subject, answers, uhn, hard."""
    for part, (pattern, name) in PARTS.items():
        if not (folder / part).is_dir():
            continue
        templates = dict(GOOGLE_RE_TEMPLATES)
        if part == "TREx":
            relations = rows_of([folder / "relations.jsonl"], "relations.jsonl")
            templates = {row["relation"]: row["template"] for _, row in relations}
        helpful = published_ids(folder, f"{part}_UHN", f"LAMA-{part}_UHN")
        hard = published_ids(folder, f"{part}_hard", f"{part}-easy-hard/Hard", f"LAMA-{part}-easy-hard/Hard")
        found: list[Row] = []
        for file, row in rows_of(sorted((folder / part).glob(pattern)), f"{folder / part / pattern}"):
            relation, uuid = file.stem.removesuffix("_test"), row["uuid"]
            right, subject = row["obj_label"], row["sub_label"]
            evidences = row.get("evidences", [])
            if not has_one_mask(row, evidences):
                continue
            surfaces = [each["obj_surface"] for each in evidences if isinstance(each.get("obj_surface"), str)]
            kept = {"relation": relation, "template": templates[relation], "subject": subject}
            kept |= {"answers": list(dict.fromkeys([right, *surfaces]))}
            kept["uhn"] = uuid in helpful if helpful else right.lower() not in subject.lower()
            found.append({**kept, "hard": uuid in hard} if hard else kept)
        if encoder and not helpful:
            drop_guessed(found, encoder)
        yield name, found


def has_one_mask(row: Mapping[str, Any], evidences: list[Row]) -> bool:
    """Return True if the text that a fact was found in holds exactly one [MASK], or if there is no text.

    The `masked_sentences` of Google-RE are parts of one text and are joined. The evidences of T-REx are sentences, one
    of which is enough, as in the reference implementation (docs/decisions.md).
    """
    together = row.get("masked_sentences")
    if isinstance(together, list):
        return " ".join(map(str, together)).count("[MASK]") == 1
    own = [str(each["masked_sentence"]) for each in evidences if "masked_sentence" in each]
    return not own or any(sentence.count("[MASK]") == 1 for sentence in own)


def published_ids(folder: Path, *names: str) -> set[str]:
    """The ids of the rows in the first of the folders that is there; empty without a folder."""
    place = next((folder / name for name in names if (folder / name).is_dir()), None)
    return {row["uuid"] for _, row in rows_of(sorted(place.glob("*.jsonl")), str(place))} if place else set()


def drop_guessed(rows: list[Row], name: str) -> None:
    """Take out of uhn what the model names among its best words for "X is a common name in the following city: …"."""
    from npm.evaluation.methods.parametric import masked_logits
    from npm.models.masked_lm import load_masked_lm
    from npm.retrieval.queries import encode_masks

    encoder, head = load_masked_lm(name)
    names = [(row["subject"], row["relation"]) for row in rows if row["uhn"] and row["relation"] in KIND_OF_ANSWER]
    pairs = dict.fromkeys((word, relation) for name, relation in names for word in name.split())
    common = "{} is a common name in the following {}: {}."
    asked = {pair: common.format(pair[0], KIND_OF_ANSWER[pair[1]], MASK_TEXT) for pair in pairs}
    keys, guessed = list(asked), dict[tuple[str, str], list[str]]()
    for first in range(0, len(keys), NAMES_PER_CALL):
        batch = keys[first : first + NAMES_PER_CALL]
        masks = encode_masks(encoder, [asked[key] for key in batch], masks_per_text=1)
        for some, logits in masked_logits(head, masks.vectors[:, 0]):  # f32 [rows, V]
            best = logits.topk(min(GUESSES, logits.shape[1])).indices.tolist()  # i64 [rows, 3]
            words = ([str(encoder.tokenizer.decode([token])).strip().casefold() for token in ids] for ids in best)
            guessed |= zip(batch[some], words, strict=True)
    for row in rows:
        guesses = [guessed.get((word, row["relation"]), []) for word in row["subject"].split()]
        row["uhn"] = row["uhn"] and not any(row["answers"][0].casefold() in each for each in guesses)


def kamel(folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Rows with relation, question (with [S]), sub_label and obj_label."""
    places = [folder / name for name in ("", "KAMEL", "data/KAMEL")]
    files = next((files for place in places if (files := sorted(place.glob("P*/dev.jsonl")))), [])
    lines = (next(csv.reader([text]), []) for _, text in read_lines(folder / "question-templates.csv"))
    questions = {cells[0].strip(): ",".join(cells[1:]).strip() for cells in lines if "[S]" in ",".join(cells[1:])}
    found = [(file.parent.name, row) for file, row in rows_of(files, f"{folder}/P*/dev.jsonl")]
    yield "kamel-dev.jsonl", [{**row, "relation": name, "question": questions[name]} for name, row in found]


def trivia_qa(folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Rows with question and answers."""
    data = json.loads((folder / "unfiltered-web-dev.json").read_text("utf-8"))["Data"]
    rows = [(row["Question"], row["Answer"]) for row in data]
    names = ("Value", "Aliases", "NormalizedAliases")
    found = [(asked, [own[names[0]], *own.get(names[1], []), *own.get(names[2], [])]) for asked, own in rows]
    yield "trivia-qa-dev.jsonl", [{"question": asked, "answers": answers} for asked, answers in found]


def templama(folder: Path, other: str = "2010", asked: str = "2020") -> Iterator[tuple[str, list[Row]]]:
    """Facts with the same answers at both dates (unchanged) or with all others (changed), asked about `asked`."""
    names = [folder / f"test{more}.{end}" for more in ("_with_aliases", "") for end in ("json", "jsonl")]
    facts: dict[tuple[str, str], dict[str, tuple[Row, dict[str, list[str]]]]] = {}
    for _, row in rows_of([file for file in names if file.is_file()][:1], str(names[0])):
        at_dates = facts.setdefault((row["id"].split("_")[0], row["relation"]), {})
        answers = at_dates.setdefault(str(row["date"]), (row, {}))[1]
        for answer in row["answer"]:
            names_of = answers.setdefault(str(answer.get("wikidata_id") or answer["name"]), [])
            names_of += [answer["name"], *(answer.get("aliases") or [])]
    rows: list[Row] = []
    for (subject, relation), at_dates in facts.items():
        if not {asked, other} <= at_dates.keys():
            continue
        (row, now), (_, then) = at_dates[asked], at_dates[other]
        if (is_same := now.keys() == then.keys()) or not now.keys() & then.keys():
            right, old = ([name for names in each.values() for name in names] for each in (now, then))
            kept = {"query": row["query"], "answers": right, "old_answers": [] if is_same else old, "date": asked}
            kept |= {"subject": subject, "relation": relation, "unchanged": is_same, "changed": not is_same}
            rows.append(kept)
    if not rows:
        raise CorpusError(f"{folder}: the dates {other} and {asked} have no fact to compare")
    yield "templama-test.jsonl", rows


def verbalizer(file: Path, out: Path) -> None:
    """Lists of words, a line per label and a comma between words, cut to the shortest as kNN-Prompt has it."""
    lines = [line.split(",") for line in file.read_text("utf-8").splitlines() if line.strip()]
    lists = [[word.strip() for word in line if word.strip()] for line in lines]
    out.write_text(json.dumps([words[: min(map(len, lists))] for words in lists], ensure_ascii=False), "utf-8")


def main(kind: str, source: str, out: str, *more: str) -> None:
    """Convert one published folder or file."""
    if kind == "verbalizer":
        verbalizer(Path(source), Path(out))
        return
    readers = {"lama": lama, "kamel": kamel, "trivia_qa": trivia_qa, "templama": templama}
    for name, rows in readers[kind](Path(source), *more):
        file = Path(out, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
        sys.stdout.write(f"{file}: {len(rows)} rows\n")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (KeyError, TypeError, OSError, UserError) as error:
        sys.exit(f"{type(error).__name__}: {error}\n{__doc__}")

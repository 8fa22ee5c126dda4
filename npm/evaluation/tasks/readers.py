"""Where the rows of a task come from: a table at hand, a published folder as it is, or a data set on the hub.

A reader makes rows of a published folder: LAMA, KAMEL, TempLAMA, TriviaQA. What it leaves out is counted and told.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from npm.core.errors import CorpusError, SettingError, named
from npm.core.files import read_object
from npm.corpus.readers import Row, read_lines, read_records, read_rows
from npm.corpus.sources import Source
from npm.evaluation.tasks.document_conditions import is_iso_date
from npm.evaluation.tasks.task import Reader, Split, Task

ALTERNATIVES = " | "
"""In `data.file` and `data.columns`: the first of several that is there."""
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
"""Environment variables that keep the hub's libraries off the network."""
_TRUE = ("1", "ON", "YES", "TRUE")


def data_file(task: Task, split: Split) -> str:
    """Name of the file with the examples of a split, as the task gives it; "" where it names a hub data set only."""
    return task.data.development_file if _has_own_file(task, split) else task.data.file


def missing_data(tasks: Sequence[Task], data_dir: Path | None, *, split: Split) -> list[Task]:
    """Those of `tasks` whose examples are nowhere: no file at hand, and no hub data set or no hub.

    Nothing is asked of a hub; there is none where HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set. `data_file` names the
    files that are lacking. A task without development data lacks no file: `read_task` refuses it.
    """
    is_offline = any(os.environ.get(name, "").upper() in _TRUE for name in OFFLINE_VARIABLES)
    return [
        task
        for task in tasks
        if (split is Split.test or task.has_development)
        and _at_hand(task, data_dir, split) is None
        and (is_offline or not task.data.hub or _has_own_file(task, split))
    ]


def find_data(task: Task, data_dir: Path | None, *, split: Split) -> Path | None:
    """The file with the examples of a split; None where there is none at hand and a hub data set is named.

    Raises CorpusError if there is neither, or no development data.
    """
    if split is Split.dev and not task.has_development:
        raise CorpusError(f"{task.name} has no development data: add data.development or data.development_file")
    path = _at_hand(task, data_dir, split)
    if path is not None or (task.data.hub and not _has_own_file(task, split)):
        return path
    raise CorpusError(f"the data of {task.name} is missing ({not_found(task, data_dir, split)}): give data_dir=DIR")


def _has_own_file(task: Task, split: Split) -> bool:
    """Whether a split has a file of its own, for which no hub data set stands in."""
    return split is Split.dev and bool(task.data.development_file)


def _at_hand(task: Task, data_dir: Path | None, split: Split) -> Path | None:
    """The first of the files, and of the folders where the task reads them, that is there."""
    for name in data_file(task, split).split(ALTERNATIVES):
        path = (data_dir or Path()) / name  # an absolute name, of a file beside the task's own, stays as it is
        is_there = path.is_file() or (task.data.reader is not None and path.is_dir())
        if name and (data_dir is not None or path.is_absolute()) and is_there:
            return path
    return None


def not_found(task: Task, data_dir: Path | None, split: Split) -> str:
    names = data_file(task, split)
    if not names:
        return "no data.file"
    if data_dir is None:
        return f"no data_dir= to look for {names.replace(ALTERNATIVES, ' or ')} in"
    kind = "file" if task.data.reader is None else "file or folder"
    return " and ".join(f"no {kind} {data_dir / name}" for name in names.split(ALTERNATIVES))


def placed_rows(
    task: Task, path: Path | None, *, date: str, not_found: str
) -> tuple[Callable[[], Iterator[tuple[str, Row]]], str, tuple[str, ...]]:
    """What gives the rows of a task with where each stands, the name of their place, and notes on them."""
    if path is not None and path.is_dir():
        published = read_published(task, path, date=date)
        notes = tuple(f"{task.name}: {note}" for note in published.notes)
        return lambda: iter(published.rows), str(path), notes
    if date:
        raise SettingError(f"zero_shot.date={date} needs a published folder, and {task.name} has a table")
    place = str(path) if path is not None else f"hub:{task.data.hub}"
    rows = partial(read_rows, path) if path is not None else partial(_hub_rows, task, not_found)
    return lambda: ((f"{place}:{line}", row) for line, row in rows()), place, ()


def _hub_rows(task: Task, not_found: str) -> Iterator[tuple[int, Row]]:
    """Rows of the hub data set of a task whose file is not at hand, as `not_found` says."""
    data = task.data
    try:
        address = f"hub:{data.hub}@{data.config}/{data.split}"
        yield from read_records(Source(address, address, "hub"))
    except CorpusError as error:
        raise CorpusError(f"the data of {task.name} is missing: {not_found}; {error}") from error


@dataclass(frozen=True, slots=True)
class PublishedRows:
    """The rows of a published folder, each with the file and line that it stands in."""

    rows: tuple[tuple[str, Row], ...]
    notes: tuple[str, ...] = ()
    """What was left out, and what subsets are made by."""


GOOGLE_RE_TEMPLATES = {
    "place_of_birth": "[X] was born in [Y] .",
    "date_of_birth": "[X] (born [Y]).",
    "place_of_death": "[X] died in [Y] .",
}
"""Those of the original, which the folder does not hold."""
LAMA_PARTS = {"TREx": "P*.jsonl", "Google_RE": "*_test.jsonl"}
TEMPLATES, QUESTIONS, KAMEL_FOLDERS = "relations.jsonl", "question-templates.csv", ("", "KAMEL", "data/KAMEL")
TRIVIA_QA = "unfiltered-web-dev.json"


def read_published(task: Task, folder: Path, *, date: str = "") -> PublishedRows:
    """The rows of a published folder; `date` is the one of the task's dates that is asked about, by default the later.

    Raises CorpusError for a folder that is not of its published form and for rows that lack what they have there.
    """
    if task.data.reader is Reader.lama:
        return _read_lama(folder, task.data.config)
    if task.data.reader is Reader.kamel:
        return _read_kamel(folder, task.data.split)
    if task.data.reader is Reader.trivia_qa:
        return _read_trivia_qa(folder)
    return _read_templama(folder, task.data.split, [str(each) for each in task.data.dates], asked=date)


def _read_lama(folder: Path, part: str) -> PublishedRows:
    if part not in LAMA_PARTS:
        raise CorpusError(f"data.config must be {' or '.join(LAMA_PARTS)}, got {part!r}")
    files = sorted((folder / part).glob(LAMA_PARTS[part]))
    needed = [f"{part}/{LAMA_PARTS[part]}", *([TEMPLATES] if part == "TREx" else [])]
    if not files or (part == "TREx" and not (folder / TEMPLATES).is_file()):
        raise _not_published(folder, "LAMA", needed)
    templates, named_by = dict(GOOGLE_RE_TEMPLATES), "the three of Google-RE"
    if part == "TREx":
        templates = {
            _string(row, "relation", f"{folder / TEMPLATES}:{line}"): _string(
                row, "template", f"{folder / TEMPLATES}:{line}"
            )
            for line, row in read_rows(folder / TEMPLATES)
        }
        named_by = str(folder / TEMPLATES)
    helpful = _published_ids(folder, (f"{part}_UHN", f"LAMA-{part}_UHN"))
    hard = _published_ids(folder, (f"{part}_hard", f"{part}-easy-hard/Hard", f"LAMA-{part}-easy-hard/Hard"))
    found: list[tuple[str, Row]] = []
    dropped = 0
    for file in files:
        relation = file.stem.removesuffix("_test")
        template = _known_template(templates, relation, file, named_by)
        for line, row in read_rows(file):
            where = f"{file}:{line}"
            evidences = _evidences(row, where)
            if not _has_one_mask(row, evidences):
                dropped += 1
                continue
            subject, right, uuid = (_string(row, name, where) for name in ("sub_label", "obj_label", "uuid"))
            surfaces = [each["obj_surface"] for each in evidences if isinstance(each.get("obj_surface"), str)]
            kept: dict[str, Any] = {"relation": relation, "template": template, "subject": subject}
            kept |= {"answers": list(dict.fromkeys([right, *surfaces])), "uuid": uuid}
            kept["uhn"] = uuid in helpful if helpful is not None else right.lower() not in subject.lower()
            found.append((where, kept if hard is None else {**kept, "hard": uuid in hard}))
    if not found:
        raise _not_published(folder, "LAMA", [f"rows with one [MASK] in {needed[0]}"])
    for ids in (helpful, hard):
        if ids is not None and not any(row["uuid"] in ids for _, row in found):
            _refuse_other_ids(ids, part, found[0][1]["uuid"])
    notes = [f"left out: {_count(dropped, 'row')} without exactly one [MASK]."] if dropped else []
    return PublishedRows(tuple(found), (*notes, UHN_PUBLISHED if helpful is not None else UHN_BY_STRING))


UHN_PUBLISHED = "uhn is the published subset."
UHN_BY_STRING = (
    "uhn leaves out examples whose subject holds the answer, but not those whose answer a masked language model "
    "guesses from the name (zero_shot.mlm.encoder=, a cased one)."
)


def _known_template(templates: dict[str, str], relation: str, file: Path, named_by: str) -> str:
    if relation in templates:
        return templates[relation]
    raise CorpusError(f"{file}: no template of the relation {relation} in {named_by}")


def _has_one_mask(row: Row, evidences: Sequence[Row]) -> bool:
    """Whether what a row's fact was found in holds exactly one [MASK]; true for a row without sentences.

    The `masked_sentences` of Google-RE are parts of one text and are joined. The evidences of T-REx are sentences of
    their own, one of which is enough, as in the reference implementation (docs/decisions.md).

    >>> _has_one_mask({"masked_sentences": ["a [MASK]", "b [MASK]"]}, []), _has_one_mask({}, [])
    (False, True)
    >>> _has_one_mask({}, [{"masked_sentence": "a [MASK]"}, {"masked_sentence": "[MASK] or [MASK]"}])
    True
    """
    together = row.get("masked_sentences")
    if isinstance(together, list):
        return " ".join(map(str, together)).count("[MASK]") == 1
    own = [str(each["masked_sentence"]) for each in evidences if "masked_sentence" in each]
    return not own or any(sentence.count("[MASK]") == 1 for sentence in own)


def _evidences(row: Row, where: str) -> list[dict[str, Any]]:
    found = row.get("evidences", [])
    if isinstance(found, list) and all(isinstance(each, dict) for each in found):
        return found
    raise _wrong("evidences", "a list of objects", found, where)


def _published_ids(folder: Path, names: Sequence[str]) -> dict[str, str] | None:
    """The ids of the rows in the first of the folders that is there, and where each stands; None without a folder."""
    place = next((folder / name for name in names if (folder / name).is_dir()), None)
    if place is None:
        return None
    files = sorted(place.glob("*.jsonl"))
    found = {
        _string(row, "uuid", f"{file}:{line}"): f"{file}:{line}" for file in files for line, row in read_rows(file)
    }
    if not found:
        raise CorpusError(f"{place} has no uuid in any *.jsonl: unpack the published subset there, or remove it")
    return found


def _refuse_other_ids(ids: dict[str, str], part: str, known: str) -> None:
    """Raise CorpusError for a published subset that has none of the rows read."""
    first, where = next(iter(ids.items()))
    raise CorpusError(
        f"{where}: none of {len(ids)} ids, such as {first!r}, is in {part}, where they are such as {known!r}; get the "
        "subset of these files, or remove its folder"
    )


def _read_kamel(folder: Path, split: str) -> PublishedRows:
    found = ((folder / name, sorted((folder / name).glob(f"P*/{split}.jsonl"))) for name in KAMEL_FOLDERS)
    files = next((files for _, files in found if files), [])
    if not files or not (folder / QUESTIONS).is_file():
        raise _not_published(folder, "KAMEL", [QUESTIONS, f"P*/{split}.jsonl"])
    questions: dict[str, str] = {}
    for line, text in read_lines(folder / QUESTIONS):
        cells = next(csv.reader([text]), [])
        relation, question = cells[0].strip() if cells else "", ",".join(cells[1:]).strip()
        if "[S]" in question:
            questions[relation] = question
        elif any(cells) and line > 1:  # the first may name the columns
            raise CorpusError(
                f"{folder / QUESTIONS}:{line}: expected such as 'P364, What is the language of [S]?', "
                f"got {','.join(cells)[:80]!r}"
            )
    rows: list[tuple[str, Row]] = []
    for file in files:
        relation = file.parent.name
        question = _known_template(questions, relation, file, str(folder / QUESTIONS))
        for line, row in read_rows(file):
            rows.append((f"{file}:{line}", {**row, "relation": relation, "question": question}))
    return PublishedRows(tuple(rows))


def _read_trivia_qa(folder: Path) -> PublishedRows:
    """Questions in the form of the hub's data set."""
    file = folder / TRIVIA_QA
    if not file.is_file():
        raise _not_published(folder, "TriviaQA", [TRIVIA_QA])
    found = read_object(file, fix="get the file again from where it is published").get("Data")
    if not isinstance(found, list) or not found:
        raise _wrong("Data", "a list of questions", found, str(file))
    rows: list[tuple[str, Row]] = []
    for number, row in enumerate(found, start=1):
        where = f"{file}: item {number}"
        answer = row.get("Answer") if isinstance(row, dict) else None
        if not isinstance(answer, dict):
            raise _wrong("Answer", "an object with Value and Aliases", answer, where)
        names = {"value": _string(answer, "Value", where), "aliases": answer.get("Aliases", [])}
        names["normalized_aliases"] = answer.get("NormalizedAliases", [])
        rows.append((where, {"question": _string(row, "Question", where), "answer": names}))
    return PublishedRows(tuple(rows))


def _read_templama(folder: Path, split: str, dates: Sequence[str], *, asked: str) -> PublishedRows:
    """Facts that are the same at both dates, and facts that have changed between them, asked about one of the dates."""
    names = [f"{split}{more}.{end}" for more in ("_with_aliases", "") for end in ("json", "jsonl")]
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise _not_published(folder, "TempLAMA", [" or ".join(names)])
    asked = asked or dates[1]
    if asked not in dates:
        raise SettingError(f"zero_shot.date must be one of data.dates, {' or '.join(dates)}, got {asked}")
    facts: dict[tuple[str, str], dict[str, tuple[str, Row, dict[str, list[str]]]]] = {}
    seen: set[str] = set()
    for line, row in read_rows(file):
        where = f"{file}:{line}"
        date, identifier, relation = (_string(row, name, where) for name in ("date", "id", "relation"))
        if not is_iso_date(date):
            raise _wrong("date", "a year such as 2019, or an ISO date", date, where)
        seen.add(date)
        if date in dates:
            at_dates = facts.setdefault((identifier.split("_")[0], relation), {})
            names_of = at_dates.setdefault(date, (where, row, {}))[2]
            for key, own in _templama_answers(row, where):
                names_of.setdefault(key, []).extend(own)
    if absent := [date for date in dates if not any(date in at_dates for at_dates in facts.values())]:
        got = f"{min(seen)} to {max(seen)}" if seen else "none"
        raise CorpusError(f"{file}: no fact of {absent[0]}, one of data.dates; its dates are {got}")
    other = dates[1 - dates.index(asked)]
    return _compared_facts(facts, asked, other, file)


def _compared_facts(
    facts: dict[tuple[str, str], dict[str, tuple[str, Row, dict[str, list[str]]]]], asked: str, other: str, file: Path
) -> PublishedRows:
    """Rows of the facts whose answers are all the same or all others at the `other` date; the rest is counted."""
    rows: list[tuple[str, Row]] = []
    partly = at_one = 0
    for (subject, relation), at_dates in facts.items():
        if len(at_dates) < 2:
            at_one += 1
            continue
        (where, row, now), (_, _, then) = at_dates[asked], at_dates[other]
        if (is_same := now.keys() == then.keys()) or not now.keys() & then.keys():
            answers, old = ([name for names in each.values() for name in names] for each in (now, then))
            kept = {"query": row.get("query"), "answers": answers, "old_answers": [] if is_same else old}
            kept |= {"subject": subject, "relation": relation, "date": asked}
            rows.append((where, {**kept, "unchanged": is_same, "changed": not is_same}))
        else:
            partly += 1
    left_out = f"{_count(partly, 'fact')} that changed in part and {at_one} with one date only"
    if not rows:
        raise CorpusError(f"{file}: data.dates {asked} and {other} have no fact to compare, only {left_out}")
    return PublishedRows(tuple(rows), (f"asked about {asked}; left out: {left_out}.",))


def _templama_answers(row: Row, where: str) -> Iterator[tuple[str, list[str]]]:
    """What tells one answer from another, and its names."""
    given = row.get("answer")
    for answer in given if isinstance(given, list) and given else [given]:
        if not isinstance(answer, dict):
            raise _wrong("answer", "a list of {wikidata_id, name}", given, where)
        name, aliases = _string(answer, "name", where), answer.get("aliases") or []
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            raise _wrong("aliases", "a list of strings", aliases, where)
        yield str(answer.get("wikidata_id") or name), [name, *aliases]


def _string(row: Row, name: str, where: str) -> str:
    """A cell that must hold text, or a whole number, which is written out."""
    value = row.get(name)
    if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
        return str(value)
    raise _wrong(name, "text", value, where)


def _wrong(name: str, expected: str, value: object, where: str) -> CorpusError:
    got = json.dumps(value, default=str)[:120] if value is not None else "none"
    return CorpusError(f"{where}: {name} must be {expected}, got {got}")


def _count(number: int, name: str) -> str:
    """A number of things in words.

    >>> _count(1, "row"), _count(0, "row")
    ('1 row', '0 rows')
    """
    return f"{number} {name}{'s' * (number != 1)}"


def _not_published(folder: Path, name: str, looked_for: Sequence[str]) -> CorpusError:
    held = named(sorted(path.name for path in folder.iterdir()), most=6) or "nothing"
    return CorpusError(
        f"{folder} is not the published folder of {name}: expected {' and '.join(looked_for)}, got {held}"
    )

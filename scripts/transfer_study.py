r"""What comes before `scripts/study.py transfer`: OUT/target, the two parts of a language, and OUT/commands.sh.

    python scripts/transfer_study.py out=runs/transfer lines=breton.jsonl "treebank=[fr_gsd-*.conllu]" \
        "files=[en-0.jsonl.zst]" "source_held_out=[en-7.jsonl.zst]"

About every tenth line is held out, by the hash of its text, whatever its case and spacing. OUT/study.sh is the study.
"""

import json
import shlex
import sys
from pathlib import Path

from index.files import replace_file, sha256_of_bytes
from npm.core.errors import UserError, check_range
from npm.corpus.documents import CorpusSettings, read_corpus
from npm.corpus.text import normalised_text
from npm.evaluation.study import Stage
from npm.evaluation.study_plans import ChosenStudy


def split(file: str, files: dict[str, str]) -> None:
    """Write the two parts of a file of lines, each to the file that its setting of the study names."""
    lines = {normalised_text(each.text): each for each in read_corpus(CorpusSettings(files=[file]))}
    rows: dict[str, list[str]] = {part: [] for part in files}
    for text, document in lines.items():
        part = "target" if int(sha256_of_bytes(text.encode())[:8], 16) % 10 else "target_held_out"
        rows[part].append(json.dumps({"id": document.id, "text": document.text}, ensure_ascii=False) + "\n")
    for part, own in rows.items():
        Path(files[part]).parent.mkdir(parents=True, exist_ok=True)
        replace_file(Path(files[part]), "".join(own).encode())
        sys.stdout.write(f"{files[part]}: {len(own)} lines\n")


def main(arguments: list[str]) -> int:
    """Write the parts and the commands; returns the exit status."""
    if "--help" in arguments:
        sys.stdout.write(__doc__ or "")
        return 0
    given = dict(each.partition("=")[::2] for each in ["out=runs/transfer", "lines=", *arguments])
    out = Path(given["out"])
    files = {"target": f"{out}/target/train.jsonl", "target_held_out": f"{out}/target/held_out.jsonl"}
    others = [each for each in arguments if not each.startswith("lines=")]
    command = ["transfer", *others, *(f"{setting}={file}" for setting, file in files.items())]
    try:
        study = ChosenStudy.of(command).study  # before anything is written
        check_range(bool(given["lines"]), "lines", expected="the file of the target", got="nothing", fix="lines=FILE")
        split(given["lines"], files)
    except UserError as error:
        sys.stderr.write(f"transfer_study: error: {error}\n")
        return 2
    wanted = [Stage.of(study, cell, name, out=out, seed=0) for cell in study.cells for name in study.wanted(cell)]
    lines = dict.fromkeys(shlex.join(["npmlm", *stage.command]) + "\n" for each in wanted for stage in each.left())
    replace_file(out / "commands.sh", "".join(lines).encode())
    replace_file(out / "study.sh", (shlex.join(["python", "scripts/study.py", *command]) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

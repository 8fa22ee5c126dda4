"""The table of the task entity_translation, made of any corpus.

    python scripts/entity_translation.py "files=[wiki/*.jsonl.zst]" out=data/open/entity-translation.jsonl encoder=DIR
    python scripts/entity_translation.py names=names.csv out=runs/names

The first takes the names that documents begin with, such as `Beijing (Chinese: 北京) is …`, for the encoder that is to
be asked (default: the shipped one), and prints how many its tokenizer cannot write. The second makes such documents of
a list of names (name,language,translation), OUT-train.jsonl and OUT-test.jsonl, no name in both.
"""

import sys
from pathlib import Path

from npm.core.errors import SettingError, UserError
from npm.core.settings import parse_list
from npm.evaluation.tasks.entity_translation import write_entity_translation, write_name_passages
from npm.models.encoder import Encoder


def main(arguments: list[str]) -> int:
    """Write the table, or the passages, and print what was found."""
    if "--help" in arguments:
        sys.stdout.write(__doc__ or "")
        return 0
    given = dict(argument.partition("=")[::2] for argument in arguments)
    try:
        if (
            not given.get("out")
            or set(given) - {"out", "encoder", "files", "names"}
            or ("files" in given) == ("names" in given)
        ):
            raise SettingError(
                "the set cannot be made",
                expected="files=[FILE,…] out=FILE, or names=FILE out=NAME, with encoder= or without",
                got=" ".join(arguments),
                where="the command line",
                fix="correct these; --help shows examples",
            )
        if "names" in given:
            train, test = write_name_passages(Path(given["names"]), Path(given["out"]))
            sys.stdout.write(f"{train} passages to train on, {test} to ask about\n")
            return 0
        encoder = Encoder.load(given.get("encoder", ""), device="cpu")
        built = write_entity_translation(parse_list(given["files"], "files"), Path(given["out"]), encoder)
        sys.stdout.write(built.table() + "\n")
    except UserError as error:
        sys.stderr.write(f"entity_translation: error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`npmlm fill`: its settings, and where its texts come from."""

from __future__ import annotations

import sys
from functools import partial

from npm.cli.base import FilesCommand, Output, say
from npm.cli.registry import verb
from npm.cli.settings import compose_settings
from npm.core.errors import exclusive, missing
from npm.core.settings import PathText
from npm.retrieval.settings import FillSettings

NO_BLOCK_VECTORS = (
    "note: the encoder makes block vectors, and this index was built without: blocks are ranked by shared words alone. "
    "Build it into another folder to rank by both; vector_share=0 leaves this note out."
)


class FillCommand(FillSettings, FilesCommand):
    """Answer questions, and texts with <mask>, with phrases of the corpus."""

    index: PathText = ""
    """Folder of the index; empty: texts on the command line and at the prompt are answered from a demo corpus, whose
    index is built once into the user's cache (XDG_CACHE_HOME)."""
    texts: PathText = ""
    """File with one text a line. All lines are checked first, then answered 64 at a time; in bfloat16 this changes
    scores by about 0.02, compared with lines in a pipe, which are answered one at a time."""
    table: PathText = ""
    """File with a row per subject: .csv, .tsv, .jsonl, .json or .parquet; each row is answered by the template, and
    written with its first and second answer, their shares, and the place of the first."""
    template: str = ""
    """With table=, a question, or a text with one <mask>, and columns of the table in braces: {name} was
    founded in <mask>."""
    out: PathText = ""
    """With table=, the file to write, .csv or .jsonl, replaced where it exists; empty: standard output, as CSV, or as
    JSON lines with output=json."""
    by_doubt: bool = False
    """With table=, write the least certain rows first, by confidence, or by share where there is none."""
    output: Output = "table"
    """`table` for people, `json` for programs: one object per line."""
    history: bool = True
    """Keep what is typed at the prompt for the next time, in npmlm/history under XDG_STATE_HOME."""


@verb(
    FillCommand,
    'npmlm fill index=DIR "The capital of Iceland is <mask>."',
    "index files k retrieval documents where values min_confidence texts table template out output",
    required=None,
    takes_texts=True,
    presets="scoring",
    groups={"scoring": "length_exponent temperature cut_expressions exclude_query_phrases"},
)
def run_fill(settings: FillCommand, texts: list[str]) -> int:
    """Answer texts of the command line, of a file, of a pipe, or typed at the prompt."""
    is_table = bool(settings.table or settings.template or settings.out or settings.by_doubt)
    is_prompt = not texts and not settings.texts and not is_table and sys.stdin is not None and sys.stdin.isatty()
    if settings.index and settings.files:
        raise exclusive("index=DIR", "files")
    if not (settings.index or settings.files or texts or is_prompt or is_table):
        advice = "index=DIR or files=FOLDER; only texts on the command line and at the prompt are answered without"
        raise missing("index", advice)
    from npm.cli.cards import fill_piped, fill_texts, given_texts

    if is_table:
        from npm.cli.rows import check_out, fill_table, table_texts

        if settings.table and (texts or settings.texts):
            raise exclusive("table=FILE", "texts")
        check_out(settings.out, settings.table)
        rows = table_texts(settings.table, settings.template)
    asked = given_texts(texts, settings.texts)
    if settings.index:
        filler = settings.open_filler(settings)
    else:
        from npm.cli.fillers import demo_filler, files_filler

        encoder = settings.load_reading_encoder()
        filler = files_filler(settings.files, encoder, settings) if settings.files else demo_filler(encoder, settings)
    from npm.retrieval.blocks import lacks_block_vectors

    if lacks_block_vectors(filler.index, filler.encoder, settings):
        say(NO_BLOCK_VECTORS)
    if is_prompt:
        from npm.cli.prompt import run_prompt

        return run_prompt(filler, settings.output, partial(compose_settings, "fill"), keeps_history=settings.history)
    if is_table:
        fill_table(filler, rows, settings.out, settings.output, by_doubt=settings.by_doubt)
    elif asked:
        fill_texts(filler, settings.output, asked)
    else:
        fill_piped(filler, settings.output)
    return 0

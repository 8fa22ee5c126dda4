"""The study of transfer: what does a model that read another text bring to a language of which there is little?

Sources are English and texts of `npmlm generate`, which have structure and no meaning; the target is a file of lines.
Each source keeps everything but its vocabulary and is trained on the target at equal steps, beside one from scratch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npm.evaluation.study import Column, Stages, Study

SIZES = [f"start.fresh.{each}" for each in ("layers=4", "dimensions=256", "attention_heads=4", "max_input_tokens=128")]
FROZEN = ["start.frozen.layers=4"]
"""All layers of SIZES: the vocabulary, the positions and the head are trained alone."""
RESET = "{name: reinitialise, scope: position_embeddings}"
ENGLISH = ["encoder=encoder-mini", "start.fresh.vocabulary_size=5004", "blocks.min_filled_fraction=0.97"]
TEXTS = {
    "zipf": ["lexicon.kind=zipf"],
    "loglinear": ["lexicon.kind=loglinear"],
    "loglinear-as-zipf": ["lexicon.kind=loglinear", "lexicon.temperature=null"],
    "nesting": ["lexicon.kind=nesting"],
}
"""Artificial texts by their names; the grammar is that of the treebank."""
SOURCES: Mapping[str, tuple[str, Sequence[str]]] = {
    "english": ("", ENGLISH),
    **{name: (name, []) for name in TEXTS},
    "zipf-embeddings-frozen": ("zipf", ["start.frozen.word_embeddings=true"]),
}
"""Source models by their names: the artificial text, "" for English, and settings of their training."""
TRAINED_FILES, HELD_OUT_FILE = ("0000?.jsonl", "0001[0-2].jsonl"), "00013.jsonl"
"""Of an artificial text of SENTENCES sentences, 50,000 a file."""
SENTENCES = ["sentences=700000", "sentences_per_document=7"]
"""10 M words; documents of seven sentences are blocks of about 100 tokens."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A cell: where its weights come from, what is done to them, and how they are trained on the target."""

    source: str = ""  # one of SOURCES; "": random weights
    edits: Sequence[str] = ()  # behind new_vocabulary
    target: Sequence[str] = ()


CELLS = {
    "scratch": Transfer(),
    **{name: Transfer(name) for name in SOURCES},
    "english-positions-reset": Transfer("english", [RESET]),
    "zipf-positions-reset": Transfer("zipf", [RESET]),
    "scratch-layers-frozen": Transfer(target=FROZEN),
    "english-layers-frozen": Transfer("english", target=FROZEN),
    "zipf-layers-frozen": Transfer("zipf", target=FROZEN),
    "nesting-layers-frozen": Transfer("nesting", target=FROZEN),
}
REQUIRED = ("treebank", "files", "source_held_out", "target", "target_held_out")
"""What has to be said of the study: the treebank, English text and held-out English, the target's two parts."""
OURS = dict.fromkeys(REQUIRED, "") | {"window_tokens": "0"}
"""All that can be said. With `window_tokens` a token reads its neighbours only; then no positions are learned."""


def transfer_study(ours: Mapping[str, str], given: Sequence[str]) -> Study:
    """The cells as commands; `given` are settings of the runs on the target."""
    shared: dict[str, Sequence[str]] = {
        "tokenizer": ["tokenizer", "out={out}", f"corpus.files={ours['target']}", "size=4096"]
    }
    for name, lexicon in TEXTS.items():
        text = ["out={out}", "seed={seed}", f"treebank={ours['treebank']}", *SENTENCES, *lexicon]
        shared[f"text-{name}"] = ["generate", *text, "target={stage:tokenizer}"]
    window = [] if ours["window_tokens"] == "0" else [f"start.fresh.window_tokens={ours['window_tokens']}"]
    for name, (text_name, settings) in SOURCES.items():
        folder = f"{{stage:text-{text_name}}}"
        text_files = ",".join(f"{folder}/texts/{files}" for files in TRAINED_FILES)
        text = [f"encoder={folder}/tokenizer", f"corpus.files=[{text_files}]"] if text_name else []
        common = ["run={out}", "trainer.seed={seed}", "experiment=artificial_source", *window]
        shared[f"source-{name}"] = ["train", *common, *(text or [f"corpus.files={ours['files']}"]), *settings]
    columns = {
        "target, best": Column("best", ("accuracy",)),
        "target, end": Column("end", ("accuracy",)),
        "source": Column("source-accuracy", ("accuracy",)),
    }
    possible = {name: cell for name, cell in CELLS.items() if ours["window_tokens"] == "0" or RESET not in cell.edits}
    return Study({name: _stages(cell, ours, given, window) for name, cell in possible.items()}, columns, shared)


def _stages(cell: Transfer, ours: Mapping[str, str], given: Sequence[str], window: Sequence[str]) -> Stages:
    """The commands of one cell, by their names."""
    stages: dict[str, Sequence[str]] = {}
    start = ["encoder={stage:tokenizer}", *SIZES, *window]
    if cell.source:
        edits = ", ".join(["{name: new_vocabulary, tokenizer: {stage:tokenizer}}", *cell.edits])
        encoder = f"encoder={{stage:source-{cell.source}}}/encoder"
        stages["edit"] = ["edit", "out={out}", encoder, "seed={seed}", f"edits=[{edits}]"]
        start = ["encoder={stage:edit}"]
    files = [f"corpus.files={ours['target']}", f"evaluation.files={ours['target_held_out']}"]
    run = ["run={out}", "trainer.seed={seed}", "experiment=transfer_target"]
    stages["target"] = ["train", *run, *start, *files, *cell.target, *given]
    every = ["task=masked_tokens", "masked_tokens.every_document=true"]
    measure = ["evaluate", "out={out}", *every, f"corpus.files={ours['target_held_out']}"]
    stages["best"] = [*measure, "encoder={stage:target}/best-encoder"]
    stages["end"] = [*measure, "encoder={stage:target}/encoder"]
    if cell.source:
        text_name, _ = SOURCES[cell.source]
        asked = ["task=masked_tokens", f"corpus.files={ours['source_held_out']}", "limit=100"]
        if text_name:
            asked = [
                *every,
                f"corpus.files={{stage:text-{text_name}}}/texts/{HELD_OUT_FILE}",
                "corpus.max_documents=300",
            ]
        stages["source-accuracy"] = ["evaluate", "out={out}", *asked, f"encoder={{stage:source-{cell.source}}}/encoder"]
    return stages

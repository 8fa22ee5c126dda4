"""Settings whose values are paths, plain text or lists, which hydra's grammar must not read."""

from __future__ import annotations

PATH_SETTINGS = (
    "run",
    "ids_file",
    "index",
    "encoder",
    "encoder.name",
    "texts",
    "out",
    "questions",
    "data_dir",
    "mlm.encoder",
    "mlm.index",
    "before.encoder",
    "sts_dir",
    "corruption.collocations.vocabulary",
)
TEXT_SETTINGS = (
    "shard",
    "search.factory",
    "corpus.id_field",
    "corpus.title_field",
    "corpus.text_field",
    "sentences.anchor_column",
    "sentences.positive_column",
    "sentences.negative_column",
    "sentences.label_column",
    "sentences.score_column",
    "evaluation.best",
    "trainer.wandb_project",
)
"""Plain strings that may hold what hydra's grammar has a meaning for, such as the comma of IVF64,SQ8."""
LIST_SETTINGS = (
    "corpus.files",
    "sentences.files",
    "evaluation.files",
    "documents",
    "where",
    "ids",
    "fill.documents",
    "fill.where",
    "task",
    "method",
    "methods",
    "terms",
)
"""Lists that hydra does not read either: of paths, ids and conditions."""
REQUIRED = {"train": ("run",), "evaluate": ("out",), "estimate": (), "compare": (), "plot": ("out",)}
"""Settings without which a verb cannot begin; for all others, the index."""

"""What `npmlm evaluate` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from npm.corpus.documents import CorpusSettings
from npm.errors import check_range
from npm.evaluation.questions import Split
from npm.models.encoder import ComputeDtype
from npm.retrieval.fill import FillSettings


class TaskName(Enum):
    """What is measured."""

    demo = "demo"
    in_batch = "in_batch"


@dataclass(kw_only=True, slots=True)
class EvaluationSettings:
    """One evaluation."""

    task: TaskName = TaskName.demo
    """`demo`: questions about the demo corpus, needs index=; `in_batch`: held-out retrieval, needs corpus.files=."""
    out: str = ""
    """Folder for predictions.jsonl and metrics.json. Required."""
    index: str = ""
    """Folder of the index that is asked."""
    encoder: str = ""
    """Folder or name of the encoder; empty: the shipped one, or the index's own copy."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`, which takes a GPU where there is one."""
    dtype: ComputeDtype = ComputeDtype.auto
    """Number format of the encoder's forward pass."""
    questions: str = ""
    """File of questions for task=demo; empty: those shipped with the demo corpus."""
    split: Split = Split.test
    """Half of the questions: `dev` to choose settings on, `test` to report."""
    limit: int | None = None
    """Questions (demo) or articles (in_batch) at most; null takes all questions, or 200 articles."""
    seed: int = 0
    """Seed of masks and of the bootstrap."""
    fill: FillSettings = field(default_factory=FillSettings)
    """How questions are answered."""
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """Held-out documents for task=in_batch."""

    def __post_init__(self) -> None:
        for name, least in (("limit", 1), ("seed", 0)):
            value = getattr(self, name)
            check_range(value is None or value >= least, name, expected=f"at least {least}", got=value)

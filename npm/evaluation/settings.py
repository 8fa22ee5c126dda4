"""The settings of `npmlm evaluate`: what tasks share, and a group for each task that has settings of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from npm.corpus.documents import CorpusSettings
from npm.errors import SettingError
from npm.evaluation.demo import DemoSettings
from npm.evaluation.held_out.denoising import DenoisingTaskSettings
from npm.evaluation.held_out.in_batch import InBatchSettings
from npm.evaluation.held_out.masked_tokens import MaskedTokensSettings
from npm.evaluation.sts.evaluate import StsSettings
from npm.evaluation.zero_shot.settings import ZeroShotEvaluation
from npm.settings import PathText

OLD_SPELLINGS = {
    "dtype": "precision",
    "questions": "demo.questions",
    "dimensions": "in_batch.dimensions",
    "masked_fraction": "masked_tokens.masked_fraction",
    "masked_unit": "masked_tokens.unit",
    "pooler": "sts.pooler",
    **{f"before.{key}": f"sts.before.{key}" for key in ("encoder", "pooler")},
    **{f"geometry.{key}": f"sts.geometry.{key}" for key in ("pairs", "layer_sentences")},
    **{
        f"closed.{key}": f"zero_shot.closed.{key}"
        for key in ("retrieval", "k", "temperature", "combination", "label_mean", "calibration", "verbalizer")
    },
    **{f"mlm.{key}": f"zero_shot.mlm.{key}" for key in ("encoder", "index")},
}
"""Keys before settings were grouped by task, which this version still takes; the new ones behind them."""


@dataclass(kw_only=True, slots=True)
class EvaluationSettings(ZeroShotEvaluation):
    """One evaluation."""

    out: PathText = ""
    """Folder for predictions.jsonl and metrics.json. Required."""
    corpus: CorpusSettings = field(default_factory=CorpusSettings)
    """Held-out documents for the tasks in_batch, masked_tokens and denoising."""
    demo: DemoSettings = field(default_factory=DemoSettings)
    """Task demo."""
    in_batch: InBatchSettings = field(default_factory=InBatchSettings)
    """Task in_batch."""
    masked_tokens: MaskedTokensSettings = field(default_factory=MaskedTokensSettings)
    """Task masked_tokens."""
    denoising: DenoisingTaskSettings = field(default_factory=DenoisingTaskSettings)
    """Task denoising."""
    sts: StsSettings = field(default_factory=StsSettings)
    """Task sts."""

    def check(self) -> None:
        """Refuse two numbers of articles."""
        for name in ("in_batch", "masked_tokens", "denoising"):
            group = getattr(self, name)
            if self.limit is not None and group.articles not in (type(group)().articles, self.limit):
                raise SettingError(
                    f"limit and {name}.articles contradict each other",
                    expected="one of them",
                    got=f"limit={self.limit} and {name}.articles={group.articles}",
                    where=f"limit, {name}.articles",
                    fix="leave one of them out",
                )

"""Settings that nothing in a run reads: to pass them over without a word would be a trap."""

from __future__ import annotations

from npm.errors import SettingError
from npm.masking.rendering import DENOISING, PHRASES, SENTENCES, TOKENS, reads_blocks
from npm.settings import changed_settings
from npm.training.settings import TrainingSettings

READ_BY_VIEW = {PHRASES: "masking", TOKENS: "corruption", DENOISING: "denoising", SENTENCES: "sentences"}
"""Which group of settings says what a view shows."""
KEPT_WITH_THE_ENCODER = "objective.nonparametric.similarity_scale"
"""Saved with every encoder, whatever it is trained for."""


def refuse_unused(settings: TrainingSettings, views: set[str]) -> None:
    """Raise SettingError if a group of settings was changed that the objectives, reading `views`, have no use for."""
    unused = [group for view, group in READ_BY_VIEW.items() if view not in views]
    if not reads_blocks(views):
        unused += ["blocks", "groups"]
    weights = settings.objective.weights()
    unused += [
        f"objective.{name}"
        for name in ("nonparametric", "masked", "sentence", "token_contrast")
        if not weights[f"{name}_weight"]
    ]
    changed = changed_settings(settings, TrainingSettings(), unused)
    changed = [key for key in changed if key != KEPT_WITH_THE_ENCODER]
    if changed:
        raise SettingError(
            f"this run has no use for {', '.join(changed)}",
            expected="settings of what its objectives read",
            got=f"objectives that read {', '.join(sorted(views))}, and {', '.join(changed)}",
            where=", ".join(changed),
            fix="leave these out, or give the objective that reads them a weight",
        )


def refuse_unused_of_start(settings: TrainingSettings) -> None:
    """Raise SettingError for sizes of random weights where `encoder=` gives the weights, and those that T5 lacks."""
    fresh = "start.fresh"
    if not settings.start.fresh.layers:
        changed = changed_settings(settings, TrainingSettings(), [fresh])
        expected, fix = f"{fresh}.layers of at least 1 beside them", f"set {fresh}.layers, or leave these out"
    elif settings.objective.denoising_weight:
        names = [f"{fresh}.window_tokens", f"{fresh}.max_input_tokens"]
        changed = changed_settings(settings, TrainingSettings(), names)
        expected, fix = "an encoder-decoder that reads the whole of an input of any length", "leave these out"
    else:
        return
    if changed:
        raise SettingError(
            f"this start has no use for {', '.join(changed)}",
            expected=expected,
            got=f"{fresh}.layers={settings.start.fresh.layers}, and {', '.join(changed)}",
            where=", ".join(changed),
            fix=fix,
        )

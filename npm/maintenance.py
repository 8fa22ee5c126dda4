"""The verbs that build, change and look into an index: settings in, a message or a table out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npm.errors import ArtefactError, SettingError
from npm.progress import StageProgress, say
from npm.types import MASK_TEXT

if TYPE_CHECKING:
    from npm.commands import (
        AddCommand,
        BuildCommand,
        CompactCommand,
        DeleteCommand,
        EstimateCommand,
        InspectCommand,
        TuneCommand,
        VerifyCommand,
    )
    from npm.retrieval.swaps import Changed


def run_build(settings: BuildCommand) -> int:
    """`npmlm build`."""
    from npm.retrieval.build import build_index
    from npm.retrieval.shares import Share

    share = Share.parse(settings.shard)
    if settings.stage is None and share.count > 1:
        raise SettingError(
            "a share needs a stage",
            expected="stage=encode|quantise|code|merge beside shard=",
            got=f"shard={settings.shard} alone",
            where="shard",
            fix="give the stage too, or leave shard out to run all stages here",
        )
    with StageProgress() as progress:
        built = build_index(
            Path(settings.index), settings, stage=settings.stage, share=share, progress=progress, notice=progress.say
        )
    if built.was_finished:
        say(f"{settings.index} is finished already, with the same settings: nothing to do")
    elif built.manifest is None:
        name = "" if settings.stage is None else settings.stage.value
        say(f"stage {name}, share {share.number} of {share.count}: done")
    else:
        say(f'the index is in {settings.index}: npmlm fill index={settings.index} "… {MASK_TEXT} …"')
    return 0


def run_verify(settings: VerifyCommand) -> int:
    """`npmlm verify`."""
    from npm.retrieval.verification import index_encoder, verify_index, verify_vectors

    checked = 0
    folder = Path(settings.index)
    with StageProgress() as progress:

        def report(_: str, byte_count: int) -> None:
            nonlocal checked
            checked += byte_count
            progress("verify", checked, None)

        verify_index(folder, report)
    sys.stdout.write(f"{settings.index} is whole: {checked:,} bytes checked\n")
    if settings.reencoded_batches > 0:
        try:
            encoder = index_encoder(folder, settings.encoder)
        except ArtefactError as error:
            if settings.encoder:
                raise
            say(f"note: no vector was encoded again: {error.problem}; give it with encoder=…")
            return 0
        found = verify_vectors(folder, encoder, batches=settings.reencoded_batches, seed=settings.seed)
        sys.stdout.write(f"{found.row_count:,} vectors encoded again, the least cosine {found.worst_cosine:.5f}\n")
    return 0


def run_add(settings: AddCommand) -> int:
    """`npmlm add`."""
    from npm.retrieval.changes import add_documents
    from npm.retrieval.verification import index_encoder

    encoder = index_encoder(Path(settings.index), settings.encoder, device=settings.device, dtype=settings.dtype)
    with StageProgress() as progress:
        changed = add_documents(settings.index, settings, encoder, progress=progress)
    _tell(settings.index, changed, "these documents are in the index already: nothing to do")
    return 0


def run_delete(settings: DeleteCommand) -> int:
    """`npmlm delete`."""
    from npm.retrieval.changes import delete_documents

    _tell(settings.index, delete_documents(settings.index, settings), "nothing to do")
    return 0


def run_compact(settings: CompactCommand) -> int:
    """`npmlm compact`."""
    from npm.retrieval.compact import compact_index

    with StageProgress() as progress:
        changed = compact_index(settings.index, settings, progress=progress)
    _tell(settings.index, changed, "one segment without deleted documents: nothing to do")
    return 0


def run_tune(settings: TuneCommand) -> int:
    """`npmlm tune`."""
    from npm.retrieval.tune import run_tune as tune
    from npm.tables import tune_text

    with StageProgress() as progress:
        result = tune(settings, progress=progress)
    sys.stdout.write(tune_text(result))
    return 0


def run_inspect(settings: InspectCommand) -> int:
    """`npmlm inspect`."""
    from npm.commands import Output
    from npm.retrieval.inspection import inspect_index
    from npm.tables import inspection_json, inspection_text

    inspection = inspect_index(Path(settings.index))
    sys.stdout.write(inspection_json(inspection) if settings.output is Output.json else inspection_text(inspection))
    return 0


def run_estimate(settings: EstimateCommand) -> int:
    """`npmlm estimate`."""
    from npm.commands import Output
    from npm.models.encoder import Encoder
    from npm.retrieval.estimate import estimate_build, summary, table_rows
    from npm.tables import estimate_text

    chosen = settings.encoder
    with StageProgress() as progress:
        encoder = Encoder.load(chosen.name, device=chosen.device, dtype=chosen.dtype)
        estimate = estimate_build(settings, encoder, progress=progress)
    if settings.output is Output.json:
        sys.stdout.write(json.dumps(estimate.record(), ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(estimate_text(table_rows(estimate), summary(estimate)))
    return 0


def _tell(index: str, changed: Changed, nothing: str) -> None:
    """What a change did, and what may be worth doing next."""
    if changed.was_finished:
        say(f"{index}: {nothing}")
        return
    counts = changed.manifest.settings["counts"]
    live = counts["documents"] - counts["deleted_documents"]
    say(
        f"{index} is generation {changed.manifest.settings['generation']} now: {changed.added_documents:,} documents "
        f"added, {changed.deleted_documents:,} deleted, {live:,} answer"
    )
    if changed.advice:
        say(f"note: {changed.advice}")

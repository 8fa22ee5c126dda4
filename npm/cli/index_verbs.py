"""What the verbs about one index do: build, change, check, measure and copy it.

Like npm/cli/verbs.py it imports inside functions: a package comes when its verb is called.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npm.cli.progress import StageProgress, say
from npm.core.errors import SettingError
from npm.core.types import MASK_TEXT

if TYPE_CHECKING:
    from npm.cli.commands import (
        AddCommand,
        BuildCommand,
        CompactCommand,
        DeleteCommand,
        EstimateCommand,
        FetchCommand,
        InspectCommand,
        PartitionCommand,
        PublishCommand,
        TuneCommand,
        VerifyCommand,
    )
    from npm.indexing.changes import ChangeResult


def run_build(settings: BuildCommand) -> int:
    """`npmlm build`."""
    from npm.cluster.settings import Engine
    from npm.core.settings import Shard

    shard = Shard.parse(settings.shard)
    if settings.stage is None and shard.count > 1:
        raise SettingError(f"shard={settings.shard} requires stage=pack, encode, quantise, code or merge")
    with StageProgress() as progress:
        reports: dict[str, Any] = {"progress": progress, "notice": progress.say}
        if settings.cluster.engine is Engine.ray:
            from npm.cluster.ray_builds import build_on_ray

            built = build_on_ray(settings.index, settings, settings.cluster, settings.jobs, **reports)
        else:
            from npm.indexing.build import build_index

            built = build_index(settings.index, settings, stage=settings.stage, shard=shard, **reports)
    if built.was_finished:
        say(f"{settings.index} is finished already, with the same settings: nothing to do")
    elif built.manifest is None:
        name = "" if settings.stage is None else settings.stage.value
        say(f"stage {name}, shard {shard.number} of {shard.count}: done")
    else:
        say(f'the index is in {settings.index}: npmlm fill {shlex.quote(f"index={settings.index}")} "… {MASK_TEXT} …"')
    return run_partition(settings) if settings.partitions > 1 else 0


def run_verify(settings: VerifyCommand) -> int:
    """`npmlm verify`."""
    from npm.api import verify

    with StageProgress() as progress:
        found = verify(
            settings.index,
            settings.encoder or None,
            reencoded_batches=settings.reencoded_batches,
            seed=settings.seed,
            device=settings.device,
            precision=settings.precision,
            progress=progress,
        )
    sys.stdout.write(f"{settings.index} is whole: {found.bytes:,} bytes checked\n")
    for note in found.notes:
        say(f"note: {note}")
    if found.vectors:
        sys.stdout.write(f"{found.vectors:,} vectors encoded again, the least cosine {found.least_cosine:.5f}\n")
    return 0


def run_add(settings: AddCommand) -> int:
    """`npmlm add`."""
    from npm.indexing.changes import add_documents
    from npm.indexing.verify import index_encoder

    encoder = index_encoder(Path(settings.index), settings.encoder, device=settings.device, dtype=settings.precision)
    with StageProgress() as progress:
        changed = add_documents(settings.index, settings, encoder, progress=progress)
    _report_change(settings.index, changed, "these documents are in the index already: nothing to do")
    return 0


def run_delete(settings: DeleteCommand) -> int:
    """`npmlm delete`."""
    from npm.indexing.changes import delete_documents

    _report_change(settings.index, delete_documents(settings.index, settings), "nothing to do")
    return 0


def run_compact(settings: CompactCommand) -> int:
    """`npmlm compact`."""
    from npm.indexing.compact import compact_index
    from npm.indexing.generation import Generation
    from npm.indexing.partitions import partitions_of

    before = len(partitions_of(Generation.read(Path(settings.index))))
    with StageProgress() as progress:
        changed = compact_index(settings.index, settings, progress=progress)
    if changed.was_finished:
        say(f"{settings.index}: one segment without deleted documents: nothing to do")
        return 0
    manifest, count = changed.manifest, changed.deleted_documents
    taken_out = f", without the {count:,} documents that had been deleted" if count else ""
    say(
        f"{settings.index} is generation {manifest.generation} now: {manifest.counts.documents:,} documents in one "
        f"segment{taken_out}"
    )
    if (after := len(partitions_of(Generation.read(Path(settings.index))))) < before:
        say(f"note: it has {after} partitions, not {before}: each holds a vector shard at least, and there are fewer")
    return 0


def run_partition(settings: PartitionCommand | BuildCommand) -> int:
    """`npmlm partition`."""
    from npm.indexing.changes import partition_index

    count = settings.partitions
    with StageProgress() as progress:
        changed = partition_index(settings.index, count, progress=progress)
    parts = f"{count} partition{'s' if count > 1 else ''}"
    if changed.was_finished:
        say(f"{settings.index} has {parts} already: nothing to do")
    else:
        say(f"{settings.index} is generation {changed.manifest.generation} now, in {parts}")
    return 0


def run_tune(settings: TuneCommand) -> int:
    """`npmlm tune`."""
    from npm.cli.tables import tune_text
    from npm.tuning.tune import tune_index

    with StageProgress() as progress:
        result = tune_index(settings, progress=progress)
    sys.stdout.write(tune_text(result))
    return 0


def run_inspect(settings: InspectCommand) -> int:
    """`npmlm inspect`."""
    from npm.cli.commands import Output
    from npm.cli.tables import inspection_json, inspection_text
    from npm.indexing.inspect import inspect_index

    inspection = inspect_index(Path(settings.index))
    sys.stdout.write(inspection_json(inspection) if settings.output is Output.json else inspection_text(inspection))
    return 0


def run_estimate(settings: EstimateCommand) -> int:
    """`npmlm estimate`."""
    from npm.cli.commands import Output
    from npm.cli.tables import estimate_text
    from npm.indexing.estimate import estimate_build
    from npm.models.encoder import Encoder

    with StageProgress() as progress:
        encoder = Encoder.load(settings.encoder, device=settings.device, dtype=settings.precision, for_reading=True)
        estimate = estimate_build(settings, encoder, progress=progress)
    if settings.output is Output.json:
        sys.stdout.write(json.dumps(estimate.record(), ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(estimate_text(estimate))
    return 0


def run_publish(settings: PublishCommand) -> int:
    """`npmlm publish`."""
    from npm.indexing.transfer import publish

    with StageProgress() as progress:
        copied, total_bytes = publish(settings.index, settings.corpus.files, settings, progress)
    say(f"{settings.address} is whole: {copied:,} files copied, {total_bytes:,} bytes; all others were there")
    return 0


def run_fetch(settings: FetchCommand) -> int:
    """`npmlm fetch`."""
    from npm.indexing.transfer import fetch

    with StageProgress() as progress:
        count, total_bytes = fetch(settings.index, settings.corpus, settings, progress)
    say(f"{settings.index or settings.corpus} is whole: {count:,} files, {total_bytes:,} bytes")
    return 0


def _report_change(index: str, changed: ChangeResult, nothing: str) -> None:
    """What a change did, and what may be worth doing next."""
    if changed.was_finished:
        say(f"{index}: {nothing}")
        return
    manifest, added = changed.manifest, changed.added_documents
    live = manifest.counts.documents - manifest.deleted_documents
    say(
        f"{index} is generation {manifest.generation} now: {added:,} {'document' if added == 1 else 'documents'} "
        f"added, {changed.deleted_documents:,} deleted, {live:,} answer"
    )
    if changed.skipped:
        say(changed.skipped)
    if changed.advice:
        say(f"note: {changed.advice}")

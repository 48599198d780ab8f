# SPDX-License-Identifier: Apache-2.0
"""Read stage: what was lost while a segment was written, as the ledgers in manifests say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.model import RING_FULL, loss_name
from collectord.reader.manifest_links import earlier_manifests, sealed_manifest
from collectord.sink.segment import SegmentPaths

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from collectord.sink.manifest import Manifest

FULL_RING: Final = loss_name(RING_FULL)


def stage_losses(path: Path) -> dict[str, int] | None:
    """Return what was lost while a sealed segment was written, by `<stage>/<reason>`.

    A manifest has the ledger from the session's start to the seal, so the segment's own losses are
    the difference from the ledger of the segment before it in its run. The losses of its rings by
    event, which are in the file itself, are not included.

    Returns:
        None if the losses are unknown: it has no manifest, a repair sealed it, or there were
        losses and the segment before it is gone.

    Raises:
        SinkError: a manifest cannot be read.
    """
    manifest = sealed_manifest(SegmentPaths(path.parent, path.name).manifest)
    if manifest is None or not manifest.complete:
        return None
    until = _losses(manifest)
    if until is None:
        return None
    before = _losses_before(path.parent, manifest) if any(until.values()) else {}
    if before is None:
        return None
    lost = {stage: max(0, events - before.get(stage, 0)) for stage, events in until.items()}
    untold = lost.pop(FULL_RING, 0) - sum(manifest.lost_samples.values())
    return lost | {FULL_RING: untold} if untold > 0 else lost


def _losses_before(directory: Path, manifest: Manifest) -> Mapping[str, int] | None:
    """Return the run's losses up to the segment before this one; None if unknown."""
    for earlier in earlier_manifests(manifest, directory):
        if earlier.run == manifest.run:
            return _losses(earlier)
        if not manifest.stored_before:
            return {}
    return None if manifest.stored_before else {}


def _losses(manifest: Manifest) -> dict[str, int] | None:
    lost = manifest.ledger.get("lost")
    if not isinstance(lost, dict):
        return None
    if not all(isinstance(events, int) and events >= 0 for events in lost.values()):
        return None
    return lost

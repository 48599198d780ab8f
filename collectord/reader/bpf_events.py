# SPDX-License-Identifier: Apache-2.0
"""Sink stage: the events of BPF programs in a perf.data segment, from its head and manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec import bpf_struct
from collectord.codec.perf_attr import EventType, SoftwareId
from collectord.codec.perf_sample import RawSamples
from collectord.errors import CodecError, UsageError
from collectord.folders.walk import open_folder
from collectord.model import Reason, Stage, loss_name
from collectord.sink.manifest import Manifest, OpenManifest, decode
from collectord.sink.segment import PARTIAL, SegmentPaths, read_other_manifest, sink_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from collectord.codec.bpf_struct import Value
    from collectord.codec.perf_data import AttrSection, Head
    from collectord.sink.manifest import EventLayout

# The only field of an event without a layout.
DATA: Final = "data"
RING_FULL: Final = loss_name((Stage.KERNEL_RING, Reason.RING_FULL))


@dataclass(frozen=True, slots=True, eq=False)
class BpfEvent:
    """An event in a file that a BPF program submits.

    Attributes:
        name: text that UTF-8 can encode.
        described: the layout of its samples, None if unknown.
        samples: decodes its samples.
        values: returns the fields of a payload by name. Raises CodecError.
    """

    name: str
    described: EventLayout | None
    samples: RawSamples
    values: Callable[[bytes], dict[str, Value]]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of all fields, in their order."""
        if self.described is None:
            return (DATA,)
        return tuple(field.name for field in self.described.layout.fields)


class SegmentNote(NamedTuple):
    """The facts in the manifest beside a segment.

    Attributes:
        layouts: by the name of the event.
        run: of the stream.
        complete: the segment's own sink sealed it, so that all losses are known.
    """

    layouts: Mapping[str, EventLayout]
    run: str = ""
    complete: bool = False


NO_NOTE: Final = SegmentNote({})


def read_note(path: Path) -> SegmentNote | None:
    """Read the manifest of a segment, sealed or running; None without one. Raises OSError."""
    paths = SegmentPaths(path.parent, path.name.removesuffix(PARTIAL))
    # The open manifest first, except for a sealed file, which has its own: a running segment is
    # sealed before its open manifest goes, and a recording to one file may have an older manifest
    # beside it.
    opened = sealed = None
    with open_folder(path.parent) as folder:
        if path == paths.partial:
            opened = decode(read_other_manifest(folder, paths.open_manifest), OpenManifest)
        if opened is None:
            sealed = decode(read_other_manifest(folder, paths.manifest), Manifest)
    manifest = opened or sealed
    if manifest is None:
        return None
    complete = isinstance(manifest, Manifest) and manifest.complete
    return SegmentNote(manifest.layouts, manifest.run, complete)


def bpf_events(head: Head, note: SegmentNote, path: Path) -> dict[int, BpfEvent]:
    """Return the events of BPF programs by the ids of their samples.

    Raises:
        UsageError: there is no such event, or another program recorded it.
    """
    found: dict[int, BpfEvent] = {}
    for section in head.attrs:
        attr = section.attr
        if attr.type != EventType.SOFTWARE or attr.config != SoftwareId.BPF_OUTPUT:
            continue
        try:
            samples = RawSamples(attr)
        except CodecError as error:
            raise _perf_reads(f"{path} is by another program, {error.message}", path) from error
        found |= dict.fromkeys(section.ids, _event(section, samples, note))
    if not found:
        raise _perf_reads(f"{path} has no events of BPF programs", path)
    return found


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
    untold = lost.pop(RING_FULL, 0) - sum(manifest.lost_samples.values())
    return lost | {RING_FULL: untold} if untold > 0 else lost


def _losses_before(directory: Path, manifest: Manifest) -> Mapping[str, int] | None:
    """Return the run's losses up to the segment before this one; None if unknown."""
    seen: set[str] = set()
    at = manifest
    while at.previous is not None and at.previous.manifest not in seen:
        name = at.previous.manifest
        seen.add(name)
        earlier = sealed_manifest(directory / name) if "/" not in name else None
        if earlier is None:
            return None if manifest.stored_before else {}
        if earlier.run == manifest.run:
            return _losses(earlier)
        if not manifest.stored_before:
            return {}
        at = earlier
    return None if manifest.stored_before else {}


def _losses(manifest: Manifest) -> dict[str, int] | None:
    lost = manifest.ledger.get("lost")
    if not isinstance(lost, dict):
        return None
    if not all(isinstance(events, int) and events >= 0 for events in lost.values()):
        return None
    return lost


def _perf_reads(message: str, path: Path) -> UsageError:
    return UsageError(message, hint=f"`perf script -i {path}` reads it")


def _event(section: AttrSection, samples: RawSamples, note: SegmentNote) -> BpfEvent:
    name = section.name.encode(errors="surrogateescape").decode(errors="backslashreplace")
    described = note.layouts.get(name)
    if described is not None:
        try:
            return BpfEvent(name, described, samples, bpf_struct.decoder(described.layout))
        except CodecError:  # `segments verify` reports it
            pass
    return BpfEvent(name, None, samples, lambda payload: {DATA: payload})


def sealed_manifest(path: Path) -> Manifest | None:
    """Read the manifest of a sealed segment; None without one. Raises SinkError."""
    telling = sink_errors("cannot read the manifest", path, reading=True)
    with telling, open_folder(path.parent) as folder:
        return decode(read_other_manifest(folder, path), Manifest)

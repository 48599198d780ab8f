# SPDX-License-Identifier: Apache-2.0
"""Sink stage: which sealed segments go when the limits are reached, oldest first."""

from __future__ import annotations

import os
from collections import defaultdict
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from collectord.errors import SinkError
from collectord.sink.segment import (
    MANIFEST,
    TRACE_DAT,
    Group,
    group_files,
    segment_directories,
    sink_errors,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from collectord.plan.session import RetentionPlan

_BLOCK_BYTES = 512  # unit of st_blocks, whatever the filesystem's own is


class EvictReason(StrEnum):
    """Which limit a segment fell to."""

    AGE = "age"
    QUOTA = "quota"
    FREE_SPACE = "free_space"


class Eviction(NamedTuple):
    """A segment that was deleted, its manifest with it; `bytes` are allocated ones."""

    path: Path
    reason: EvictReason
    bytes: int


class _Held(NamedTuple):
    """What goes together: one segment, or all files of a set."""

    groups: tuple[Group, ...]
    bytes: int
    written_ns: int


def evict(root: Path, plan: RetentionPlan, now_ns: int, need_bytes: int = 0) -> list[Eviction]:
    """Delete the oldest sealed segments of all sessions below `root` until the limits hold.

    Segments that are being written count towards the quota and are never touched; neither are
    orphans (repair seals them first) and recordings with a name from `record -o`. Beside a running
    trace.dat segment the newest sealed one stays too: it tells how far the rings are stored, which
    outlive their process. The age is that of the last write. A limit of 0 is no limit.

    Args:
        root: the state directory, one directory per session below it.
        plan: the limits.
        now_ns: REALTIME.
        need_bytes: what a write that met a full disk wants; at least that much is freed, if
            there is that much.

    Raises:
        SinkError: the directory cannot be read, or something should go and nothing could be
            deleted.
    """
    held, used_bytes = _usage(root)
    with sink_errors("cannot read the filesystem's free space", root):
        space = os.statvfs(root)
    floor_bytes = max(
        plan.free_bytes, int(space.f_blocks * space.f_frsize * plan.free_percent / 100)
    )
    wanted_bytes = max(floor_bytes - space.f_bavail * space.f_frsize, need_bytes)
    evictions: list[Eviction] = []
    failures: list[SinkError] = []
    for segment in held:
        if plan.age_ns and now_ns - segment.written_ns > plan.age_ns:
            reason = EvictReason.AGE
        elif plan.bytes and used_bytes > plan.bytes:
            reason = EvictReason.QUOTA
        elif wanted_bytes > 0:
            reason = EvictReason.FREE_SPACE
        else:
            continue
        try:
            deleted = [group for group in segment.groups if _delete(group)]
        except SinkError as error:
            failures.append(error)
            continue
        if deleted:
            evictions.append(Eviction(deleted[0].paths.data, reason, segment.bytes))
        used_bytes -= segment.bytes
        wanted_bytes -= segment.bytes
    if failures and not evictions:
        raise failures[0]
    return evictions


def _usage(root: Path) -> tuple[list[_Held], int]:
    """Give the sealed segments, oldest first, and the allocated bytes of all segments."""
    held: list[_Held] = []
    used_bytes = 0
    for directory in segment_directories(root):
        groups = [group for group in group_files(directory) if group.paths.rotated]
        kept = _end_of_trail(groups)
        sets: defaultdict[str, list[_Held]] = defaultdict(list)
        for group in groups:
            size_bytes, written_ns = _measure(group)
            used_bytes += size_bytes
            if group != kept:
                sets[group.paths.set_name].append(_Held((group,), size_bytes, written_ns))
        held += [_joined(parts) for parts in sets.values() if _all_sealed(parts)]
    return sorted(held, key=lambda segment: segment.groups[0].paths.name), used_bytes


def _all_sealed(parts: Iterable[_Held]) -> bool:
    return all(group.sealed for part in parts for group in part.groups)


def _joined(parts: Sequence[_Held]) -> _Held:
    return _Held(
        tuple(group for part in parts for group in part.groups),
        sum(part.bytes for part in parts),
        max(part.written_ns for part in parts),
    )


def _end_of_trail(groups: list[Group]) -> Group | None:
    """The newest sealed trace.dat segment of a session that goes on, or whose end was a crash."""
    traces = [group for group in groups if group.paths.format == TRACE_DAT]
    sealed = [group for group in traces if group.sealed]
    return sealed[-1] if sealed and len(sealed) < len(traces) else None


def _measure(group: Group) -> tuple[int, int]:
    """Give allocated bytes and last write of a segment's files; those that vanished count 0."""
    size_bytes = written_ns = 0
    for suffix in group.suffixes:
        path = group.paths.directory / (group.paths.name + suffix)
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        size_bytes += status.st_blocks * _BLOCK_BYTES
        written_ns = max(written_ns, status.st_mtime_ns)
    return size_bytes, written_ns


def _delete(group: Group) -> bool:
    """Delete data, then manifest; False if somebody else had deleted all of it."""
    deleted = False
    for suffix in sorted(group.suffixes, key=lambda suffix: suffix == MANIFEST):
        path = group.paths.directory / (group.paths.name + suffix)
        with sink_errors("cannot delete an old segment", path):
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            deleted = True
    return deleted

# SPDX-License-Identifier: Apache-2.0
"""Sink stage: check a sealed file against its manifest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from collectord.errors import CodecError
from collectord.sink.formats import open_stored
from collectord.sink.manifest import Manifest, layout_faults
from collectord.sink.packing import packing_of, unpacked
from collectord.sink.scan import mapped, xxh3
from collectord.sink.sparse import stray_byte
from collectord.sink.stored_file import Check, Finding
from collectord.sink.sums import chunks_of, unsound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.sink.manifest import Packed
    from collectord.sink.segment import SegmentPaths

# The number of chunks that a line names; `chunks` of the finding has all.
_NAMED_MAX: Final = 8


def contents_findings(fd: int, paths: SegmentPaths, manifest: Manifest) -> Iterator[Finding]:
    """Yield the differences between a sealed file, compressed or not, and its manifest."""
    try:
        if packing_of(fd) is not None:
            yield from _form_findings(fd, manifest.packed)
        with unpacked(fd) as plain:
            yield from _plain_findings(plain, paths, manifest)
    except CodecError as error:
        yield Finding(Check.CHECKSUM, str(error))


def _form_findings(fd: int, packed: Packed | None) -> Iterator[Finding]:
    """Yield the difference between a compressed file and its manifest."""
    if packed is None:
        yield Finding(Check.MANIFEST, "it is compressed, which its manifest does not know")
        return
    size_bytes = os.fstat(fd).st_size
    if size_bytes != packed.bytes:
        told = f"{size_bytes} bytes compressed, its manifest says {packed.bytes}"
        yield Finding(Check.SIZE, told)
        return
    with mapped(fd, size_bytes) as view:
        if xxh3(view) != packed.xxh3:
            yield Finding(Check.CHECKSUM, "its compressed form does not match its checksum")


def _plain_findings(fd: int, paths: SegmentPaths, manifest: Manifest) -> Iterator[Finding]:
    size_bytes = os.fstat(fd).st_size
    if size_bytes != manifest.bytes:
        yield Finding(Check.SIZE, f"{size_bytes} bytes, its manifest says {manifest.bytes}")
        return
    try:
        file = open_stored(fd, paths.set_format)
    except CodecError as error:
        yield Finding(Check.HEAD, str(error))
        return
    if (file.data_offset, file.data_bytes) != (manifest.data_offset, manifest.data_bytes):
        yield Finding(
            Check.HEAD,
            f"data section at {file.data_offset} of {file.data_bytes} bytes, its manifest says "
            f"{manifest.data_offset} and {manifest.data_bytes}",
        )
        return
    yield from (Finding(Check.MANIFEST, fault) for fault in layout_faults(manifest))
    # Checked first: overlapping spans would have their bytes hashed again and again.
    if fault := span_fault(manifest, size_bytes, sparse=file.sparse):
        yield Finding(Check.CHECKSUM, fault)
        return
    with mapped(fd, size_bytes) as view:
        yield from _span_findings(view, manifest)
        yield from _gap_findings(fd, view, manifest)
        yield from file.findings(view, manifest)


def _span_findings(view: memoryview, manifest: Manifest) -> Iterator[Finding]:
    for span in manifest.spans:
        if span.chunks and chunks_of(span) is None:
            yield Finding(
                Check.MANIFEST, f"the chunks of its {span.part} do not add up to its size"
            )
            return
    chunks = [(span, part) for span in manifest.spans for part in unsound(view, span)]
    if not chunks:
        return
    span, first = chunks[0]
    rest = ", ".join(f"{part.bytes} bytes at {part.offset}" for _, part in chunks[1:_NAMED_MAX])
    more = f" and {len(chunks) - _NAMED_MAX} others" if len(chunks) > _NAMED_MAX else ""
    where = f"the {span.part} (bytes {first.offset} to {first.end})"
    others = f"; nor do {rest}{more}" if rest else ""
    yield Finding(
        Check.CHECKSUM,
        f"{where} does not match its checksum{others}",
        tuple(part for _, part in chunks),
    )


def span_fault(manifest: Manifest, size_bytes: int, *, sparse: bool) -> str:
    """Return where spans overlap, or leave gaps in a file without holes; "" if nowhere."""
    at = 0
    for start, past in _spans(manifest, size_bytes):
        if start < at or (start > at and not sparse):
            return f"the checksums end at byte {at} of {size_bytes}"
        at = past
    return ""


def _spans(manifest: Manifest, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each span, and last the file's end."""
    yield from ((span.offset, span.offset + span.bytes) for span in manifest.spans)
    yield size_bytes, size_bytes


def _gap_findings(fd: int, view: memoryview, manifest: Manifest) -> Iterator[Finding]:
    """Yield data in the parts that no checksum covers, which must be holes."""
    at = 0
    for start, past in _spans(manifest, len(view)):
        stray = stray_byte(fd, view, at, start)
        if stray is not None:
            yield Finding(Check.CHECKSUM, f"there is something at byte {stray}, in a hole")
        at = past

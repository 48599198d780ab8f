# SPDX-License-Identifier: Apache-2.0
"""The head of a trace.dat file: its layout, and what is written into it later."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.trace_dat import FIRST_BYTES, build_head, head_bytes, parse_head
from collectord.codec.trace_dat_head import Metadata, Place
from collectord.errors import CodecError
from tests.support.golden import GOLDEN
from tests.support.trace_segments import cpustat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.codec.trace_dat_head import Head, Patch

METADATA: Final = Metadata(
    header_page=(GOLDEN / "header_page").read_bytes(),
    header_event=(GOLDEN / "header_event").read_bytes(),
    events={"sched": [(GOLDEN / "sched_switch.format").read_bytes()]},
    ftrace_events=[(GOLDEN / "print.format").read_bytes()],
    uname="Linux host",
    version="collectord 1",
    printk_formats=b'0x1 : "x"\n',
    kallsyms=b"ffffffff81000000 T _text\n",
)
LARGE: Final = replace(METADATA, header_page=(GOLDEN / "header_page-64KiB").read_bytes())
MIB: Final = 1 << 20


def _head(metadata: Metadata = METADATA, cpus: Sequence[int] = (0, 3)) -> Head:
    return build_head(metadata, cpus, MIB, cmdlines_bytes=100, cpustat_bytes=64)


def _patched(head: Head, *patches: Patch) -> Head:
    image = bytearray(head.image)
    for patch in patches:
        image[patch.offset : patch.offset + len(patch.data)] = patch.data
    assert len(image) == len(head.image)
    return parse_head(bytes(image))


def test_beginning() -> None:
    """The file begins as version 7, uncompressed, with the sub-buffer size as its page size."""
    start = b"\x17\x08Dtracing7\0\0\x08\0\x10\0\0none\0\0\x20\0\0\0\0\0\0\0"
    assert _head().image.startswith(start + b"\0\0\0\0")
    assert _head(LARGE).image[14:18] == b"\0\0\1\0"


@pytest.mark.parametrize(("metadata", "align"), [(METADATA, 4096), (LARGE, 65536)])
@pytest.mark.parametrize("cpus", [(0,), (0, 3), (5, 2), range(256)], ids=str)
def test_extents(metadata: Metadata, align: int, cpus: Sequence[int]) -> None:
    """Extents are aligned, of equal size, and one behind the other from the head to the end."""
    head = build_head(metadata, cpus, MIB - 1)
    assert tuple(head.extents) == tuple(cpus)
    at = len(head.image)
    for extent in head.extents.values():
        assert (extent.offset, extent.capacity_bytes, extent.size_bytes) == (at, MIB, 0)
        assert at % align == extent.size_at % 4 == 0
        at += MIB
    assert at == head.file_bytes
    assert head.sub_buffer_bytes == align


@pytest.mark.parametrize("version", ["", "1", "12", "123", "1234"])
@pytest.mark.parametrize("clock", ["mono", "local", "x86-tsc"])
def test_sizes_are_aligned(version: str, clock: str) -> None:
    """Whatever texts stand before them, sizes lie on multiples of 4."""
    head = _head(replace(METADATA, version=version, clock=clock))
    assert {extent.size_at % 4 for extent in head.extents.values()} == {0}


def test_round_trip() -> None:
    """A built file is read again, from as many bytes as its first 4096 say."""
    head = build_head(METADATA, range(256), MIB)
    data = head.image + bytes(100)
    assert head_bytes(data[:FIRST_BYTES]) == len(head.image)
    assert parse_head(data) == head
    assert head.metadata == replace(
        METADATA,
        events={"sched": tuple(METADATA.events["sched"])},
        ftrace_events=tuple(METADATA.ftrace_events),
    )


def test_sizes() -> None:
    """Sizes are claimed one by one or together, and never more than an extent has."""
    head = _head()
    one = _patched(head, head.size_patch(3, 8192))
    assert [extent.size_bytes for extent in one.extents.values()] == [0, 8192]
    both = _patched(one, one.sizes_patch({0: MIB}))
    assert [extent.size_bytes for extent in both.extents.values()] == [MIB, 0]
    assert both == replace(_patched(head, head.size_patch(0, MIB)), image=both.image)
    for wrong in (MIB + 1, -1):
        with pytest.raises(CodecError, match="size"):
            head.size_patch(3, wrong)
        with pytest.raises(CodecError, match="size"):
            head.sizes_patch({3: wrong})


def test_places() -> None:
    """Sub-buffers that were moved together are claimed, and the file ends behind the last one."""
    head = _head()
    at = len(head.image)
    places = {0: Place(at, 0), 3: Place(at, 8192)}
    moved = _patched(_patched(head, head.places_patch(places)), head.end_patch(at + 8192))
    assert [(e.offset, e.size_bytes, e.capacity_bytes) for e in moved.extents.values()] == [
        (at, 0, 0),
        (at, 8192, 8192),
    ]
    assert moved.file_bytes == at + 8192


def test_statistics() -> None:
    """A CPU's text fills its room; lines that do not fit are left out."""
    head = _head()
    assert cpustat(head, 3) == "CPU: 3\n"
    patch = head.cpustat_patch(3, "CPU: 3\nlost: 5\n")
    assert len(patch.data) == 64
    assert patch.data.endswith(b" \0")
    assert b"\0" not in patch.data[:-1]
    done = _patched(head, patch)
    assert (cpustat(done, 0), cpustat(done, 3)) == ("CPU: 0\n", "CPU: 3\nlost: 5\n")
    long = "a" * 40 + "\n" + "b" * 22 + "\n"
    assert cpustat(_patched(head, head.cpustat_patch(3, long)), 3) == "a" * 40 + "\n"
    assert cpustat(_patched(head, head.cpustat_patch(3, long[1:])), 3) == long[1:]
    assert cpustat(_patched(head, head.cpustat_patch(3, "c" * 64)), 3) == ""
    assert cpustat(_patched(head, head.cpustat_patch(3, "d\0e\n")), 3) == "d?e\n"


def test_names_of_tasks() -> None:
    """Names fill their room, later ones are left out, and none can break the table."""
    head = _head()
    assert head.comms() == {}
    odd = _patched(
        head, head.cmdlines_patch([(1, b"a b"), (2, b"x\ny\0"), (3, b"\xff"), (4, b"")])
    )
    assert odd.comms() == {1: b"a b", 2: b"x?y?", 3: b"\xff", 4: b"<...>"}
    # 10 lines of 10 bytes fill the room to the last byte
    names = [(pid, b"1234567") for pid in range(12)]
    many = _patched(odd, odd.cmdlines_patch(names))
    assert many.comms() == dict(names[:10])
    assert _patched(many, many.cmdlines_patch([])).comms() == {}


@pytest.mark.parametrize(
    ("metadata", "cpus", "extent", "reason"),
    [
        (METADATA, (), MIB, "cpus"),
        (METADATA, (1, 1), MIB, "cpus"),
        (METADATA, (-1,), MIB, "cpus"),
        (METADATA, (0,), 0, "size"),
        (METADATA, (0, 1), 1 << 62, "size"),
        (replace(METADATA, header_page=b""), (0,), MIB, "format"),
        (
            replace(METADATA, header_page=METADATA.header_page.replace(b"4080", b"4000")),
            (0,),
            MIB,
            "page_size",
        ),
        (replace(METADATA, events={"": ()}), (0,), MIB, "string"),
        (replace(METADATA, ftrace_events=(b"",)), (0,), MIB, "format"),
    ],
)
def test_files_that_readers_would_refuse(
    metadata: Metadata, cpus: Sequence[int], extent: int, reason: str
) -> None:
    """Input that cannot become a file is refused, with the reason."""
    with pytest.raises(CodecError) as caught:
        build_head(metadata, cpus, extent)
    assert caught.value.reason == reason


def test_cut_heads() -> None:
    """A head that was cut anywhere is refused, whether its end or its length is asked for."""
    image = _head().image
    for end in range(0, len(image), 7):
        with pytest.raises(CodecError):
            parse_head(image[:end])
    told_by = next(end for end in range(len(image)) if _tells(image[:end]))
    assert told_by < 256


def _tells(first: bytes) -> bool:
    try:
        head_bytes(first)
    except CodecError:
        return False
    return True


@pytest.mark.parametrize(
    ("at", "data", "reason"),
    [
        (0, b"\x18", "magic"),
        (10, b"6", "magic"),
        (12, b"\1", "byte_order"),
        (14, b"\x69\0\0\0", "page_size"),
        (14, b"\0\x08\0\0", "page_size"),
        (14, b"\0\x30\0\0", "page_size"),
        (14, b"\0\0\x20\0", "page_size"),
        (18, b"zstd", "magic"),
        (32, b"\1", "section"),
        (34, b"\1", "section"),
        (48, b"\0\0\0\0\0\0", "layout"),
    ],
)
def test_files_of_another_kind(at: int, data: bytes, reason: str) -> None:
    """Older, compressed, big-endian and broken files are refused, with the reason."""
    image = bytearray(_head().image)
    image[at : at + len(data)] = data
    with pytest.raises(CodecError) as caught:
        parse_head(bytes(image))
    assert caught.value.reason == reason
    with pytest.raises(CodecError) as caught:
        head_bytes(bytes(image))
    assert caught.value.reason == reason


def test_table_that_contradicts_itself() -> None:
    """Extents that overlap, repeat a CPU or lie before the data are refused."""
    head = _head()
    first, second = (extent.size_at for extent in head.extents.values())
    for at, data, reason in (
        (second - 12, bytes(4), "extent"),
        (second - 8, bytes(8), "extent"),
        (first - 8, bytes(8), "layout"),
    ):
        image = bytearray(head.image)
        image[at : at + len(data)] = data
        with pytest.raises(CodecError) as caught:
            parse_head(bytes(image))
        assert caught.value.reason == reason

# SPDX-License-Identifier: Apache-2.0
"""Layout of perf.data files, against what perf 6.1 wrote."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from collectord.codec.perf_attr import EventType, PerfEventAttr, RecordType, SampleType, SoftwareId
from collectord.codec.perf_data import (
    FIRST_BYTES,
    AttrSection,
    Header,
    Section,
    build_head,
    build_tail,
    decode_event_desc,
    head_bytes,
    parse_feature_table,
    parse_head,
    parse_header,
)
from collectord.codec.perf_features import (
    BuildId,
    Cache,
    ClockData,
    CpuPlace,
    CpuTopology,
    Features,
    Group,
    Machine,
    Memory,
    NumaNode,
    PmuCaps,
    decode_auxtrace_index,
    encode_features,
)
from collectord.codec.perf_record import frame, iter_records
from collectord.codec.perf_section import Feature, encode_string
from collectord.codec.perf_table import TABLE_MAX_BYTES, padding, running_table
from collectord.errors import CodecError

PERF: Final = Path(__file__).parents[2] / "golden/perf-6.1"
CLOCK: Final = PerfEventAttr(
    type=EventType.SOFTWARE,
    config=SoftwareId.CPU_CLOCK,
    sample_type=SampleType.IDENTIFIER | SampleType.TIME,
    sample_id_all=True,
)
TRACE: Final = replace(
    CLOCK, type=EventType.TRACEPOINT, config=305, sample_type=CLOCK.sample_type | SampleType.RAW
)
EVENTS: Final = (
    AttrSection(CLOCK, (1, 2), "cpu-clock"),
    AttrSection(TRACE, (3,), "syscalls:sys_enter_getppid"),
)


def test_header_layout() -> None:
    """The header is 104 bytes, and the bitmap's bit n stands for feature n."""
    raw = Header(144, Section(200, 288), Section(4096, 8192), 1 << 1 | 1 << 29).encode()
    assert raw == struct.pack(
        "<8s8Q32s", b"PERFILE2", 104, 144, 200, 288, 4096, 8192, 0, 0, b"\x02\0\0\x20"
    )
    assert parse_header(raw).data == Section(4096, 8192)


@pytest.mark.parametrize(
    ("size", "features", "sealed"),
    [(0, 0, False), (8192, 1 << 12, True), (8192, 1 | 1 << 12, False), (0, 1 << 12, False)],
)
def test_sealed_header(size: int, features: int, sealed: bool) -> None:
    """Bit 0 marks a file that is written; older versions wrote a size of 0 until the seal."""
    assert Header(144, Section(200, 288), Section(4096, size), features).sealed is sealed


def test_head_of_an_open_file() -> None:
    """A new file has the features that are known, and its data go on at a page."""
    head = build_head(EVENTS, b"formats" * 1000, features=Features(hostname="h"))
    assert len(head.image) == head.write_offset == 8192
    assert parse_header(head.image[:104]) == head.header
    assert head.header.features == 1 | 1 << 1 | 1 << 3 | 1 << 12
    assert [r.type for r in iter_records(head.first_records)] == [
        *(RecordType.FINISHED_ROUND, RecordType.FINISHED_INIT),
    ]
    assert head.header.data == Section(head.data_offset, 8)  # up to the padding
    assert not head.header.sealed
    assert (head.header.attr_size_bytes, head.header.attrs.size) == (144, 288)
    assert head.tracing_data == b"formats" * 1000
    assert build_head(EVENTS).tracing_data is None


def test_head_is_read_back() -> None:
    """Attrs, ids, names and sections of an open file are found from its bytes alone."""
    head = build_head(EVENTS, b"formats", features=Features(hostname="h", nrcpus=(1, 2)))
    again = parse_head(head.image + b"records behind the head")
    assert again == head
    assert again.attrs == EVENTS
    assert set(again.sections) == {
        *(Feature.TRACING_DATA, Feature.HOSTNAME, Feature.NRCPUS, Feature.EVENT_DESC),
    }


def test_records_in_the_head() -> None:
    """Padding follows them up to the writer's page, and all belong to the data section."""
    records = frame(RecordType.TIME_CONV, 0, bytes(48)) + frame(
        RecordType.AUXTRACE_INFO, 0, b"x" * 32
    )
    head = build_head(EVENTS, features=Features(hostname="h"), first_records=records)
    assert len(head.image) == head.write_offset == head_bytes(head.image[:FIRST_BYTES]) == 4096
    assert head.header.data == Section(head.data_offset, len(records))
    assert head.first_records.startswith(records)
    assert [r.size for r in iter_records(head.first_records)][2:] == [
        4096 - head.data_offset - len(records)
    ]
    assert parse_head(head.image + b"records behind the head") == head
    with pytest.raises(CodecError, match="head cut short"):
        parse_head(head.image[:-1])
    size = len(head.first_records) + 8
    tail = build_tail(head, size, Features(auxtrace_index=(4104, 9000)))
    assert parse_header(tail.header).data == Section(head.data_offset, size)
    assert parse_header(tail.header).sealed
    file = tail.header + head.image[104:] + bytes(8) + tail.tail
    table = parse_feature_table(file[4104:], parse_header(tail.header), len(file))
    section = table[Feature.AUXTRACE]
    raw = file[section.offset : section.offset + section.size]
    assert raw == struct.pack("<QQQQQ", 2, 4104, 48, 9000, 48)
    assert decode_auxtrace_index(raw) == (4104, 9000)
    with pytest.raises(CodecError):
        decode_auxtrace_index(raw[:-1])


def test_more_records_than_a_page() -> None:
    """The directory says where the head ends, however many records there are in it."""
    records = frame(RecordType.ID_INDEX, 0, bytes(9000))
    head = build_head(EVENTS, first_records=records)
    assert head.write_offset == head_bytes(head.image[:FIRST_BYTES]) == 12288
    assert parse_head(head.image) == head


def test_head_of_an_older_version() -> None:
    """Its directory has no write offset, and its header neither data nor features."""
    head = build_head(EVENTS, b"formats", first_records=frame(RecordType.TIME_CONV, 0, bytes(48)))
    old = head.header._replace(data=Section(head.data_offset, 0), features=0).encode()
    # The directory is 8 bytes shorter; what follows stays where it is.
    count, *entries = struct.unpack_from("<7Q", head.image, FIRST_BYTES)
    directory = b"cltrdir1" + struct.pack("<7Q", count, *entries)
    image = old + directory + bytes(8) + head.image[len(old) + len(directory) + 8 :]
    found = parse_head(image)
    assert (found.attrs, found.sections) == (head.attrs, head.sections)
    assert found.image == image
    assert found.tracing_data == b"formats"
    assert not found.header.sealed


def test_a_running_file_has_its_table_in_each_padding() -> None:
    """Wherever the header says that the data end, the table of the head's sections stands."""
    records = frame(RecordType.TIME_CONV, 0, bytes(48))
    head = build_head(EVENTS, b"formats", features=Features(hostname="h"), first_records=records)
    chunk = frame(RecordType.SAMPLE, 0, bytes(3992))
    at = head.write_offset + len(chunk)
    file = bytearray(head.image + chunk + padding(head.table, at, 4096))
    assert len(file) % 4096 == 0
    for end in (head.data_offset + len(records), at):
        place, base = head.size_word
        struct.pack_into("<Q", file, place, end - base)
        header = parse_header(bytes(file))
        assert header.data == Section(head.data_offset, end - head.data_offset)
        table = parse_feature_table(bytes(file[end:]), header, len(file))
        assert table == head.sections
        kinds = [r.type for r in iter_records(bytes(file[head.data_offset : end]))]
        assert kinds[0] == RecordType.TIME_CONV
        assert kinds[1:] == ([] if end < at else [RecordType.FINISHED_INIT, RecordType.SAMPLE])
    assert parse_head(bytes(file)) == replace(head, image=bytes(file[:4096]), header=header)


def test_table_that_no_chunk_has_room_for() -> None:
    """More sections than perf has features make no file."""
    sections = dict.fromkeys(range(1, TABLE_MAX_BYTES // 16), (4096, 8))
    assert len(running_table(sections)) == TABLE_MAX_BYTES
    with pytest.raises(CodecError, match="table"):
        running_table({**sections, 99: (4096, 8)})


def test_head_without_records() -> None:
    """Files of other programs begin their data anywhere, and that is where the head ends."""
    image = (PERF / "head.bin").read_bytes()
    assert head_bytes(image) == parse_header(image).data.offset == 584
    assert parse_head(image).first_records == b""


def test_attrs_are_cut_to_what_readers_take() -> None:
    """config3 lies beyond the 128 bytes that perf 6.1 reads, and is left out."""
    head = build_head((AttrSection(replace(CLOCK, config3=5), (1,), "x"),))
    assert head.header.attr_size_bytes == 144
    assert parse_head(head.image).attrs[0].attr == CLOCK


def test_tail_completes_the_file() -> None:
    """The table stands right behind the data; each of its entries gives its section."""
    head = build_head(EVENTS, b"formats", features=Features(hostname="old", arch="x"))
    size = len(head.first_records) + 4096
    tail = build_tail(head, size, Features(hostname="new", sample_time=(3, 9)))
    header = parse_header(tail.header)
    assert header.data == Section(head.data_offset, size)
    file = tail.header + head.image[104:] + bytes(4096) + tail.tail
    table = parse_feature_table(file[head.data_offset + size :], header, len(file))
    assert list(table) == [1, 3, 6, 12, 21]

    def content(feature: Feature) -> bytes:
        section = table[feature]
        return file[section.offset : section.offset + section.size]

    assert content(Feature.TRACING_DATA) == b"formats"
    assert content(Feature.HOSTNAME) == encode_string("new")
    assert content(Feature.ARCH) == encode_string("x")
    assert content(Feature.SAMPLE_TIME) == struct.pack("<QQ", 3, 9)
    assert decode_event_desc(content(Feature.EVENT_DESC)) == EVENTS
    assert all(section.offset % 8 == 0 for section in table.values())


def test_event_desc_that_perf_wrote() -> None:
    """Names and ids of perf's own EVENT_DESC agree with its attrs section."""
    events = decode_event_desc((PERF / "event_desc.bin").read_bytes())
    assert [event.name for event in events] == ["cpu-clock", "sched:sched_switch", "dummy:HG"]
    head = parse_head((PERF / "head.bin").read_bytes())
    assert head.sections == {}
    assert head.tracing_data is None
    assert head.attrs == tuple(replace(event, name="") for event in events)
    assert head.header.data == Section(584, 60112)


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ((), "needs an event"),
        ((EVENTS[0], replace(EVENTS[1], ids=())), "without ids"),
        ((EVENTS[0], replace(EVENTS[1], ids=(2,))), "id of two"),
        ((EVENTS[0], replace(EVENTS[1], attr=replace(TRACE, sample_id_all=False))), "id_all"),
        ((EVENTS[0], replace(EVENTS[1], attr=replace(TRACE, sample_type=4))), "IDENTIFIER"),
    ],
)
def test_attrs_that_readers_refuse(events: tuple[AttrSection, ...], problem: str) -> None:
    """Events whose samples a reader could not tell apart make no file."""
    with pytest.raises(CodecError, match=problem):
        build_head(events)


def test_one_event_may_lack_ids() -> None:
    """With a single event readers need no ids."""
    assert parse_head(build_head((AttrSection(CLOCK, ()),)).image).attrs[0].ids == ()


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, b"PERFFILE", "magic"),
        (0, b"2ELIFREP", "byte_order"),
        (8, struct.pack("<Q", 16), "version"),
        (16, struct.pack("<Q", 16), "attr_size"),
        (16, struct.pack("<Q", 100), "attr_size"),
        (32, struct.pack("<Q", 0), "attr_size"),
        (40, struct.pack("<Q", 100), "data_offset"),
        (40, struct.pack("<Q", 1 << 40), "data_offset"),
        (24, struct.pack("<Q", 4000), "short"),
        (112, struct.pack("<Q", 1 << 60), "head_bytes"),
        (112, struct.pack("<Q", 104), "head_bytes"),
        (120, struct.pack("<Q", 1 << 60), "feature"),
        (128, struct.pack("<Q", 256), "feature"),
        (128, struct.pack("<Q", 0), "feature"),
        (136, struct.pack("<Q", 1 << 63), "short"),
    ],
)
def test_damaged_heads(at: int, value: bytes, reason: str) -> None:
    """Other kinds of file and sections that reach out of the head are refused."""
    raw = bytearray(build_head(EVENTS).image)
    raw[at : at + len(value)] = value
    with pytest.raises(CodecError) as caught:
        parse_head(bytes(raw))
    assert caught.value.reason == reason


def test_heads_cut_short() -> None:
    """The header and the whole head are needed."""
    image = build_head(EVENTS).image
    for end in (0, 103, 104, FIRST_BYTES, 4095):
        with pytest.raises(CodecError, match="cut short"):
            parse_head(image[:end])
    for end in (112, FIRST_BYTES - 1):
        with pytest.raises(CodecError, match="past the end"):
            parse_head(image[:end])


def test_ids_are_whole_words() -> None:
    """A table of ids whose size is no multiple of 8 is refused."""
    head = build_head((AttrSection(CLOCK, (1,), "x"),))
    raw = bytearray(head.image)
    raw[head.header.attrs.offset + 136] = 7
    with pytest.raises(CodecError, match="ids"):
        parse_head(bytes(raw))


def test_feature_past_the_end() -> None:
    """A table that is short, or points behind the file, is refused."""
    head = build_head(EVENTS)
    tail = build_tail(head, len(head.first_records))
    header, size = parse_header(tail.header), len(head.image) + len(tail.tail)
    assert set(parse_feature_table(tail.tail, header, size)) == {Feature.EVENT_DESC}
    with pytest.raises(CodecError, match="past the end"):
        parse_feature_table(tail.tail, header, 300)
    with pytest.raises(CodecError, match="past the end"):
        parse_feature_table(tail.tail[:15], header, size)


def test_strings_are_padded() -> None:
    """A string has at least one NUL, and its padded length is a multiple of 64."""
    assert encode_string("") == struct.pack("<I64s", 64, b"")
    assert encode_string("x" * 63) == struct.pack("<I64s", 64, b"x" * 63)
    assert encode_string("x" * 64) == struct.pack("<I128s", 128, b"x" * 64)
    with pytest.raises(CodecError, match="NUL"):
        encode_string("a\0b")


def test_feature_sections() -> None:
    """Each feature is laid out as perf's write functions do; what is absent gives none."""
    name = encode_string("n")
    sections = encode_features(
        Features(
            nrcpus=(2, 4),
            total_mem_kib=7,
            cmdline=("a", "b"),
            pmu_mappings=(("n", 9),),
            group_desc=(Group(1, 2),),
            clockid_resolution_ns=1,
            clock_data=ClockData(1, 10, 20),
            build_ids=(BuildId("f", b"\xab" * 20, -1, 1),),
        )
    )
    assert sections == {
        Feature.NRCPUS: struct.pack("<II", 4, 2),
        Feature.TOTAL_MEM: struct.pack("<Q", 7),
        Feature.CMDLINE: struct.pack("<I", 2) + encode_string("a") + encode_string("b"),
        Feature.PMU_MAPPINGS: struct.pack("<II", 1, 9) + name,
        Feature.GROUP_DESC: struct.pack("<I", 1)
        + encode_string("{anon_group}")
        + struct.pack("<II", 1, 2),
        Feature.CLOCKID: struct.pack("<Q", 1),
        Feature.CLOCK_DATA: struct.pack("<IIQQ", 1, 1, 10, 20),
        Feature.BUILD_ID: struct.pack(
            "<IHHi20sBBH64s", 67, 1 << 15 | 1, 100, -1, b"\xab" * 20, 20, 0, 0, b"f"
        ),
    }
    assert encode_features(Features()) == {}


def test_sections_of_the_machine() -> None:
    """CPUs, nodes, caches, memory and PMUs are laid out as perf's write functions do."""
    place = CpuPlace(core=3, die=2, socket=1)
    machine = Machine(
        cpus=CpuTopology(("0-1",), ("0", "1"), ("0-1",), (place, CpuPlace())),
        nodes=(NumaNode(1, 20, 10, "0-1"),),
        caches=(Cache(1, 64, 128, 8, "Data", "32K", "0"),),
        memory=Memory(0x8000000, ((0, frozenset({0, 64})),)),
        cpu_pmu=PmuCaps("cpu", (("a", "b"),)),
        pmus=(PmuCaps("p", (("c", "d"),)),),
    )
    one, two, three = (struct.pack("<I", number) for number in (1, 2, 3))
    unknown = b"\xff" * 4
    text = encode_string
    assert encode_features(Features(machine=machine)) == {
        Feature.CPU_TOPOLOGY: b"".join((one, text("0-1"), two, text("0"), text("1")))
        + b"".join((three, one, unknown, unknown, one, text("0-1"), two, unknown)),
        Feature.NUMA_TOPOLOGY: struct.pack("<IIQQ", 1, 1, 20, 10) + text("0-1"),
        Feature.CACHE: struct.pack("<IIIIII", 1, 1, 1, 64, 128, 8)
        + text("Data")
        + text("32K")
        + text("0"),
        Feature.MEM_TOPOLOGY: struct.pack("<8Q", 1, 0x8000000, 1, 0, 65, 65, 1, 1),
        Feature.CPU_PMU_CAPS: one + text("a") + text("b"),
        Feature.PMU_CAPS: one + one + text("c") + text("d") + text("p"),
    }
    bare = Machine(cpus=CpuTopology(("0",), ("0",), (), (place,)), pmus=())
    assert encode_features(Features(machine=bare)) == {
        Feature.CPU_TOPOLOGY: one + text("0") + one + text("0") + three + one,
        Feature.PMU_CAPS: bytes(4),
    }


@pytest.mark.parametrize(
    "features",
    [
        Features(nrcpus=(-1, 0)),
        Features(sample_time=(0, 1 << 64)),
        Features(build_ids=(BuildId("f", bytes(21)),)),
        Features(cmdline=("a\0",)),
        Features(machine=Machine(nodes=(NumaNode(-1, 0, 0, ""),))),
    ],
)
def test_features_that_do_not_fit(features: Features) -> None:
    """A value that its field cannot hold is refused."""
    with pytest.raises(CodecError):
        encode_features(features)

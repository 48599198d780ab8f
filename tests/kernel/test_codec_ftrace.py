# SPDX-License-Identifier: Apache-2.0
"""The codecs of ftrace, on the formats and the rings of the running kernel."""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.ftrace_format import parse_format, parse_header_page
from collectord.codec.ftrace_page import Walk
from collectord.codec.trace_dat import build_head
from collectord.codec.trace_dat_head import Metadata
from tests.support.ftrace_records import decode
from tests.support.generator import MARK, MARK_FILTER
from tests.support.header_events import parse_header_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.trace_cmds import TraceCmd

MIB: Final = 1 << 20
CALLS: Final = 20_000


@pytest.fixture
def instance(tracefs: Path) -> Iterator[Path]:
    """Provide an instance of our own, which records nothing yet."""
    own = tracefs / f"instances/test-codec-{os.getpid()}"
    own.mkdir()
    (own / "trace_clock").write_text("mono")
    yield own
    own.rmdir()


def test_all_formats(tracefs: Path) -> None:
    """Every format of this kernel is parsed, and its fields have sizes."""
    paths = sorted((tracefs / "events").glob("*/*/format"))
    assert len(paths) > 500
    for path in paths:
        layout = parse_format(path.read_bytes())
        assert layout.name == path.parent.name
        id_file = path.with_name("id")
        if id_file.exists():
            assert layout.id == int(id_file.read_text())
        names = [field.name for field in layout.common]
        assert names[0] == "common_type"
        assert names[-1] == "common_pid"
        for field in layout.fields:
            assert field.offset >= 8
            if not field.size_bytes:
                assert field.element_bytes
                assert field.length is None
    assert parse_header_page((tracefs / "events/header_page").read_bytes())
    event = parse_header_event((tracefs / "events/header_event").read_bytes())
    assert event[3:] == (29, 30, 31, 28)


@pytest.mark.parametrize("sub_buffer_kib", [4, 64])
def test_ring_to_file(
    instance: Path,
    trace_cmds: tuple[TraceCmd, ...],
    tmp_path: Path,
    require: Callable[[str], None],
    sub_buffer_kib: int,
) -> None:
    """Our walk and trace-cmd find each of a known number of calls, once, in order."""
    require("raw_syscalls tracepoints")
    require("sub-buffer sizes")
    (instance / "buffer_subbuf_size_kb").write_text(str(sub_buffer_kib))
    (instance / "buffer_size_kb").write_text("4096")
    event = instance / "events/raw_syscalls/sys_enter"
    (event / "filter").write_text(MARK_FILTER)
    (event / "enable").write_text("1")
    libc = ctypes.CDLL(None)
    for index in range(CALLS):
        libc.syscall(MARK, index)
    (event / "enable").write_text("0")
    metadata = Metadata(
        header_page=(instance / "events/header_page").read_bytes(),
        header_event=(instance / "events/header_event").read_bytes(),
        events={"raw_syscalls": [(event / "format").read_bytes()]},
        uname=platform.platform(),
    )
    cpus = sorted(int(path.name[3:]) for path in instance.glob("per_cpu/cpu*"))
    head = build_head(metadata, cpus, 4 * MIB)
    assert head.sub_buffer_bytes == sub_buffer_kib * 1024
    layout = parse_format(metadata.events["raw_syscalls"][0])
    segment = tmp_path / "trace.dat"
    segment.write_bytes(head.image)
    os.truncate(segment, head.file_bytes)
    seen: list[int] = []
    with segment.open("r+b") as out:
        for cpu in cpus:
            raw = b"".join(_sub_buffers(instance, cpu, head.sub_buffer_bytes))
            for at in range(0, len(raw), head.sub_buffer_bytes):
                page = raw[at : at + head.sub_buffer_bytes]
                walk = Walk(page)
                for one in walk:
                    values = decode(page[one.offset : one.offset + one.size_bytes], layout)
                    assert values["id"] == MARK
                    assert isinstance(values["args"], tuple)
                    seen.append(values["args"][0])
                assert (walk.fault, walk.events_lost) == (None, False)
            for offset, data in (
                (head.extents[cpu].offset, raw),
                head.size_patch(cpu, len(raw)),
                head.cmdlines_patch([(os.getpid(), b"the test")]),
            ):
                out.seek(offset)
                out.write(data)
    assert sorted(seen) == [*range(CALLS)]
    for tool in trace_cmds:
        lines = tool.report(segment)
        assert len(lines) == CALLS
        assert sum(f"the test-{os.getpid()} " in line for line in lines) == CALLS


def _sub_buffers(instance: Path, cpu: int, size_bytes: int) -> Iterator[bytes]:
    with ExitStack() as stack:
        fd = os.open(instance / f"per_cpu/cpu{cpu}/trace_pipe_raw", os.O_RDONLY | os.O_NONBLOCK)
        stack.callback(os.close, fd)
        while True:
            try:
                raw = os.read(fd, size_bytes)
            except BlockingIOError:
                return
            if not raw:
                return
            assert len(raw) == size_bytes
            yield raw

# SPDX-License-Identifier: Apache-2.0
"""BPF programs as the kernel has them loaded, and as files tell of them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.cursor import U32, U64, Cursor
from collectord.codec.perf_bpf import ARRAY_PLACES, BpfArray
from collectord.codec.perf_data import HEADER_BYTES, parse_feature_table, parse_header
from collectord.codec.perf_section import Feature
from collectord.kernel.bpf import bpf_calls, program_image
from tests.support import bpf as bpf_support
from tests.support.recording import recording, segments_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.perf_tools import Perf


pytestmark = pytest.mark.beside

# Time that a program ran, how often and how often not: of the moment when it was read.
RUNS: Final = slice(U64.size + 192, U64.size + 216)


def test_code_is_left_out_where_there_is_no_room() -> None:
    """A program's functions are stored all the same; its missing code is not counted."""
    with bpf_support.program(1, b"small") as fd:
        number = bpf_calls.program_info(fd).id
        (whole,), _ = program_image.LoadedPrograms().read([number], 1 << 20)
        (small,), _ = program_image.LoadedPrograms().read([number], whole.size_bytes - 1)
        assert program_image.LoadedPrograms().read([number], small.size_bytes - 1) == ((), ())
    assert {BpfArray.JITED_INSNS, BpfArray.JITED_KSYMS} <= set(whole.arrays)
    assert set(small.arrays) == {*whole.arrays} - {*program_image.ANNOTATING}
    assert U32.unpack_from(small.info, 16)[0] == 0
    assert len(whole.arrays[BpfArray.JITED_INSNS]) == U32.unpack_from(whole.info, 16)[0]


def test_streams_share_what_is_loaded() -> None:
    """A second reading of a program returns the first one's result, while it is in use."""
    loaded = program_image.LoadedPrograms()
    with bpf_support.program(1, b"shared") as fd:
        number = bpf_calls.program_info(fd).id
        (first,), _ = loaded.read([number], 1 << 20)
        (second,), _ = loaded.read([number], 1 << 20)
    assert second is first


def test_a_program_that_is_gone_is_left_out() -> None:
    """It may be unloaded between the list of programs and its reading."""
    with bpf_support.program(1, b"short") as fd:
        number = bpf_calls.program_info(fd).id
    assert number not in bpf_calls.program_ids()
    assert program_image.LoadedPrograms().read([number], 1 << 20) == ((), ())


@pytest.mark.usefixtures("bcc")
def test_files_tell_of_programs_what_perf_record_tells(
    perf: Perf,
    start_cli: Callable[..., subprocess.Popen[str]],
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    """Their code, functions, lines and types are perf's to the byte, and are printed by it."""
    ours, theirs = tmp_path / "ours.data", tmp_path / "theirs.data"
    with (
        bpf_support.program(1, b"untyped") as fd,
        recording(start_cli, tmp_path, "--bpf", "execsnoop"),
    ):
        untyped = bpf_calls.program_info(fd).id
        words = ("-a", "-e", "context-switches", "-o")
        assert perf.run("record", "-N", *words, theirs, "--", "true").returncode == 0
        assert run_cli("record", *words, ours, "--", "true").returncode == 0
    programs = [_by_id(file, Feature.BPF_PROG_INFO) for file in (ours, theirs)]
    types = [_by_id(file, Feature.BPF_BTF) for file in (ours, theirs)]
    both = programs[0].keys() & programs[1].keys()
    assert both > {untyped}
    assert [programs[0][number] for number in both] == [programs[1][number] for number in both]
    assert types[0].keys() & types[1].keys()
    assert all(types[0][number] == types[1].get(number, types[0][number]) for number in types[0])
    printed = perf.run("report", "--header-only", "-I", "-i", ours).stdout
    assert "_tracepoint__sched__sched_process_exec addr" in printed


def test_programs_that_come_during_a_recording_are_described(
    start_cli: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """A file tells of those that were loaded while it was written, and of those before."""
    with ExitStack() as loaded:
        before = loaded.enter_context(bpf_support.program(1, b"before"))
        with recording(start_cli, tmp_path, "-a", "-e", "context-switches") as running:
            after = loaded.enter_context(bpf_support.program(1, b"after"))
        ids = {bpf_calls.program_info(fd).id for fd in (before, after)}
    (segment,) = segments_of(running.session)
    assert ids <= _by_id(segment, Feature.BPF_PROG_INFO).keys()


def _by_id(file: Path, feature: Feature) -> dict[int, bytes | tuple[bytes, ...]]:
    """Programs or types of a file by the kernel's number of them."""
    raw = file.read_bytes()
    header = parse_header(raw[:HEADER_BYTES])
    table = raw[header.data.offset + header.data.size :]
    place = parse_feature_table(table, header, len(raw))[feature]
    cursor = Cursor(raw[place.offset : place.offset + place.size])
    found: dict[int, bytes | tuple[bytes, ...]] = {}
    for _ in range(cursor.number(U32)):
        first, size = cursor.number(U32), cursor.number(U32)
        if feature is Feature.BPF_BTF:
            found[first] = cursor.take(size)
        else:
            image = cursor.take(U64.size + first + size)
            told, data = image[: U64.size + first], image[U64.size + first :]
            found[U32.unpack_from(told, U64.size + U32.size)[0]] = (
                told[: RUNS.start] + told[RUNS.stop :],
                *_arrays(told, data),
            )
    return found


def _arrays(told: bytes, data: bytes) -> Iterator[bytes]:
    """Yield the arrays of a program without their padding, in which perf stores anything."""
    present = U64.unpack_from(told)[0]
    info = told[U64.size :]
    for array, place in ARRAY_PLACES.items():
        if present >> array & 1:
            at, entries = (
                U64.unpack_from(info, place.at)[0],
                U32.unpack_from(info, place.count_at)[0],
            )
            entry = U32.unpack_from(info, place.size_at)[0] if place.size_at else place.entry_bytes
            yield data[at : at + entries * entry]

# SPDX-License-Identifier: Apache-2.0
"""Fields of perf records as columns of tables, with the kinds and places of ftrace_columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.codec.ftrace_columns import (
    CGROUP,
    COMMON_COLUMNS,
    MISSING,
    FieldColumn,
    own_name,
)
from collectord.codec.perf_attr import SampleType, SoftwareId
from collectord.codec.perf_record import word_offset

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from collectord.codec.bpf_struct import Field, Layout
    from collectord.codec.ftrace_columns import Where

SAMPLES: Final = "samples"
TASKS: Final = "tasks"
MAPPINGS: Final = "mappings"
AUX: Final = "aux"
# Answers name software events SOFTWARE:NAME.
SOFTWARE: Final = "software"
_OTHER_NAMES: Final = {
    SoftwareId.PAGE_FAULTS_MIN: "minor-faults",
    SoftwareId.PAGE_FAULTS_MAJ: "major-faults",
}
SOFTWARE_NAMES: Final[Mapping[int, str]] = {
    one: _OTHER_NAMES.get(one, one.name.lower().replace("_", "-"))
    for one in SoftwareId
    if one not in {SoftwareId.DUMMY, SoftwareId.BPF_OUTPUT}
}
# The labels of the rows of `tasks` and `aux`, as the core numbers them.
TASK_LABELS: Final = ("comm", "exec", "fork", "exit")
AUX_LABELS: Final = ("data", "start")
_LABEL: Final[Where] = ("label", 0, 0, 0, False)
_WORD_BYTES: Final = 8
_TASK_BYTES: Final = 4
# A column of the raw data of samples: each says where the id of its cgroup is.
CGROUP_COLUMN: Final = FieldColumn(CGROUP, "text", ("cgroup", 0, 0, 1, False))
_VALUE: Final = "value"


def _number(name: str, kind: str, offset: int) -> FieldColumn:
    size = int(kind[1:]) // 8
    return FieldColumn(name, kind, ("inline", offset, size, size, kind.startswith("i")))


def _text(name: str, offset: int) -> FieldColumn:
    """Return a column of text up to its NUL, or the end of the record."""
    return FieldColumn(name, "text", ("inline", offset, 0, 1, False))


# The bodies are those of perf_sideband.
TASK_COLUMNS: Final = (
    *COMMON_COLUMNS,
    FieldColumn("what", "text", _LABEL),
    _number("parent_pid", "i32", 12),
    _number("parent_tid", "i32", 20),
)
# include/uapi/linux/perf_event.h, PERF_RECORD_AUX.
AUX_COLUMNS: Final = (
    *COMMON_COLUMNS,
    FieldColumn("what", "text", _LABEL),
    _number("offset", "u64", 8),
    _number("bytes", "u64", 16),
    _number("flags", "u64", 24),
)
_MAPPED: Final = (
    *COMMON_COLUMNS,
    _number("address", "u64", 16),
    _number("length", "u64", 24),
    _number("file_offset", "u64", 32),
)
_ACCESS: Final = (_text("file", 72), _number("prot", "u32", 64), _number("flags", "u32", 68))
# The columns of `mappings` by the kind of their records.
MAPPING_COLUMNS: Final = {
    "mmap2": (
        *_MAPPED,
        *_ACCESS,
        _number("major", "u32", 40),
        _number("minor", "u32", 44),
        _number("inode", "u64", 48),
    ),
    "build_id": (
        *_MAPPED,
        *_ACCESS,
        FieldColumn("build_id", "bytes", ("inline", 44, 20, 1, False)),
    ),
    "mmap": (*_MAPPED, _text("file", 40)),
}


def sample_columns(sample_type: int) -> tuple[FieldColumn, ...]:
    """Return the columns of `samples` for events with these fields."""

    def word(name: str, bit: SampleType) -> FieldColumn:
        offset = word_offset(sample_type, bit)
        return _number(name, "u64", offset) if offset else FieldColumn(name, "u64", MISSING)

    has_chain = sample_type & SampleType.CALLCHAIN
    chain = ("chain", 0, 0, _WORD_BYTES, False) if has_chain else MISSING
    return (
        *COMMON_COLUMNS,
        FieldColumn("event", "text", _LABEL),
        word("ip", SampleType.IP),
        word("addr", SampleType.ADDR),
        word("period", SampleType.PERIOD),
        FieldColumn("callchain", "list_u64", chain),
        FieldColumn(CGROUP, "text", _cgroup_from_end(sample_type)),
    )


def has_cgroup(sample_type: int) -> bool:
    """Whether samples with these fields tell their cgroups; not if AUX data are in them."""
    return sample_type & (SampleType.CGROUP | SampleType.AUX) == SampleType.CGROUP


def _cgroup_from_end(sample_type: int) -> Where:
    if not has_cgroup(sample_type):
        return MISSING
    behind = sample_type & (SampleType.DATA_PAGE_SIZE | SampleType.CODE_PAGE_SIZE)
    return ("cgroup", _WORD_BYTES * (1 + behind.bit_count()), 0, 1, False)


# Kinds by name, of the tables whose rows are of all events.
FIXED: Final[Mapping[str, Mapping[str, str]]] = {
    SAMPLES: {column.name: column.kind for column in sample_columns(0)},
    TASKS: {column.name: column.kind for column in TASK_COLUMNS},
    AUX: {column.name: column.kind for column in AUX_COLUMNS},
    MAPPINGS: {
        column.name: column.kind for columns in MAPPING_COLUMNS.values() for column in columns
    },
}


def struct_columns(
    layout: Layout, comms: Mapping[str, str] | None = None
) -> Iterator[FieldColumn]:
    """Yield the columns of an event of a BPF program: the common ones, then its members.

    Args:
        layout: of the event.
        comms: columns with the names of threads, each with the member that has the thread.
    """
    yield from COMMON_COLUMNS
    members = {field.name: _member(field) for field in layout.fields}
    yield from members.values()
    for name, field in (comms or {}).items():
        if field in members and members[field].kind in {"i32", "u32"}:
            _, offset, *_ = members[field].where
            where: Where = ("comm_of", offset, _TASK_BYTES, 1, False)
            yield FieldColumn(own_name(name), "text", where)


def raw_columns() -> tuple[FieldColumn, ...]:
    """Return the columns of an event whose data nothing describes."""
    return (*COMMON_COLUMNS, FieldColumn("data", "bytes", ("inline", 0, 0, 1, False)))


def _member(field: Field) -> FieldColumn:
    each = field.size // (field.count or 1)
    if field.kind in {"char", "bytes"} or each > _WORD_BYTES:
        kind, each = "text" if field.kind == "char" else "bytes", 1
    else:
        letter = {"int": "i", "float": "f"}.get(field.kind, "u")
        kind = f"{'list_' if field.count else ''}{letter}{8 * each}"
    where = ("inline", field.offset, field.size, each, field.kind == "int")
    return FieldColumn(own_name(field.name or _VALUE), kind, where)

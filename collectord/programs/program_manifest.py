# SPDX-License-Identifier: Apache-2.0
"""NAME.toml beside NAME.bpf.c: a BPF program's purpose, parameters, requirements and exports.

Fields are looked up in the program's own structs when it is compiled, everything else is checked
here. Structs do not forbid unknown keys themselves, so that facts of a newer version can be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from collectord.programs.filters import Filter  # noqa: TC001 - msgspec reads annotations
from collectord.programs.kernel_license import kernel_license
from collectord.programs.parameter import ParameterConfig  # noqa: TC001 - likewise

if TYPE_CHECKING:
    from collections.abc import Mapping

Requirement = Literal["kprobes", "uprobes", "fentry", "btf", "perf_event", "stacks"]
AttachKind = Literal[
    "tracepoint",
    "raw_tracepoint",
    "kprobe",
    "kretprobe",
    "uprobe",
    "uretprobe",
    "usdt",
    "perf_event",
    "fentry",
    "fexit",
]
MetricType = Literal["histogram", "counter", "gauge"]
AnswerKind = Literal["histogram", "table", "folded"]
Scale = Literal["", "log2", "linear"]
ValueUnit = Literal["ns", "us", "ms", "bytes", "count"]


class AttachConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A function that is not attached by its name: `[[attach]]`.

    Attributes:
        function: function of the program.
        place: SYSTEM:NAME of a tracepoint, NAME of a raw one; a kernel function; BINARY:SYMBOL of
            a uprobe; BINARY:PROVIDER:PROBE of a usdt; an event's name or TYPE:CONFIG. "" if a
            parameter chooses it.
        parameter: a parameter with `choices`, "" for none.
        places: the place for each of its choices.
        frequency: samples per second of a perf_event.
        period: or the number of events per sample.
    """

    kind: AttachKind
    function: str
    place: str = ""
    parameter: str = ""
    places: dict[str, str] = {}
    frequency: int | None = None
    period: int | None = None

    def chosen(self, values: Mapping[str, int | str]) -> AttachConfig:
        """Return it at the place that these values of the program's parameters choose."""
        if not self.parameter:
            return self
        place = self.places[f"{values[self.parameter]}"]
        return replace(self, place=place, parameter="", places={})


class ColumnConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table, or a key that distinguishes histograms.

    Attributes:
        field: field of the struct, "a.b" of a nested one.
        title: text above the column.
        show: form of a value, one of `codec.bpf_show.SHOWS`.
    """

    field: str
    title: str
    show: str = "decimal"


class BpfEventConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The printed form of collectord_submit()'s event: `[event]`."""

    columns: tuple[ColumnConfig, ...]


class RecordConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of record that collectord_keep() keeps: `[[record]]`.

    Attributes:
        event: name of the event, "SYSTEM:NAME" of the tracepoint that it stands for.
        struct: its struct in the program.
        task: field with the thread in whose context it happened, "" if it has none.
        comms: columns with the names of threads, each with the field that has the thread.
        columns: its printed form; empty for all fields.
    """

    event: str
    struct: str
    task: str = ""
    comms: dict[str, str] = {}
    columns: tuple[ColumnConfig, ...] = ()


class LabelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A label of a metric. Values beyond `max` distinct ones become "other"."""

    name: str
    field: str
    show: str = "decimal"
    max: int = 16


class MetricConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A map as a metric `collectord_bpf_NAME`: `[[metric]]`.

    Attributes:
        table: the map.
        scale: scale of a histogram. log2: slot n holds 2^(n-1) to 2^n - 1, as bpf_log2l() gives
            it, and slot 1 holds 0 too. linear: n times `step` and more, the last slot without end.
        slot: field of the map's key that is the slot; "" if the key is.
        step: width of a linear slot, in `unit`.
        unit: unit of slots and values; times become seconds.
        sum_table: array whose value 0 is the sum of all values, "" for none.
        value: field of the map's value; "" if the value is one.
    """

    name: str
    type: MetricType
    help: str
    table: str
    scale: Scale = ""
    slot: str = ""
    step: int = 1
    unit: ValueUnit = "count"
    sum_table: str = ""
    value: str = ""
    labels: tuple[LabelConfig, ...] = ()


class AnswerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A map as `record --bpf` prints it at its end: `[[answer]]`.

    Attributes:
        table: the map.
        title: text above it.
        unit: unit of slots and values.
        value: field of the map's value; "" if the value is one.
        scale, slot, step: of a histogram, as in a metric.
        by: fields of the key; there is a histogram for each of their values.
        columns: columns of a table, fields of key and value.
        sort: field of a table that puts the largest first, "" for the order of the map.
        limit: rows of a table, 0 for all.
        stacks: map of the stacks of a folded answer.
        kernel_stack, user_stack: fields of the key with stack ids, "" for none.
        pid: field of the key with the process whose user stack it is.
        frames_first: fields of the key that become the first frames.
    """

    kind: AnswerKind
    table: str
    title: str = ""
    unit: ValueUnit = "count"
    value: str = ""
    scale: Scale = ""
    slot: str = ""
    step: int = 1
    by: tuple[ColumnConfig, ...] = ()
    columns: tuple[ColumnConfig, ...] = ()
    sort: str = ""
    limit: int = 20
    stacks: str = ""
    kernel_stack: str = ""
    user_stack: str = ""
    pid: str = ""
    frames_first: tuple[str, ...] = ()


class BpfManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole manifest.

    Attributes:
        summary: one line.
        license: an SPDX expression or the kernel's own spelling.
        requires: features of the kernel beyond those of its attachments.
        instead: what to use where a feature that it needs is missing, by the feature.
        linux: the oldest release that it runs on, "5.18", "" for any.
        tracepoints: SYSTEM:NAME of each TRACEPOINT_PROBE.
        raw_tracepoints: NAME of each RAW_TRACEPOINT_PROBE.
        members: STRUCT.MEMBER of the running kernel whose places the program is told, as
            COLLECTORD_AT_STRUCT_MEMBER, whatever the headers say.
        filters: parameters that collectord.h compares with, see `filters`.
    """

    summary: str
    license: str
    description: str = ""
    requires: tuple[Requirement, ...] = ()
    instead: dict[str, str] = {}
    linux: str = ""
    tracepoints: tuple[str, ...] = ()
    raw_tracepoints: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    filters: tuple[Filter, ...] = ()
    parameter: dict[str, ParameterConfig] = {}
    attach: tuple[AttachConfig, ...] = ()
    event: BpfEventConfig | None = None
    record: tuple[RecordConfig, ...] = ()
    metric: tuple[MetricConfig, ...] = ()
    answer: tuple[AnswerConfig, ...] = ()

    @property
    def columns(self) -> tuple[ColumnConfig, ...]:
        """Columns of the event's table; none for a program without events, or for all fields."""
        return self.event.columns if self.event is not None else ()

    @property
    def kernel_license(self) -> str:
        """The licence in the words that the kernel compares with."""
        return kernel_license(self.license)

# SPDX-License-Identifier: Apache-2.0
"""NAME.toml beside NAME.bpf.c: what a BPF program is for, takes, needs and exports.

Fields are looked up in the program's own structs when it is compiled, everything else is checked
here. Structs do not forbid unknown keys themselves, so that facts of a newer version can be read.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from collectord.config.decode import decode
from collectord.config.document import parse
from collectord.config.problems import raise_first
from collectord.programs import manifest_rules

ParameterType = Literal["int", "bool", "duration", "bytes", "string"]
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


class ParameterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[parameter.NAME]`: a constant that the program gets as PARAMETER_NAME.

    Attributes:
        type: durations arrive in ns, sizes in bytes, truths as 0 and 1, strings as C literals.
        help: what it changes.
        default: of the type, spelt as in a configuration ("10ms", "64KiB").
        unit: what an int counts; shown only.
        min, max: limits of a number, in ns and bytes where it has a unit.
        max_bytes: limit of a string.
    """

    type: ParameterType
    help: str
    default: int | str | bool
    unit: str = ""
    min: int | None = None
    max: int | None = None
    max_bytes: int | None = None


class AttachConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[[attach]]`: a function that its name does not attach.

    Attributes:
        function: of the program.
        place: SYSTEM:NAME of a tracepoint, NAME of a raw one; a kernel function; BINARY:SYMBOL of
            a uprobe; BINARY:PROVIDER:PROBE of a usdt; an event's name or TYPE:CONFIG.
        frequency: of a perf_event, samples per second.
        period: or one sample each so many events.
    """

    kind: AttachKind
    function: str
    place: str
    frequency: int | None = None
    period: int | None = None


class ColumnConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a table, or a key that histograms are told apart by.

    Attributes:
        field: of the struct, "a.b" of a nested one.
        title: above the column.
        show: how a value is written, one of `codec.bpf_show.SHOWS`.
    """

    field: str
    title: str
    show: str = "decimal"


class BpfEventConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[event]`: how what collectord_submit() takes is printed."""

    columns: tuple[ColumnConfig, ...]


class LabelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A label of a metric. Values beyond `max` different ones become "other"."""

    name: str
    field: str
    show: str = "decimal"
    max: int = 16


class MetricConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[[metric]]`: a map as a metric `collectord_bpf_NAME`.

    Attributes:
        table: the map.
        scale: of a histogram. log2: slot n holds 2^(n-1) to 2^n - 1, as bpf_log2l() gives it, and
            slot 1 holds 0 too. linear: n times `step` and more, the last slot without end.
        slot: field of the map's key that is the slot; "" if the key is.
        step: width of a linear slot, in `unit`.
        unit: of slots and values; times become seconds.
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
    """`[[answer]]`: a map as `record --bpf` prints it at its end.

    Attributes:
        table: the map.
        title: above it.
        unit: of slots and values.
        value: field of the map's value; "" if the value is one.
        scale, slot, step: of a histogram, as of a metric.
        by: a histogram for each value of these fields of the key.
        columns: of a table, fields of key and value.
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
    """The whole file.

    Attributes:
        summary: one line.
        license: an SPDX expression or the kernel's own spelling.
        requires: features of the kernel beyond those of its attachments.
        linux: the oldest release that it runs on, "5.18", "" for any.
        tracepoints: SYSTEM:NAME of each TRACEPOINT_PROBE.
        raw_tracepoints: NAME of each RAW_TRACEPOINT_PROBE.
    """

    summary: str
    license: str
    description: str = ""
    requires: tuple[Requirement, ...] = ()
    linux: str = ""
    tracepoints: tuple[str, ...] = ()
    raw_tracepoints: tuple[str, ...] = ()
    parameter: dict[str, ParameterConfig] = {}
    attach: tuple[AttachConfig, ...] = ()
    event: BpfEventConfig | None = None
    metric: tuple[MetricConfig, ...] = ()
    answer: tuple[AnswerConfig, ...] = ()

    @property
    def columns(self) -> tuple[ColumnConfig, ...]:
        """Of the event's table; none of a program without events, or for all fields."""
        return self.event.columns if self.event is not None else ()

    @property
    def kernel_license(self) -> str:
        """The licence in the words that the kernel compares with."""
        return manifest_rules.kernel_license(self.license)


def load_manifest(text: bytes, path: str) -> BpfManifest:
    """Read a manifest.

    Args:
        text: of the file.
        path: its name, for errors.

    Raises:
        ConfigError: no TOML, an unknown key, a wrong type, name, unit or combination.
    """
    manifest = decode(parse(text, path), BpfManifest, path)
    raise_first(manifest_rules.check_manifest(manifest), path)
    return manifest

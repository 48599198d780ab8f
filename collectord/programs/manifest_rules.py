# SPDX-License-Identifier: Apache-2.0
"""Rules for a BPF program's manifest beyond its types: names, places and combinations."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import msgspec

from collectord.codec.bpf_show import SHOWS
from collectord.codec.event_names import NAMED_EVENTS, find_named
from collectord.config.problems import NAME, NAME_WORDS, Problem, under
from collectord.programs.kernel_license import kernel_license
from collectord.programs.parameter import STRING_MAX_BYTES
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from collectord.programs.parameter import ParameterConfig
    from collectord.programs.program_manifest import (
        AnswerConfig,
        AttachConfig,
        BpfManifest,
        ColumnConfig,
        MetricConfig,
        RecordConfig,
    )

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_FIELD: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
TRACEPOINT: Final = re.compile(r"[A-Za-z_][\w-]*:[A-Za-z_][\w-]*", re.ASCII)
_MEMBER: Final = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)
_BINARY: Final = r"(?:/[^\0:\s]+|[A-Za-z_][\w.+-]*)"
_SYMBOL: Final = r"[A-Za-z_$][\w$.@]*"
# The form of a place, and an example, by attachment.
_PLACES: Final = {
    "tracepoint": (TRACEPOINT, "sched:sched_switch"),
    "raw_tracepoint": (_IDENTIFIER, "sys_enter"),
    **dict.fromkeys(
        ("kprobe", "kretprobe", "fentry", "fexit"),
        (re.compile(_SYMBOL, re.ASCII), "do_sys_openat2"),
    ),
    **dict.fromkeys(
        ("uprobe", "uretprobe"),
        (re.compile(f"{_BINARY}:{_SYMBOL}", re.ASCII), "/usr/bin/app:main or libc:malloc"),
    ),
    "usdt": (
        re.compile(rf"{_BINARY}:[A-Za-z_]\w*:[A-Za-z_]\w*", re.ASCII),
        "/usr/bin/app:provider:probe",
    ),
}
# Those whose place a parameter can choose. Tracepoints are looked up before its value is known.
_CHOOSING: Final = ("raw_tracepoint", "kprobe", "kretprobe", "uprobe", "uretprobe", "usdt")
# bcc finds their places only by these names.
_FENTRY_NAMES: Final = {"fentry": "kfunc__", "fexit": "kretfunc__"}
_EVENT_NUMBERS: Final = re.compile(r"(?:0x[0-9A-Fa-f]+|\d+):(?:0x[0-9A-Fa-f]+|\d+)", re.ASCII)
_EVENT_HINT: Final = "an event such as cpu-clock, or TYPE:CONFIG in numbers"

_TIMES: Final = ("ns", "us", "ms")
_SUFFIX: Final = {**dict.fromkeys(_TIMES, "_seconds"), "bytes": "_bytes"}
# Labels of every series, and the kernel's names for unbounded values.
_TAKEN_LABELS: Final = frozenset({"session", "program", "le", "quantile", "cpu"})
_UNBOUNDED_LABELS: Final = frozenset(
    {"pid", "tid", "tgid", "comm", "path", "file", "filename", "cgroup"}
)
_SERIES_MAX: Final = 1024
_RELEASE: Final = re.compile(r"\d{1,3}\.\d{1,3}", re.ASCII)
_COLUMNS_MAX: Final = 64
_RECORDS_MAX: Final = 127  # a mark has seven bits for a kind
_OF_KIND: Final = {
    "scale": "histogram",
    "slot": "histogram",
    "step": "histogram",
    "by": "histogram",
    "columns": "table",
    "sort": "table",
    "limit": "table",
    "stacks": "folded",
    "kernel_stack": "folded",
    "user_stack": "folded",
    "pid": "folded",
    "frames_first": "folded",
}


def check_manifest(manifest: BpfManifest) -> Iterator[Problem]:
    """Yield problems of a manifest by itself; `bpf_program.problems` checks the source too."""
    if not manifest.summary or len(manifest.summary.splitlines()) > 1:
        yield Problem("summary", "must be one line")
    if not kernel_license(manifest.license):
        yield Problem(
            "license",
            f"the kernel does not let {manifest.license!r} programs trace",
            'it takes e.g. "GPL-2.0-only", "GPL-2.0-only OR BSD-2-Clause" or "Dual MIT/GPL"',
        )
    if manifest.linux and _RELEASE.fullmatch(manifest.linux) is None:
        yield Problem("linux", f"{manifest.linux!r} is not a kernel release", 'such as "5.18"')
    yield from _names("tracepoints", manifest.tracepoints, TRACEPOINT, "SYSTEM:NAME")
    yield from _names("raw_tracepoints", manifest.raw_tracepoints, _IDENTIFIER, "a plain name")
    yield from _names("members", manifest.members, _MEMBER, "STRUCT.MEMBER")
    yield from _parameters(manifest)
    yield from _unique(
        "attach", [(a.kind, a.function, a.place or a.parameter) for a in manifest.attach]
    )
    for index, attach in enumerate(manifest.attach):
        yield from under(f"attach[{index}]", _attach(attach, manifest.parameter))
    if manifest.event is not None:
        yield from under("event", _columns("columns", manifest.event.columns))
    yield from _records(manifest.record)
    yield from _unique("metric", [metric.name for metric in manifest.metric], ".name")
    for index, metric in enumerate(manifest.metric):
        yield from under(f"metric[{index}]", _metric(metric))
    for index, answer in enumerate(manifest.answer):
        yield from under(f"answer[{index}]", _answer(answer))


def _parameters(manifest: BpfManifest) -> Iterator[Problem]:
    yield from _unique("filters", manifest.filters)
    for one in manifest.filters:
        if one in manifest.parameter:
            yield Problem(f"parameter.{one}", "is a filter already", "give it another name")
    for name, parameter in manifest.parameter.items():
        yield from under(f"parameter.{name}", check_parameter(name, parameter))


def _names(
    key: str, names: Sequence[str], pattern: re.Pattern[str], words: str
) -> Iterator[Problem]:
    for index, name in enumerate(names):
        if pattern.fullmatch(name) is None:
            yield Problem(f"{key}[{index}]", f"{name!r} is not a tracepoint", words)
    yield from _unique(key, names)


def _unique(key: str, values: Sequence[object], behind: str = "") -> Iterator[Problem]:
    for index, value in enumerate(values):
        if value in values[:index]:
            words = " ".join(value) if isinstance(value, tuple) else value
            yield Problem(f"{key}[{index}]{behind}", f"{words} is listed twice")


def check_parameter(name: str, parameter: ParameterConfig) -> Iterator[Problem]:
    """Yield what is wrong with a parameter, its default excepted."""
    if NAME.fullmatch(name) is None:
        yield Problem("", f"{name!r} is not a valid parameter name", NAME_WORDS)
    if not parameter.help:
        yield Problem("help", "must say what the parameter changes")
    number = parameter.type in ("int", "duration", "bytes")
    for key, fits in (
        ("min", number),
        ("max", number),
        ("unit", parameter.type == "int"),
        ("max_bytes", parameter.type == "string"),
        ("choices", parameter.type == "string"),
    ):
        if getattr(parameter, key) not in (None, "", ()) and not fits:
            yield Problem(key, f"cannot be combined with type {parameter.type!r}")
    if parameter.max_bytes is not None and not 0 < parameter.max_bytes <= STRING_MAX_BYTES:
        yield Problem("max_bytes", f"{parameter.max_bytes}", f"1 to {STRING_MAX_BYTES}")
    yield from _unique("choices", parameter.choices)


def _attach(attach: AttachConfig, parameters: Mapping[str, ParameterConfig]) -> Iterator[Problem]:
    if _IDENTIFIER.fullmatch(attach.function) is None:
        yield Problem("function", f"{attach.function!r} is not a C function")
    rates = [rate for rate in (attach.frequency, attach.period) if rate is not None]
    if attach.kind == "perf_event":
        if len(rates) != 1 or rates[0] <= 0:
            yield Problem("frequency", "a perf_event has either frequency or period, 1 or more")
    elif rates:
        key = "frequency" if attach.frequency is not None else "period"
        yield Problem(key, "only a perf_event has this key")
    if attach.parameter or attach.places:
        yield from _choice(attach, parameters)
        return
    yield from _place("place", attach.kind, attach.place)
    named = _FENTRY_NAMES.get(attach.kind, "") + attach.place
    if attach.kind in _FENTRY_NAMES and attach.function != named:
        yield Problem("function", f"a function for this {attach.kind} is called {named}")


def _choice(attach: AttachConfig, parameters: Mapping[str, ParameterConfig]) -> Iterator[Problem]:
    """Yield problems of a place that a parameter chooses."""
    if attach.kind not in _CHOOSING:
        words = f"no parameter chooses the place of a {attach.kind}"
        yield Problem("parameter", words, f"those of {', '.join(_CHOOSING)}")
        return
    if attach.place:
        yield Problem("place", "cannot be combined with parameter and places")
    parameter = parameters.get(attach.parameter)
    if parameter is None or not parameter.choices:
        yield Problem("parameter", f"{attach.parameter!r} is not a parameter with choices")
        return
    for name in parameter.choices:
        if name not in attach.places:
            yield Problem("places", f"there is none for {attach.parameter} = {name!r}")
    for name, place in attach.places.items():
        if name not in parameter.choices:
            near = did_you_mean(name, parameter.choices)
            yield Problem(f"places.{name}", f"not a choice of {attach.parameter}", near)
        yield from _place(f"places.{name}", attach.kind, place)


def _place(key: str, kind: str, place: str) -> Iterator[Problem]:
    if kind == "perf_event":
        if _EVENT_NUMBERS.fullmatch(place) is None and find_named(place) is None:
            near = did_you_mean(place, (event.name for event in NAMED_EVENTS))
            yield Problem(key, f"{place!r} is not an event", near or _EVENT_HINT)
        return
    pattern, example = _PLACES[kind]
    if pattern.fullmatch(place) is None:
        yield Problem(key, f"{place!r} is not a place for a {kind}", f"e.g. {example}")


def _records(records: Sequence[RecordConfig]) -> Iterator[Problem]:
    if len(records) > _RECORDS_MAX:
        yield Problem("record", f"{len(records)} kinds of records", f"up to {_RECORDS_MAX}")
    yield from _names("record", [one.event for one in records], TRACEPOINT, "SYSTEM:NAME")
    yield from _names("record", [one.struct for one in records], _IDENTIFIER, "a plain name")
    for index, record in enumerate(records):
        for name, field in record.comms.items():
            if not _IDENTIFIER.fullmatch(name) or not _FIELD.fullmatch(field):
                yield Problem(f"record[{index}].comms", f"{name!r} = {field!r}", "names of fields")
        yield from under(f"record[{index}]", _columns("columns", record.columns, needed=False))


def _columns(
    key: str, columns: Sequence[ColumnConfig], *, needed: bool = True
) -> Iterator[Problem]:
    if needed and not columns:
        yield Problem(key, "a column is needed")
    if len(columns) > _COLUMNS_MAX:
        yield Problem(key, f"{len(columns)} columns", f"up to {_COLUMNS_MAX}")
    for index, column in enumerate(columns):
        place = f"{key}[{index}]"
        yield from _field(f"{place}.field", column.field)
        yield from _show(f"{place}.show", column.show)
        if not column.title:
            yield Problem(f"{place}.title", "must not be empty")


def _show(key: str, how: str) -> Iterator[Problem]:
    if how not in SHOWS:
        allowed = f"allowed: {', '.join(SHOWS)}"
        near = did_you_mean(how, SHOWS)
        yield Problem(key, f"{how!r} is unknown", f"{near} {allowed}" if near else allowed)


def _field(key: str, name: str) -> Iterator[Problem]:
    if _FIELD.fullmatch(name) is None:
        yield Problem(key, f"{name!r} is not a field of a struct", 'e.g. "pid" or "key.dev"')


def _optional_fields(part: MetricConfig | AnswerConfig, keys: Iterable[str]) -> Iterator[Problem]:
    for key in keys:
        name = getattr(part, key)
        if name:
            yield from _field(key, name)


def _table(key: str, name: str) -> Iterator[Problem]:
    if _IDENTIFIER.fullmatch(name) is None:
        yield Problem(key, f"{name!r} is not a valid map name")


def _scale(part: MetricConfig | AnswerConfig) -> Iterator[Problem]:
    """Yield problems of a histogram's scale."""
    if not part.scale:
        yield Problem("scale", "a histogram needs this key", "allowed: log2, linear")
    if part.step <= 0:
        yield Problem("step", f"{part.step}", "1 or more")
    if part.step != 1 and part.scale == "log2":
        yield Problem("step", "only a linear scale has this key")


def _metric(metric: MetricConfig) -> Iterator[Problem]:
    if NAME.fullmatch(metric.name) is None:
        yield Problem("name", f"{metric.name!r} is not a valid metric name", NAME_WORDS)
    if metric.name.startswith("collectord_"):
        yield Problem("name", "collectord_bpf_ is put before it automatically")
    if not metric.help:
        yield Problem("help", "must say what is counted")
    ending = _SUFFIX.get(metric.unit, "") + ("_total" if metric.type == "counter" else "")
    if not metric.name.endswith(ending):
        yield Problem("name", f"a {metric.type} of {metric.unit} ends in {ending}")
    yield from _table("table", metric.table)
    if metric.type == "histogram":
        yield from _scale(metric)
        if metric.sum_table:
            yield from _table("sum_table", metric.sum_table)
    else:
        for key, default in (("scale", ""), ("slot", ""), ("step", 1), ("sum_table", "")):
            if getattr(metric, key) != default:
                yield Problem(key, "only a histogram has this key")
    yield from _optional_fields(metric, ("slot", "value"))
    yield from _labels(metric)


def _labels(metric: MetricConfig) -> Iterator[Problem]:
    for index, label in enumerate(metric.labels):
        key = f"labels[{index}]"
        if NAME.fullmatch(label.name) is None:
            yield Problem(f"{key}.name", f"{label.name!r} is not a valid label name", NAME_WORDS)
        elif label.name in _TAKEN_LABELS:
            yield Problem(f"{key}.name", f"{label.name} is taken")
        for part, text in (("name", label.name), ("field", label.field.rpartition(".")[2])):
            if text in _UNBOUNDED_LABELS:
                hint = "use an [[answer]] or events instead"
                yield Problem(
                    f"{key}.{part}", f"{text} cannot be a label: its values have no bound", hint
                )
        if label.max < 1:
            yield Problem(f"{key}.max", f"{label.max}", f"1 to {_SERIES_MAX}")
        # "" means that the key is not a struct; for a histogram that is the slot.
        if label.field or metric.type == "histogram":
            yield from _field(f"{key}.field", label.field)
        yield from _show(f"{key}.show", label.show)
    yield from _unique("labels", [label.name for label in metric.labels], ".name")
    if metric.labels and metric.type == "histogram" and not metric.slot:
        yield Problem("slot", "with labels the key is a struct: which field of it is the slot?")
    series = math.prod(label.max + 1 for label in metric.labels)
    if series > _SERIES_MAX:
        yield Problem("labels", f"up to {series} series", f"lower max: {_SERIES_MAX} in all")


def _answer(answer: AnswerConfig) -> Iterator[Problem]:
    yield from _table("table", answer.table)
    fields = {field.name: field.default for field in msgspec.structs.fields(answer)}
    for key, kind in _OF_KIND.items():
        if kind != answer.kind and getattr(answer, key) != fields[key]:
            yield Problem(key, f"only a {kind} has this key")
    match answer.kind:
        case "histogram":
            yield from _scale(answer)
            yield from _columns("by", answer.by, needed=False)
            yield from _unique("by", [column.title for column in answer.by], ".title")
            if answer.by and not answer.slot:
                yield Problem("slot", "with by the key is a struct: which field is the slot?")
        case "table":
            yield from _columns("columns", answer.columns)
            if answer.limit < 0:
                yield Problem("limit", f"{answer.limit}", "rows, 0 for all")
        case "folded":
            yield from _stacks(answer)
    yield from _optional_fields(answer, ("slot", "value", "sort"))


def _stacks(answer: AnswerConfig) -> Iterator[Problem]:
    yield from _table("stacks", answer.stacks)
    if not answer.kernel_stack and not answer.user_stack:
        yield Problem("kernel_stack", "a folded answer needs kernel_stack or user_stack")
    if answer.user_stack and not answer.pid:
        yield Problem("pid", "user stacks need the field of the key that has their process")
    yield from _optional_fields(answer, ("kernel_stack", "user_stack", "pid"))
    for index, name in enumerate(answer.frames_first):
        yield from _field(f"frames_first[{index}]", name)

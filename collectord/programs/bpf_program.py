# SPDX-License-Identifier: Apache-2.0
"""A BPF program of the catalogue: its parameters, and the consistency of its text and manifest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from collectord.codec.tracepoint import Tracepoint
from collectord.config.problems import Problem
from collectord.programs import c_source
from collectord.programs.filters import COMPARED_BY
from collectord.programs.parameter import encode
from collectord.programs.program_manifest import BpfManifest  # noqa: TC001 - of the facts' JSON
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


HEADER: Final = "collectord.h"
EVENT: Final = "COLLECTORD_EVENT"
# The output of collectord_submit() in collectord.h, which exists for an event only.
RING: Final = "collectord_ring"
COUNTS: Final = "collectord_counts"
_SUBMIT: Final = "collectord_submit"
_KEEP: Final = "collectord_keep"
# Tables of collectord.h: those whose leaves are the kinds of records, and where these are kept.
RECORD: Final = "collectord_record_"
HEADS: Final = "collectord_heads"
SLOTS: Final = "collectord_slots"
_KIND: Final = "COLLECTORD_KIND_"
_PARAMETER: Final = "PARAMETER_"
# Defined for a filter, so that collectord.h compares with its parameter.
_FILTER: Final = "COLLECTORD_FILTER_"

_INT: Final = range(-(1 << 31) + 1, 1 << 31)
_LONG: Final = range(-(1 << 63) + 1, 1 << 63)
_PLAIN: Final = re.compile(rb"[A-Za-z0-9 _./,:+=@-]")

# Attachments by a function's name or macro, and the kernel features that they need.
_NAMED: Final = {
    "kprobes": r"k(?:ret)?probe__\w+\s*\(",
    "fentry": r"(?:KR?E?T?FUNC_PROBE|KMOD_RET|k(?:ret)?func__\w+|kmod_ret__\w+)\s*\(",
}
_NEEDED_BY_KIND: Final = {
    "kprobe": "kprobes",
    "kretprobe": "kprobes",
    "uprobe": "uprobes",
    "uretprobe": "uprobes",
    "usdt": "uprobes",
    "fentry": "fentry",
    "fexit": "fentry",
}
_MISSES_COUNTED: Final = (6, 7)
_MISSED_UNCOUNTED: Final = frozenset({"kprobe", "kretprobe", "perf_event"})
_MAP: Final = re.compile(r"\bBPF_[A-Z_0-9]+\s*\(\s*(\w+)")


@dataclass(frozen=True, slots=True)
class BpfProgram:
    """A BPF program: its source and its manifest.

    Attributes:
        name: the name of both files.
        path: path of the source; the manifest is NAME.toml beside it.
        source: C text.
        manifest: the parsed manifest.
        origin: "shipped" with this program, or "local", added on this host.
    """

    name: str
    path: str
    source: str
    manifest: BpfManifest
    origin: Literal["shipped", "local"]


def defines(program: BpfProgram, values: Mapping[str, int | str]) -> str:
    """Return lines that define the program's parameters, as `parameter.values_of` returned them.

    A number has the C type that it would have if it were written there; durations and sizes are
    unsigned long long, whatever they are multiplied by.
    """
    lines = []
    for name, parameter in program.manifest.parameter.items():
        value = values[name]
        if isinstance(value, str):
            text = _c_string(value)
        elif parameter.type in ("duration", "bytes"):
            text = f"{value}ULL"
        else:
            text = _c_number(value)
        lines.append(f"#define {_PARAMETER}{name.upper()} {text}\n")
    for name in program.manifest.filters:
        value = values[name]
        how = f"(text) ({_c_comparison(value)})" if isinstance(value, str) else " 1"
        lines.append(f"#define {_FILTER}{name.upper()}{how}\n")
    return "".join([*lines, *_kinds(program.manifest)])


def _kinds(manifest: BpfManifest) -> Iterator[str]:
    """Yield the numbers of the kinds of records, and what tells their layouts."""
    described = []
    for number, record in enumerate(manifest.record, 1):
        yield f"#define {_KIND}{record.struct} {number}\n"
        described.append(f"BPF_ARRAY({RECORD}{number}, struct {record.struct}, 1);")
    if described:
        yield f"#define COLLECTORD_DESCRIBE {' '.join(described)}\n"


def _c_number(value: int) -> str:
    if value in _INT:
        text = str(value)
    elif value in _LONG:
        text = f"{value}LL"
    elif value > 0:
        return f"{value}ULL"
    else:
        text = f"{value + 1}LL - 1"  # the least number has no literal
    return f"({text})" if value < 0 else text


def _c_string(text: str) -> str:
    """Return a C literal of any bytes: all but the plainest are octal escapes."""
    return '"' + "".join(map(_c_char, encode(text))) + '"'


def _c_comparison(wanted: str) -> str:
    """Return a C expression: whether `text` is as a filter wants it, see `filters`."""
    if not wanted:
        return "1"
    data = encode(wanted)
    data = data[:-1] if data.endswith(b"*") else data + b"\0"
    # volatile: else clang loads all bytes first, for which the stack has no room
    read = "*(volatile u8 *)((text) + {})"
    compared = (f"{read.format(at)} == {byte}" for at, byte in enumerate(data))
    return " && ".join(compared) or "1"


def _c_char(byte: int) -> str:
    return chr(byte) if _PLAIN.match(bytes([byte])) else f"\\{byte:03o}"


def declares_counted(source: str) -> bool:
    """Whether collectord_submit() has the only output, and counts unless it is passed by.

    That is a prediction: whether it is passed by is in the instructions of the loaded program.
    """
    return outputs(source) == (RING,)


def misses_are_counted(program: BpfProgram, release: str) -> bool:
    """Whether the kernel counts the runs that it skips while another program runs on the CPU.

    For raw tracepoints, and for uprobes, which it never skips, always; for tracepoints since Linux
    6.7 (trace_call_bpf); for kprobes only a part, and for perf events none. Only the release
    tells.

    Args:
        program: the program.
        release: release of the kernel, as in `uname -r`.
    """
    kinds = {attach.kind for attach in program.manifest.attach}
    if kinds & _MISSED_UNCOUNTED or "kprobes" in needs(program):
        return False
    if not tracepoints(program):
        return True
    return tracepoint_misses_are_counted(release)


def tracepoint_misses_are_counted(release: str) -> bool:
    """Whether a kernel counts the skipped runs of programs on tracepoints."""
    return numbers(release) >= _MISSES_COUNTED


def numbers(release: str) -> tuple[int, ...]:
    """Return the first two numbers of a kernel's release, (0, 0) if it has none."""
    return tuple(map(int, re.findall(r"\d+", release)[:2])) or (0, 0)


def outputs(source: str) -> tuple[str, ...]:
    """Return tables that it submits events to, that of collectord_submit() first."""
    code = c_source.strip(source)
    named = tuple(name for name, *_ in c_source.calls(code, "BPF_PERF_OUTPUT"))
    counted = c_source.includes(source, HEADER) >= 0 and c_source.defined(source, EVENT) >= 0
    return ((RING,) if counted else ()) + named


def needs(program: BpfProgram) -> tuple[str, ...]:
    """Return required features of the kernel, beyond BPF and tracepoints."""
    manifest = program.manifest
    code = c_source.strip(program.source)
    kinds = (attach.kind for attach in manifest.attach)
    return tuple(
        dict.fromkeys(
            (
                *manifest.requires,
                *(("btf",) if manifest.members else ()),
                *(_NEEDED_BY_KIND[kind] for kind in kinds if kind in _NEEDED_BY_KIND),
                *(need for need, named in _NAMED.items() if re.search(rf"\b{named}", code)),
            )
        )
    )


def tracepoints(program: BpfProgram) -> tuple[Tracepoint, ...]:
    """Return the tracepoints that it attaches to, by whichever way."""
    attached = (one.place for one in program.manifest.attach if one.kind == "tracepoint")
    return tuple(map(Tracepoint.parse, dict.fromkeys((*program.manifest.tracepoints, *attached))))


def problems(program: BpfProgram) -> Iterator[Problem]:
    """Yield contradictions between text and manifest; keys are of the manifest."""
    manifest, source = program.manifest, program.source
    code = c_source.strip(source)
    yield from _event_problems(manifest, source)
    yield from _probe_problems(manifest, code)
    for feature, words in manifest.instead.items():
        if feature not in needs(program) or not words:
            yield Problem(f"instead.{feature}", "must be of a feature that the program needs")
    known = c_source.words(code)
    for index, attach in enumerate(manifest.attach):
        if attach.function not in known:
            yield Problem(f"attach[{index}].function", f"no function {attach.function!r}")
    tables = {match[1] for match in _MAP.finditer(code)}
    for key, name in _tables(manifest):
        if name not in known:
            yield Problem(key, f"no map {name!r} in the program", did_you_mean(name, tables))
    used = {word for word in known if word.startswith(_PARAMETER)}
    used |= {_PARAMETER + name.upper() for name in manifest.filters if COMPARED_BY[name] & known}
    used |= {_PARAMETER + one.parameter.upper() for one in manifest.attach if one.parameter}
    defined = {_PARAMETER + name.upper(): name for name in manifest.parameter}
    for word in sorted(used - defined.keys()):
        hint = did_you_mean(word, defined)
        yield Problem(
            "parameter", f"the program uses {word}, which is not a parameter of the manifest", hint
        )
    for word in sorted(defined.keys() - used):
        hint = did_you_mean(word, used)
        yield Problem(f"parameter.{defined[word]}", f"the program does not use {word}", hint)


def _event_problems(manifest: BpfManifest, source: str) -> Iterator[Problem]:
    at, event = c_source.includes(source, HEADER), c_source.defined(source, EVENT)
    sent = outputs(source)
    submits = manifest.event is not None or _SUBMIT in c_source.words(c_source.strip(source))
    if 0 <= at < event or (submits and event < 0 <= at):
        hint = f'"#define {EVENT} struct x" before #include "{HEADER}"'
        yield Problem("event", "the program does not define its event", hint)
    elif manifest.event is not None and RING not in sent:
        yield Problem("event", "the program submits no event", f'#include "{HEADER}"')
    yield from _record_problems(manifest, source)
    exports = (sent, manifest.record, manifest.metric, manifest.answer)
    if not any(exports):
        yield Problem("answer", "the program exports nothing", "events, [[metric]] or [[answer]]")


def _record_problems(manifest: BpfManifest, source: str) -> Iterator[Problem]:
    known = c_source.words(c_source.strip(source))
    if not manifest.record:
        if _KEEP in known:
            yield Problem("record", "the program keeps records", "list their kinds as [[record]]")
        return
    if c_source.includes(source, HEADER) < 0:
        yield Problem("record", "the program keeps no record", f'#include "{HEADER}"')
    if outputs(source):
        yield Problem("record", "the program submits events too", "make two programs of it")
    for index, record in enumerate(manifest.record):
        if record.struct not in known:
            yield Problem(f"record[{index}].struct", f"no struct {record.struct!r} in the program")


def _probe_problems(manifest: BpfManifest, code: str) -> Iterator[Problem]:
    """Yield differences between the tracepoints of text and manifest.

    Those that are compiled only under a condition, such as the architecture, may be missing.
    """
    always, ever = _Probes.of(c_source.unconditional(code)), _Probes.of(code)
    for key, attached, possible, told in (
        ("tracepoints", always.tracepoints, ever.tracepoints, manifest.tracepoints),
        # There is no list of raw tracepoints to look them up in: they may be left out.
        ("raw_tracepoints", frozenset(), ever.raw, manifest.raw_tracepoints),
    ):
        # A function's name, tracepoint__SYSTEM__NAME, can be split in several places.
        names = {name.replace(":", "__"): name for name in told}
        for name in sorted(attached - names.keys()):
            words = f"the program attaches to {name.replace('__', ':', 1)}"
            yield Problem(key, words, "list it, so that it is looked up before compiling")
        for name in sorted(names.keys() - possible):
            hint = did_you_mean(name, possible).replace("__", ":", 1)
            yield Problem(key, f"the program does not attach to {names[name]}", hint)
    named = any(re.search(rf"\b{pattern}", code) for pattern in _NAMED.values())
    if not (ever.tracepoints or ever.raw or manifest.attach or named):
        yield Problem("attach", "the program attaches to nothing")


@dataclass(frozen=True, slots=True)
class _Probes:
    """Tracepoints, as SYSTEM__NAME, and raw tracepoints that a text attaches to."""

    tracepoints: frozenset[str]
    raw: frozenset[str]

    @classmethod
    def of(cls, code: str) -> _Probes:
        macros = ("__".join(names) for names in c_source.calls(code, "TRACEPOINT_PROBE"))
        raw = (name for name, *_ in c_source.calls(code, "RAW_TRACEPOINT_PROBE"))
        return cls(
            frozenset({*macros, *re.findall(r"\btracepoint__(\w+)\s*\(", code)}),
            frozenset({*raw, *re.findall(r"\braw_tracepoint__(\w+)\s*\(", code)}),
        )


def _tables(manifest: BpfManifest) -> Iterator[tuple[str, str]]:
    for index, metric in enumerate(manifest.metric):
        yield f"metric[{index}].table", metric.table
        if metric.sum_table:
            yield f"metric[{index}].sum_table", metric.sum_table
    for index, answer in enumerate(manifest.answer):
        yield f"answer[{index}].table", answer.table
        if answer.stacks:
            yield f"answer[{index}].stacks", answer.stacks

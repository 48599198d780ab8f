# SPDX-License-Identifier: Apache-2.0
"""The report of `collectord bpf check` about a program, as data and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from collectord.cli.output import say
from collectord.cli.text_table import Column, print_table
from collectord.kernel.values.bpf_objects import MapType
from collectord.plan import bpf_metrics
from collectord.programs import bpf_program
from collectord.programs.bpf_program import RING
from collectord.programs.parameter import show_default, show_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from collectord.codec.bpf_struct import Layout
    from collectord.errors import CollectordError
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.programs.bpf_program import BpfProgram
    from collectord.source.loaded_program import Loaded

    # The program with its descriptors closed; the layout of its event if it has one; the path of
    # the headers; whether it may hide events.
    Loading = tuple[Loaded, Layout | None, str, bool]

_UNSEEN_MISSES: Final = "this kernel does not count skipped runs"
_EXACT: Final = "collectord_submit() counts every event"
_PREDICTED: Final = "predicted: its instructions decide it, once it loads"
_OTHER_SUBMITS: Final = "it also submits without collectord_submit(), which is not counted"
_UNCOUNTED: Final = 'it does not submit with collectord_submit() of "collectord.h"'
# Tables of the report: its keys, and their columns.
_PARAMETERS: Final = {
    "name": Column("PARAMETER"),
    "shown": Column("VALUE"),
    "default": Column("DEFAULT"),
    "type": Column("TYPE"),
    "help": Column("MEANING"),
}
_METRICS: Final = {
    "name": Column("METRIC"),
    "type": Column("TYPE"),
    "labels": Column("LABELS"),
    "help": Column("MEANING"),
}
_FIELDS: Final = {
    "name": Column("FIELD"),
    "type": Column("TYPE"),
    "offset": Column("OFFSET", "right"),
    "bytes": Column("SIZE", "right"),
}
_TABLES: Final = {
    "name": Column("TABLE"),
    "type": Column("TYPE"),
    "key_bytes": Column("KEY", "right"),
    "value_bytes": Column("VALUE", "right"),
    "max_entries": Column("ENTRIES", "right"),
}


def describe(
    program: BpfProgram,
    values: Mapping[str, int | str],
    facts: KernelFacts,
    loading: Loading | None,
    failure: CollectordError | None,
) -> dict[str, Any]:
    """Return all that is known about a program, for JSON.

    Args:
        program: the program.
        values: of its parameters.
        facts: of this host.
        loading: the result of compiling it, None if it failed.
        failure: why it cannot run, None if it can.
    """
    manifest, bpf = program.manifest, facts.bpf
    return {
        "name": program.name,
        "origin": program.origin,
        "path": program.path,
        "summary": manifest.summary,
        "license": manifest.license,
        "available": failure is None,
        "reason": str(failure) if failure is not None else "",
        "needs": {name: bool(getattr(bpf, name, True)) for name in bpf_program.needs(program)},
        "tracepoints": {
            str(one): one in facts.tracepoints for one in bpf_program.tracepoints(program)
        },
        "raw_tracepoints": list(manifest.raw_tracepoints),
        "bcc": {"python": bpf.python, "version": bpf.bcc_version},
        "headers": {
            "path": bpf.headers if loading is None else loading[2],
            "kind": bpf.headers_kind,
            "release": bpf.headers_release,
            "match": bpf.headers_match,
        },
        "parameters": list(_parameters(program, values)),
        "metrics": [
            {
                "name": bpf_metrics.exported(metric.name, metric.type),
                "type": metric.type,
                "labels": ["session", "program", *(label.name for label in metric.labels)],
                "help": metric.help,
            }
            for metric in manifest.metric
        ],
        "outputs": [
            _output(program, table, facts.release, loading)
            for table in bpf_program.outputs(program.source)
        ],
        "may_suppress": None if loading is None else loading[3],
        **(_loaded(*loading[:2]) if loading is not None else {}),
    }


def _parameters(program: BpfProgram, values: Mapping[str, int | str]) -> Iterator[dict[str, Any]]:
    for name, parameter in program.manifest.parameter.items():
        yield {
            "name": name,
            "type": parameter.type,
            "unit": parameter.unit,
            "value": values[name],
            "shown": show_value(parameter, values[name]),
            "default": show_default(parameter),
            "choices": list(parameter.choices),
            "help": parameter.help,
        }


def _output(
    program: BpfProgram, table: str, release: str, loading: Loading | None
) -> dict[str, str]:
    """Return a table that the program submits to, and the basis of its ledger.

    The instructions of the loaded program decide it; of one that does not load it is predicted.
    """
    if table != RING:
        return {"table": table, "basis": "lost_only", "reason": _UNCOUNTED}
    if loading is None:
        counts = bpf_program.declares_counted(program.source)
    else:
        counts = loading[0].counts_submissions
    if not counts:
        return {"table": table, "basis": "lost_only", "reason": _OTHER_SUBMITS}
    if not bpf_program.misses_are_counted(program, release):
        return {"table": table, "basis": "lost_only", "reason": _UNSEEN_MISSES}
    return {"table": table, "basis": "exact", "reason": _EXACT if loading else _PREDICTED}


def _loaded(loaded: Loaded, layout: Layout | None) -> dict[str, Any]:
    return {
        "functions": [
            {"name": one.function, "attachments": list(one.attachments)} for one in loaded.programs
        ],
        "tables": [
            {
                "name": table.name,
                "type": _type_name(table.type),
                "key_bytes": table.key_bytes,
                "value_bytes": table.leaf_bytes,
                "max_entries": table.max_entries,
            }
            for table in loaded.tables.values()
        ],
        "event": None
        if layout is None
        else {
            "bytes": layout.size,
            "fields": [
                {
                    "name": field.name,
                    "type": field.ctype,
                    "offset": field.offset,
                    "bytes": field.size,
                    "count": field.count,
                }
                for field in layout.fields
            ],
        },
        "messages": loaded.messages,
    }


def _type_name(number: int) -> str:
    try:
        return MapType(number).name.lower()
    except ValueError:
        return f"type {number}"


def say_report(report: Mapping[str, Any]) -> None:
    """Print a report as text."""
    say(f"{report['name']}: {report['summary']}")
    say(f"  {report['origin']}, {report['path']}, {report['license']}")
    for line in _lines(report):
        say(f"  {line}")
    _say_table(_PARAMETERS, map(_with_choices, report["parameters"]))
    metrics = ({**metric, "labels": ", ".join(metric["labels"])} for metric in report["metrics"])
    _say_table(_METRICS, metrics)
    _say_table(_FIELDS, map(_declared, (report.get("event") or {}).get("fields", ())))
    _say_table(_TABLES, report.get("tables", ()))


def _with_choices(parameter: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a parameter whose meaning has all that it may be, where it may not be anything."""
    words = ": ".join(filter(None, (parameter["help"], ", ".join(parameter["choices"]))))
    return {**parameter, "help": words}


def _declared(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a field with its type as it is declared: that of an array has a count."""
    return {**field, "type": f"{field['type']}[{field['count']}]"} if field["count"] else field


def _say_table(columns: Mapping[str, Column], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the rows, unless there is none."""
    cells = [[str(row[key]) for key in columns] for row in rows]
    if cells:
        say("")
        print_table([*columns.values()], cells)


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    asked = report["needs"] | report["tracepoints"]
    yield "needs: " + (", ".join(map(_presence, asked.items())) or "nothing but BPF")
    if report["raw_tracepoints"]:
        yield f"raw tracepoints: {', '.join(report['raw_tracepoints'])}"
    bcc, headers = report["bcc"], report["headers"]
    if bcc["python"]:
        yield f"bcc {bcc['version']} under {bcc['python']}"
    if headers["kind"]:
        match = "of the running kernel" if headers["match"] else "NOT of the running kernel"
        yield f"headers: {headers['path']}, of {headers['release']}, {match}"
    for output in report["outputs"]:
        yield f"events by {output['table']}: basis {output['basis']}, {output['reason']}"
    if report["may_suppress"]:
        why = "not every path returns 1, or the kernel does not count skipped runs"
        yield f"it may hide events of its tracepoints from perf: {why}"
    for function in report.get("functions", ()):
        yield f"runs {function['name']} at {', '.join(function['attachments'])}"
    event = report.get("event")
    if event:
        yield f"its event has {event['bytes']} bytes"
    for line in report.get("messages", "").splitlines():
        yield f"compiler: {line}"


def _presence(item: tuple[str, bool]) -> str:
    name, here = item
    return name if here else f"{name} (MISSING)"

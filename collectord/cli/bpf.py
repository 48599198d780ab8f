# SPDX-License-Identifier: Apache-2.0
"""`collectord bpf`: list BPF programs, or check whether one compiles and loads here."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.cli import EXIT_OK
from collectord.cli.bpf_report import describe, say_report
from collectord.cli.output import complain, print_json
from collectord.cli.parser import Parser, named_values
from collectord.cli.text_table import Column, print_table
from collectord.config.schema import BpfConfig, DaemonConfig
from collectord.daemon.host_facts import bpf_wanted
from collectord.errors import BpfError, CollectordError, UsageError
from collectord.kernel.values.facts_wanted import LOCAL, FactsWanted
from collectord.plan import bpf_source
from collectord.programs import bpf_program
from collectord.programs.parameter import values_of
from collectord.session.maps.answers import describe_tables
from collectord.session.maps.device_names import HostNames
from collectord.session.maps.map_metrics import MapReader
from collectord.source import bcc_client
from collectord.source.loaded_program import event_layout
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from collectord.cli.bpf_report import Loading
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.port import Kernel
    from collectord.programs.bpf_program import BpfProgram

_COLUMNS: Final = tuple(map(Column, ("PROGRAM", "FROM", "HERE", "EXPORTS", "PURPOSE", "WHY NOT")))


def parser() -> Parser:
    """Return the parser of `bpf`."""
    made = Parser(
        "bpf",
        ("list|check", "[--bpf-arg K=V]...", "[--program-dir DIR]", "[--json]", "[NAME]"),
        (
            "collectord bpf list",
            "collectord bpf check biolatency",
            "collectord bpf check opensnoop --bpf-arg pid=1234",
            "collectord bpf check mine --program-dir ./bpf --json",
        ),
    )
    made.add_argument(
        "action",
        choices=("list", "check"),
        metavar="list|check",
        help="list: list all programs, and show whether they can run here; check: compile one "
        "program, attach it for a moment, and show what it needs and exports",
    )
    made.add_argument(
        "name", metavar="NAME", nargs="?", default="", help="check: the program to check"
    )
    made.add_argument(
        "--bpf-arg",
        metavar="K=V",
        action="append",
        default=[],
        help="check: set a parameter, repeatable (default: the program's own default)",
    )
    made.add_argument(
        "--program-dir",
        metavar="DIR",
        type=Path,
        default=LOCAL,
        help=f"directory of this host's own programs (default: {LOCAL})",
    )
    made.add_json("print the result as JSON (default: text)")
    return made


def run(arguments: Sequence[str], kernel: Kernel) -> int:
    """List programs, or check one."""
    args = parser().parse_intermixed_args(arguments)
    if args.action == "list":
        if args.name or args.bpf_arg:
            raise UsageError("list takes neither NAME nor --bpf-arg", hint="bpf check NAME")
        return _list(args, kernel)
    if not args.name:
        raise UsageError("check takes the NAME of a program", hint="`collectord bpf list`")
    return _check(args, kernel)


def _list(args: argparse.Namespace, kernel: Kernel) -> int:
    facts = _facts(kernel, _config(args), None)
    rows: list[dict[str, Any]] = [
        {
            "name": program.name,
            "origin": program.origin,
            "path": program.path,
            "summary": program.manifest.summary,
            "gives": gives(program),
            "available": not (reason := bpf_source.obstacle(program, facts)),
            "reason": reason,
        }
        for program in facts.bpf.programs.values()
    ]
    rows += [
        {"name": name, "available": False, "reason": reason}
        for name, reason in facts.bpf.program_problems.items()
    ]
    rows.sort(key=lambda row: str(row["name"]))
    if args.json:
        print_json({"programs": rows})
        return EXIT_OK
    print_table(
        _COLUMNS,
        [
            [
                row["name"],
                row.get("origin", ""),
                "yes" if row["available"] else "no",
                ", ".join(row.get("gives", ())),
                row.get("summary", ""),
                row["reason"],
            ]
            for row in rows
        ],
    )
    return EXIT_OK


def gives(program: BpfProgram) -> list[str]:
    """Return what a program exports: events, metrics, kinds of answers."""
    manifest = program.manifest
    found = ["events"] if bpf_program.outputs(program.source) else []
    found += ["metrics"] if manifest.metric else []
    return found + list(dict.fromkeys(answer.kind for answer in manifest.answer))


def _check(args: argparse.Namespace, kernel: Kernel) -> int:
    program = kernel.bpf_program(args.name, args.program_dir)
    values = values_of(
        program.name, program.manifest.parameter, named_values("--bpf-arg", args.bpf_arg)
    )
    config = _config(args)
    facts = _facts(kernel, config, (program.name,))
    loading: Loading | None = None
    failure: CollectordError | None = None
    try:
        bpf_source.require(program, facts)
        loading = _load(kernel, config, facts, program, values)
    except CollectordError as error:
        failure = error
    report = describe(program, values, facts, loading, failure)
    if args.json:
        print_json(report)
    else:
        say_report(report)
    if failure is not None:
        if isinstance(failure, BpfError):
            for line in failure.text.splitlines():
                complain(line)
        raise failure
    return EXIT_OK


def _load(
    kernel: Kernel,
    config: BpfConfig,
    facts: KernelFacts,
    program: BpfProgram,
    values: dict[str, int | str],
) -> Loading:
    """Compile, load and attach it for a moment, and read all that it exports.

    Raises:
        BpfError, MissingFeature, MissingPrivilege, KernelError: a step failed.
    """
    cache = bpf_source.cache_folder(config, DaemonConfig().state_dir, facts.euid)
    headers = kernel.bpf_headers(config.headers, cache)
    library = kernel.bpf_library(program.manifest.members)
    with ExitStack() as stack:
        loaded = bcc_client.load(
            bcc_client.request(program, values, headers=headers, library=library),
            python=facts.bpf.python,
            stack=stack,
            timeout_s=config.compile_time / NS_PER_SECOND,
            memory_bytes=config.compile_memory,
        )
        layout = event_layout(program, loaded.tables)
        manifest = program.manifest
        MapReader(kernel, program.name, loaded.tables, manifest.metric, HostNames())
        describe_tables(kernel, program.name, loaded.tables, manifest.answer)
        hides = any(kernel.may_hide_events(one.fd) for one in loaded.programs)
    return loaded, layout, headers, hides


def _config(args: argparse.Namespace) -> BpfConfig:
    return BpfConfig(programs=str(args.program_dir))


def _facts(kernel: Kernel, config: BpfConfig, names: tuple[str, ...] | None) -> KernelFacts:
    return kernel.facts(FactsWanted((), mount=True, bpf=bpf_wanted(config, names)))

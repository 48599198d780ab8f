# SPDX-License-Identifier: Apache-2.0
"""`collectord check`: load, probe and plan, then print the plan. Nothing is opened or written.

The kernel is asked whether it takes the filters of tracepoints, unless --facts tells of another
host.
With --diff it prints how the plan differs from that of the running daemon.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.cli import EXIT_OK
from collectord.cli.output import print_json, say
from collectord.cli.parser import Parser
from collectord.config.load import config_files, load
from collectord.control import client
from collectord.daemon.host_facts import daemon_facts
from collectord.errors import ConfigError, UnsafePath, UsageError
from collectord.folders.walk import read_file
from collectord.plan.build import build
from collectord.plan.difference import difference, document
from collectord.plan.facts_document import read_facts
from collectord.plan.session_draft import blame
from collectord.source.perf_filter import refused_filter
from collectord.text.foreign import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.config.schema import Config
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.kernel.port import Kernel
    from collectord.plan.plan import Plan

# The facts of a host take some tens of KiB.
_FACTS_MAX_BYTES: Final = 16 << 20


def parser() -> Parser:
    """Return the parser of `check`."""
    made = Parser(
        "check",
        ("[--facts FILE]", "[--diff [--socket PATH]]", "[--json]", "[FILE...]"),
        (
            "collectord check",
            "collectord check config/collectord.toml",
            "collectord check --facts facts.json config/collectord.toml",
            "collectord check --diff",
        ),
    )
    made.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        type=Path,
        help="configuration files; keys of a later file override those of an earlier one "
        "(default: /etc/collectord/collectord.toml, then collectord.d/*.toml)",
    )
    made.add_argument(
        "--facts",
        metavar="FILE",
        type=Path,
        help="plan for the host on which `collectord doctor --json` wrote FILE (default: this "
        "host)",
    )
    made.add_argument(
        "--diff",
        action="store_true",
        help="print how the plan differs from that of the running daemon (default: print the "
        "plan)",
    )
    made.add_socket("--diff: ")
    made.add_json("print the plan, or the difference, as JSON (default: text)")
    return made


def run(arguments: Sequence[str], kernel: Kernel) -> int:
    """Print the plan of the given files, or how it differs from the daemon's."""
    args = parser().parse_intermixed_args(arguments)
    if args.diff and args.facts:
        raise UsageError("--diff cannot be combined with --facts", hint="the daemon runs here")
    config = load(args.files or config_files())
    facts = _facts(args.facts, kernel, config)
    running = client.get(args.socket, "/v1/plan") if args.diff else None
    if running is not None:
        # Its sessions follow CPUs that come and go by themselves: a reload compares without these.
        facts = replace(facts, cpus_online=tuple(running["core"]["cpus"]))
    plan = build(config, facts)
    if not args.facts:
        _ask_filters(kernel, config, plan)
    if running is not None:
        _print_difference(running, plan, as_json=args.json)
    elif args.json:
        print_json(plan.to_dict())
    else:
        for line in plan.describe():
            say(line)
    return EXIT_OK


def _ask_filters(kernel: Kernel, config: Config, plan: Plan) -> None:
    """Raise PlanError if this kernel refuses the filter of a tracepoint."""
    configured = {session.name: session for session in config.session}
    for session in plan.sessions:
        with blame(configured[session.name]):
            for tracepoint, text in session.tracepoint_filters:
                reason = kernel.filter_refusal(tracepoint, text)
                if reason:
                    raise refused_filter(str(tracepoint), text, reason)


def _print_difference(running: Mapping[str, Any], plan: Plan, *, as_json: bool) -> None:
    """Print how a plan differs from the daemon's."""
    found = difference(running, document(plan))
    if as_json:
        print_json(plain(found))
    elif found.is_empty:
        say("the daemon runs this plan")
    else:
        for line in found.describe():
            say(line)


def _facts(path: Path | None, kernel: Kernel, config: Config) -> KernelFacts:
    if path is None:
        return daemon_facts(kernel, config, mount=False)
    try:
        return read_facts(read_file(path, _FACTS_MAX_BYTES), path=str(path))
    except OSError as error:
        raise ConfigError(f"cannot read: {error.strerror}", path=str(path)) from error
    except UnsafePath as error:
        raise ConfigError(f"cannot be read: it {error.reason}", path=str(path)) from error

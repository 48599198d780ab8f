# SPDX-License-Identifier: Apache-2.0
"""`collectord check`: load, probe and plan, then print the plan. Nothing is opened or written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.cli import EXIT_OK
from collectord.cli.output import print_json, say
from collectord.cli.parser import Parser
from collectord.config.load import config_files, load
from collectord.daemon.host_facts import host_facts
from collectord.errors import ConfigError, UnsafePath
from collectord.facts.kernel_facts import KernelFacts
from collectord.folders.walk import read_file
from collectord.plan.build import build

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.config.schema import Config
    from collectord.kernel.port import Kernel

# The facts of a host take some tens of KiB.
_FACTS_MAX_BYTES: Final = 16 << 20


def parser() -> Parser:
    """Return the parser of `check`."""
    made = Parser(
        "check",
        ("[--facts FILE]", "[--json]", "[FILE...]"),
        (
            "collectord check",
            "collectord check config/collectord.toml",
            "collectord check --facts facts.json config/collectord.toml",
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
    made.add_json("print the plan as JSON (default: text)")
    return made


def run(arguments: Sequence[str], kernel: Kernel) -> int:
    """Print the plan of the given files."""
    args = parser().parse_intermixed_args(arguments)
    config = load(args.files or config_files())
    plan = build(config, _facts(args.facts, kernel, config))
    if args.json:
        print_json(plan.to_dict())
        return EXIT_OK
    for line in plan.describe():
        say(line)
    return EXIT_OK


def _facts(path: Path | None, kernel: Kernel, config: Config) -> KernelFacts:
    if path is None:
        return host_facts(kernel, config, mount=False)
    try:
        return KernelFacts.from_json(read_file(path, _FACTS_MAX_BYTES), path=str(path))
    except OSError as error:
        raise ConfigError(f"cannot read: {error.strerror}", path=str(path)) from error
    except UnsafePath as error:
        raise ConfigError(f"cannot be read: it {error.reason}", path=str(path)) from error

# SPDX-License-Identifier: Apache-2.0
"""The configuration of `run` and `opener`, which read it again while they run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from collectord.config.load import config_files, load_files

if TYPE_CHECKING:
    from collectord.cli.parser import Parser
    from collectord.config.load import Loaded
    from collectord.config.schema import Config


def add_option(parser: Parser) -> None:
    """Add --config."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="configuration file (default: /etc/collectord/collectord.toml, then "
        "collectord.d/*.toml)",
    )


def read(path: Path | None) -> Loaded:
    """Read the named configuration, or that of the host with the drop-ins that it has now."""
    return load_files([path] if path else config_files())


def log_level(config: Config) -> int:
    """Return the lowest level that is written to the log, as in `logging`."""
    return logging.getLevelNamesMapping()[config.daemon.log_level.upper()]

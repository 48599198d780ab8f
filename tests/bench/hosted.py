# SPDX-License-Identifier: Apache-2.0
"""A recording inside this process, with options that the command line does not offer.

    python -m tests.bench.hosted [--spin] [--segment-age TIME] [--ring SIZE] DIR -- COMMAND...

Prints what `record --json` prints, and the staging counters of the core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from collectord.cli import log, record_config, record_options
from collectord.control import signals
from collectord.daemon import recording
from collectord.daemon.host_facts import host_facts
from collectord.kernel.linux import LinuxKernel
from collectord.ledger.ledger_json import to_json
from collectord.text.units import Nanoseconds
from tests.bench.collectors import EVENT, GENERATOR_CPU

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.config.schema import Config
    from collectord.session.daemon_status import DaemonStatus


@contextmanager
def _spinning() -> Iterator[None]:
    """Provide a thread that wants the interpreter all the time."""
    done = threading.Event()

    def spin() -> None:
        while not done.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


async def _record(config: Config, command: list[str]) -> dict[str, Any]:
    staging: dict[str, int] = {}

    def on_tick(status: DaemonStatus) -> None:
        staging["chunks"] = status.core.chunks
        staging["chunks_free_min"] = status.core.chunks_free_min

    with signals.stop_event() as stop:
        kernel = LinuxKernel()
        result = await recording.record(
            kernel,
            config,
            host_facts(kernel, config, mount=True),
            command=command,
            duration_ns=0,
            on_tick=on_tick,
            stop=stop,
        )
    return {"sessions": [to_json(balance) for balance in result.balances], "staging": staging}


def main() -> int:
    """Record with the given arguments."""
    split = sys.argv.index("--")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spin", action="store_true")
    parser.add_argument("--segment-age", type=Nanoseconds.parse)
    parser.add_argument("--ring", default="8MiB")
    parser.add_argument("directory")
    args = parser.parse_args(sys.argv[1:split])
    options, command = record_options.parse(
        [
            *("-e", EVENT, "-C", GENERATOR_CPU, "-m", args.ring),
            *("--output-dir", args.directory, "--json", *sys.argv[split:]),
        ]
    )
    log.configure(level=logging.WARNING)
    config = record_config.config_of(options, with_command=True)
    if args.segment_age:
        session = replace(config.session[0], segment_age=args.segment_age)
        config = replace(config, session=(session,))
    if args.spin:
        with _spinning():
            result = asyncio.run(_record(config, command))
    else:
        result = asyncio.run(_record(config, command))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

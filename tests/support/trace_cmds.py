# SPDX-License-Identifier: Apache-2.0
"""Stock trace-cmd, as a reader of the program's files."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.newer_tools import with_newer

_FETCH_3_3: Final = Path(__file__).with_name("tracecmd33.sh")
# Lines that `report` prints beside the events.
_BESIDE: Final = re.compile(r"cpus=\d+$|CPU \d+ is empty$|version = ")
# `record` writes all of these and gives up where the kernel refuses it. They choose functions to
# trace, of which nobody here has any, or are the whole machine's: it gets an empty file instead of
# each, in a mount namespace of its own.
_REFUSED: Final = (
    Path("/proc/sys/kernel/ftrace_enabled"),
    Path("/proc/sys/kernel/kptr_restrict"),
)
_REFUSED_OF_INSTANCE: Final = (
    "set_ftrace_pid",
    "set_ftrace_notrace_pid",
    "set_ftrace_filter",
    "set_ftrace_notrace",
    "set_graph_function",
    "set_graph_notrace",
)
# It puts files into its working directory.
_ALONE: Final = """
set -e
cd "$1"
: >../empty
shift
while [ "$1" != -- ]; do
    [ ! -e "$1" ] || mount --bind ../empty "$1"
    shift
done
shift
exec "$@"
"""
_LOSS: Final = re.compile(r"CPU:(\d+) \[(?:(\d+) )?EVENTS DROPPED\]$")


@dataclass(frozen=True, slots=True)
class TraceCmd:
    """One installed version of trace-cmd."""

    version: str
    path: Path

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run it in the C locale."""
        return subprocess.run(
            [self.path, *words],
            env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )

    def _report(self, segment: Path, *words: str) -> list[str]:
        done = self.run("report", *words, "-i", segment)
        if done.returncode or done.stderr.strip() or not done.stdout.startswith("cpus="):
            message = f"trace-cmd {self.version} report {segment}: {done.returncode}: "
            raise AssertionError(message + done.stdout[:400] + done.stderr)
        lines = done.stdout.splitlines()
        return [line for line in lines if line.strip() and not _BESIDE.match(line)]

    def report(self, segment: Path, *words: str) -> list[str]:
        """Return the lines of `trace-cmd report`, one for each event.

        A status other than 0, and any word on standard error, is a failure.
        """
        return [line for line in self._report(segment, *words) if not _LOSS.match(line)]

    def losses(self, segment: Path) -> list[tuple[int, int | None]]:
        """Return CPU, and number if known, of each loss that `trace-cmd report` shows."""
        found = [match for line in self._report(segment) if (match := _LOSS.match(line))]
        return [(int(match[1]), int(match[2]) if match[2] else None) for match in found]

    def stat(self, segment: Path) -> str:
        """Return the CPU statistics of `trace-cmd report --stat`."""
        done = self.run("report", "--stat", "-i", segment)
        assert done.returncode == 0, done.stderr
        return done.stdout


def version_of(path: Path) -> str:
    """Return major and minor version, as "3.3"."""
    # 3.1 tells it with the status of a failure
    done = subprocess.run([path, "version"], capture_output=True, text=True, check=False)
    found = re.search(r"trace-cmd version (\d+\.\d+)", done.stdout)
    assert found, f"{path} version says {done.stdout!r}"
    return found[1]


def all_trace_cmds(system: Path) -> tuple[TraceCmd, ...]:
    """Return the distribution's trace-cmd and 3.3, which is fetched where the former is older."""
    return tuple(TraceCmd(version_of(path), path) for path in with_newer(system, _FETCH_3_3))


def alone(directory: Path, instance: Path) -> list[str]:
    """Return a command prefix for `record` into an instance that protects the machine's state.

    Args:
        directory: working directory; an empty file is put beside it.
        instance: an existing instance of tracefs.
    """
    refused = (*_REFUSED, *(instance / name for name in _REFUSED_OF_INSTANCE))
    shell = ["unshare", "-m", "--propagation", "private", "sh", "-c", _ALONE, "sh"]
    return [*shell, str(directory), *map(str, refused), "--"]

# SPDX-License-Identifier: Apache-2.0
"""The questions of `collectord why`: answers that belong together, with a sentence for rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Step:
    """An answer that a question asks for.

    Attributes:
        title: of its lines.
        answer: its name.
        line: a sentence for a row: `{column}` is the text of a column, and `{where}` the innermost
            calls of the folded stack in `folded`.
        parameters: values, as on the command line.
        above: a row counts only where this column is more than 0; "": each does.
    """

    title: str
    answer: str
    line: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    above: str = ""


QUESTIONS: Final[Mapping[str, tuple[Step, ...]]] = {
    "io": (
        Step(
            "The slowest requests of block devices",
            "slow-io",
            "{time} {comm} ({tid}): {kind} of {bytes} bytes on device {device}, {queue_ms} ms in "
            "the queue and {device_ms} ms in the device",
        ),
        Step(
            "Who was blocked longest, as for a disk",
            "off-cpu",
            "{time} {comm} ({tid}): blocked for {blocked_ms} ms; the longest time off the CPU, "
            "for any reason, was {longest_ms} ms",
            {"order": "blocked"},
            above="blocked_ms",
        ),
        Step(
            "Where it was blocked",
            "off-cpu-stacks",
            "{off_us} us: {where}",
            {"only": "blocked"},
            above="off_us",
        ),
    ),
    "cpu": (
        Step(
            "Who had the CPUs",
            "cpu-share",
            "{comm} ({tid}): {percent_of_all} % of all CPUs, {run_ms} ms in {turns} turns",
        ),
        Step(
            "Who waited longest for a CPU, and who ran instead",
            "run-queue",
            "{time} {comm} ({tid}): waited {longest_ms} ms for CPU {cpu} while {ran_instead} ran; "
            "{waits} waits of {total_ms} ms in all",
        ),
        Step(
            "Interrupts that took most time",
            "irq-time",
            "{time} {kind} {name}: {total_ms} ms in {runs} runs, at most {longest_us} us, mostly "
            "on CPU {most_on_cpu}",
        ),
    ),
    "mem": (
        Step(
            "Processes that the OOM killer ended",
            "oom-kills",
            "{time} {victim} ({pid}): {allocated_by} ({allocated_by_pid}) found no memory",
        ),
        Step(
            "Who had to free memory before it got some",
            "reclaim",
            "{time} {comm} ({tid}): {longest_ms} ms at once; {times} times, {total_ms} ms and "
            "{pages} pages in all",
        ),
        Step(
            "Who had most page faults",
            "page-faults",
            "{comm} ({process}): {times} faults on {pages} pages, most at {hottest_ip}",
        ),
    ),
    "net": (
        Step(
            "Connections that failed",
            "tcp",
            "{time} {comm} {way} {peer}: {failed} of {tries} failed",
            {"order": "failed"},
            above="failed",
        ),
        Step(
            "Connections that sent segments again",
            "tcp",
            "{time} {comm} {way} {peer}: {resent} segments sent again, in {tries} connections",
            {"order": "resent"},
            above="resent",
        ),
        Step(
            "The slowest to connect",
            "tcp",
            "{time} {comm} {way} {peer}: {connect_ms} ms at most, in {tries} connections",
            {"order": "slowest"},
            above="connect_ms",
        ),
    ),
}

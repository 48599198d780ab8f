# SPDX-License-Identifier: Apache-2.0
"""Records of a file as stock perf reads them: by values, and not as it prints them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.perf_tools import Perf

# For `perf script -s`: a line of JSON for each sample.
_SCRIPT: Final = """
import json

def show(name, fields, told):
    own = {key: value for key, value in fields.items() if not key.startswith("common_")}
    sample = [told["sample"][key] for key in ("time", "cpu", "pid", "tid", "ip", "period")]
    print(json.dumps([name, own, told["comm"], sample], default=lambda raw: bytes(raw).hex()))

def trace_unhandled(event_name, context, event_fields_dict, perf_sample_dict):
    show(event_name, event_fields_dict, perf_sample_dict)

def process_event(told):
    show(told["ev_name"], {}, told)
"""
# The records and the call chains in the output of `perf script -D`.
_RECORD: Final = re.compile(
    r"(?:(-?\d+) )?(\d+) 0x[0-9a-f]+ \[0x[0-9a-f]+\]: PERF_RECORD_(\w+)(.*)"
)
_CHAIN: Final = re.compile(r"\.\.\. FP chain: nr:(\d+)")
_IP: Final = re.compile(r"\.+ +\d+: ([0-9a-f]{16})")


class Sample(NamedTuple):
    """A sample; `fields` are those of a tracepoint, of arrays their bytes in hex."""

    event: str
    fields: dict[str, Any]
    comm: str
    time_ns: int
    cpu: int
    pid: int
    tid: int
    ip: int
    period: int


class Dumped(NamedTuple):
    """A record; `text` is what stands behind its type."""

    type: str
    time_ns: int
    text: str
    chain: tuple[int, ...]


def samples(perf: Perf, file: Path, directory: Path) -> list[Sample]:
    """Return the samples of a file, with the values of all fields."""
    script = directory / "samples.py"
    script.write_text(_SCRIPT)
    done = perf.run("script", "--force", "-i", file, "-s", script)
    assert done.returncode == 0, done.stderr
    found = []
    for line in done.stdout.splitlines():
        event, fields, comm, sample = json.loads(line)
        found.append(Sample(event, fields, comm, *sample))
    return found


def dump(perf: Perf, file: Path) -> list[Dumped]:
    """Return the kernel's records of a file, and those that a recorder made like them."""
    done = perf.run("script", "--force", "-D", "-i", file)
    assert done.returncode == 0, done.stderr
    found: list[Dumped] = []
    for line in done.stdout.splitlines():
        record = _RECORD.match(line)
        if record:
            found.append(Dumped(record[3], int(record[2]), record[4].rstrip(), ()))
        elif found:
            address = _IP.match(line)
            if _CHAIN.match(line):
                found[-1] = found[-1]._replace(chain=(-1,))
            elif address and found[-1].chain:
                chain = (*found[-1].chain, int(address[1], 16))
                found[-1] = found[-1]._replace(chain=chain)
    return [one._replace(chain=one.chain[1:]) for one in found]


def living(number: int | None) -> int | None:
    """Return the number of a task, None of one that is gone, which the kernel has as -1."""
    return number if number is not None and 0 <= number < 1 << 31 else None

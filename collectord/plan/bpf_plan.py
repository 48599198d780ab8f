# SPDX-License-Identifier: Apache-2.0
"""The plan of BPF sources: the programs to compile, their values, and the compiler's limits."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from collectord.plan.payload import Payload
from collectord.plan.program_plan import RINGBUF
from collectord.text.units import show_bytes, show_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.plan.program_plan import ProgramPlan


@dataclass(frozen=True, slots=True)
class BpfPlan(Payload):
    """The BPF programs of a session and their requirements.

    Attributes:
        programs: in the order of the configuration; none where the host lacks their requirements.
        cpus: CPUs on which they count and submit events.
        python: interpreter that has bcc.
        headers: kernel headers that the configuration names, "" to find them.
        cache: directory for header trees that are put together.
        compile_ns: time limit for one program.
        compile_bytes: memory that its compiler may map.
        stats: have the kernel count the cost of programs.
        keep_ns: time that a flight recorder is to hold, 0 in a stream.
    """

    programs: tuple[ProgramPlan, ...]
    cpus: tuple[int, ...]
    python: str
    headers: str
    cache: str
    compile_ns: int
    compile_bytes: int
    stats: bool
    keep_ns: int = 0

    has_programs: ClassVar[bool] = True
    fails_alone: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        """See `Payload`."""
        return tuple(program.name for program in self.programs)

    @property
    def programs_run(self) -> tuple[ProgramPlan, ...]:
        """See `Payload`."""
        return self.programs

    @property
    def window_ns(self) -> int:
        """See `Payload`."""
        return self.keep_ns

    @property
    def compile_limit_ns(self) -> int:
        """See `Payload`."""
        return self.compile_ns

    @property
    def program_cpus(self) -> tuple[int, ...]:
        """See `Payload`."""
        return self.cpus if self.programs else ()

    @property
    def counts_costs(self) -> bool:
        """See `Payload`."""
        return self.stats

    def describe(self) -> Iterator[str]:
        """Yield lines for `check`."""
        for one in self.programs:
            given = " ".join(f"{name}={value}" for name, value in one.values.items())
            words = [one.program.path, given]
            words += ["into a BPF ring buffer" for o in one.outputs if o.transport == RINGBUF]
            words += ["into slots that it overwrites"] if one.kept else []
            yield f"program {one.name}: {', '.join(filter(None, words))}"
        if self.programs:
            limits = f"{show_ns(self.compile_ns)} and {show_bytes(self.compile_bytes)}"
            yield f"compiled by bcc under {self.python}, within {limits} each"

    def to_dict(self) -> dict[str, Any]:
        """Return the programs for `check --json`."""
        plan = {
            "programs": [
                {
                    "name": one.name,
                    "path": one.program.path,
                    "sha256": sha256(one.program.source.encode()).hexdigest(),
                    "parameters": one.values,
                    "events": [
                        *(output.event_index for output in one.outputs),
                        *(kept.event_index for kept in one.kept),
                    ],
                    "transports": [output.transport for output in one.outputs],
                }
                for one in self.programs
            ],
            "cpus": list(self.cpus),
            "python": self.python,
            "headers": self.headers,
            "keep_ns": self.keep_ns,
        }
        return {"bpf": plan}

# SPDX-License-Identifier: Apache-2.0
"""Readings of all BPF programs of a session: their cost, their failures, their maps.

They are for a worker thread, once per flush interval; metrics show the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.session.maps.answers import describe_tables, read_tables
from collectord.session.maps.map_metrics import MapReader
from collectord.session.maps.program_status import BpfStatus, FunctionRuns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord.codec.bpf_show import Names
    from collectord.session.maps.table import BpfKernel, TableContents, TableType
    from collectord.source.base import Programs
    from collectord.source.open_program import Counts, OpenProgram

# The errno of a failed submission, by the counter in collectord.h; see `Counts`.
FAILURES: Final = {
    "ENOSPC": "no_space",
    "EBUSY": "busy",
    "ENOENT": "no_ring",
    "other": "refused",
}


@dataclass(frozen=True, slots=True)
class _Reader:
    program: OpenProgram
    maps: MapReader
    answers: Mapping[str, TableType]


class BpfReader:
    """Reads the programs of a session.

    Args:
        kernel: reads maps and counters.
        session: the session's name.
        source: has the session's programs.
        names: of interfaces and devices.
        stats: whether the kernel counts runs and run time (`bpf_calls.enable_stats`).

    Raises:
        BpfError: a manifest names a table or field that its program does not have.
        KernelError: the sizes of a map cannot be read.
    """

    def __init__(
        self, kernel: BpfKernel, session: str, source: Programs, names: Names, *, stats: bool
    ) -> None:
        self._kernel = kernel
        self.session = session
        self._source = source
        self._stats = stats
        self._readers = [
            _Reader(
                program,
                MapReader(
                    kernel,
                    program.plan.name,
                    program.loaded.tables,
                    program.plan.program.manifest.metric,
                    names,
                ),
                describe_tables(
                    kernel,
                    program.plan.name,
                    program.loaded.tables,
                    program.plan.program.manifest.answer,
                ),
            )
            for program in source.programs
        ]

    @property
    def has_live_figures(self) -> bool:
        """Whether programs have maps that are shown, or run time that counts as cost.

        What else there is, losses at submitting and runs that were skipped, is in the ledger too.
        """
        manifests = [reader.program.plan.program.manifest for reader in self._readers]
        return self._stats or any(one.metric or one.answer for one in manifests)

    def read(self) -> tuple[BpfStatus, ...]:
        """Read all programs. One thread at a time.

        Raises:
            KernelError: a map or a counter cannot be read. The next reading has the growth of
                counters in the meantime.
        """
        return tuple(
            BpfStatus(
                session=self.session,
                program=reader.program.plan.name,
                functions=tuple(self._runs(reader.program)),
                submit_failures=failures(self._source.counts(reader.program).values()),
                metrics=reader.maps.read(),
                tables=reader.maps.truncated,
            )
            for reader in self._readers
        )

    def read_answers(self) -> dict[str, dict[str, TableContents]]:
        """Read the tables that the `[[answer]]`s of each program need, by program and table.

        It is for the session's end: programs count no more, and their maps are still open.

        Raises:
            KernelError: a map cannot be read.
        """
        return {
            reader.program.plan.name: read_tables(self._kernel, reader.answers)
            for reader in self._readers
            if reader.answers
        }

    def _runs(self, program: OpenProgram) -> Iterable[FunctionRuns]:
        for function in program.loaded.programs:
            info = self._kernel.program_info(function.fd)
            yield FunctionRuns(
                function=function.function,
                id=info.id,
                runs=info.run_count if self._stats else None,
                run_time_ns=info.run_time_ns if self._stats else None,
                recursion_misses=info.recursion_misses,
            )


def failures(counts: Iterable[Counts]) -> dict[str, int] | None:
    """Return the failed submissions on all CPUs, by errno; None if the program counts none."""
    each = tuple(counts)
    if not each:
        return None
    return {name: sum(getattr(one, field) for one in each) for name, field in FAILURES.items()}

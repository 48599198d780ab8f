# SPDX-License-Identifier: Apache-2.0
"""The names for the samples of one file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.reader.embedded_db import literal
from collectord.reader.symbols import kernel_lists, perf_map
from collectord.reader.symbols.address_space_reader import numbers, read_spaces
from collectord.reader.symbols.symbolizer import Symbolizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectord.reader.event_file import EventFile
    from collectord.reader.symbols.address_space_reader import Ask
    from collectord.reader.symbols.symbol_cache import SymbolCache

# A sample's addresses, from the innermost on: the one alone, if there is no chain.
CHAIN: Final = "coalesce(callchain, CASE WHEN ip IS NOT NULL THEN [ip] END) AS chain"


class SampleNames(NamedTuple):
    """Names for the addresses in samples, and the pieces of a statement that reads the samples.

    Where addresses of a process change their meaning, samples before and behind are told apart:
    `FROM samples` after `head` has the samples as `s`, and `since` is the epoch of each.

    Attributes:
        symbolizer: gives the names.
        knows_kernel: the kernel's functions are known.
        left_out: mappings that were too many to be remembered.
        head: SQL in front of SELECT.
        since: SQL of a column.
        samples: SQL behind FROM.
    """

    symbolizer: Symbolizer
    knows_kernel: bool
    left_out: int
    head: str
    since: str
    samples: str


def of_events(names: Iterable[str]) -> str:
    """Return SQL of a condition: samples are of events with these names."""
    return f"event IN ({', '.join(map(literal, names))})"


def names_of(
    file: EventFile,
    ask: Ask,
    pids: Iterable[int],
    *,
    cache: SymbolCache | None,
    shown: Callable[[str], str],
) -> SampleNames:
    """Return the names for the samples of some processes.

    Args:
        file: of the samples.
        ask: of all its records, not only those of a time.
        pids: the processes.
        cache: of symbols.
        shown: makes unprintable characters visible.
    """
    spaces = read_spaces(ask, pids)
    kernel = kernel_lists.symbols_of(file, ask)
    is_live = kernel_lists.is_of_this_boot(file)
    symbolizer = Symbolizer(
        spaces,
        kernel,
        file.build_ids(),
        partial(perf_map.of_segment, segment=file.path, is_live=is_live),
        is_live=is_live,
        cache=cache,
        shown=shown,
    )
    head, since, samples = "", "NULL", "samples s"
    changes = [*spaces.changes()]
    if changes:
        of_pids, times = zip(*changes, strict=True)
        head = (
            f"WITH epochs AS (SELECT unnest({numbers(of_pids)}::INTEGER[]) AS of_pid, "
            f"unnest({numbers(times)}::UBIGINT[]) AS since_ns) "
        )
        since = "since_ns"
        samples = "samples s ASOF LEFT JOIN epochs ON s.pid = of_pid AND s.mono_ns >= since_ns"
    return SampleNames(symbolizer, len(kernel) > 0, spaces.left_out, head, since, samples)

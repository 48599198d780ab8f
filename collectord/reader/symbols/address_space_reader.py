# SPDX-License-Identifier: Apache-2.0
"""The address spaces of the processes in a perf.data, by its records of tasks and mappings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from collectord.reader.symbols.address_spaces import AddressSpaces, Mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    # Returns the rows of a statement.
    Ask = Callable[[str], Iterable[tuple[Any, ...]]]

_FORK: Final = 0
_EXEC: Final = 1
_FORKED: Final = "what = 'fork' AND parent_pid <> pid"
# Among records of one time a process begins first, then its program, then what it maps.
_RECORDS: Final = f"""
SELECT coalesce(mono_ns, 0::UBIGINT) AS since_ns, {_FORK} AS kind, pid, parent_pid AS parent,
    NULL AS begins, NULL AS size, NULL AS at, NULL AS path, NULL AS build, NULL AS number
FROM tasks WHERE {_FORKED} AND pid IN (FROM wanted)
UNION ALL
SELECT coalesce(mono_ns, 0::UBIGINT), {_EXEC}, pid, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM tasks WHERE what = 'exec' AND pid IN (FROM wanted)
UNION ALL
SELECT coalesce(mono_ns, 0::UBIGINT), {_EXEC} + 1, pid, NULL, address, length, file_offset,
    coalesce(file, ''), coalesce(hex(build_id), ''), coalesce(inode, 0::UBIGINT)
FROM mappings WHERE pid IN (FROM wanted) AND address IS NOT NULL AND length IS NOT NULL
    AND file_offset IS NOT NULL
ORDER BY since_ns, kind
"""  # noqa: S608  # of this module
# Processes that are read at most: only damaged records tell of more.
_PIDS_MAX: Final = 1 << 20


def read_spaces(ask: Ask, pids: Iterable[int]) -> AddressSpaces:
    """Return the address spaces of processes, and of those that they were forked from.

    Args:
        ask: of all records of the file, not only those of a time.
        pids: the processes.
    """
    parents: dict[int, set[int]] = {}
    for pid, parent in ask(
        f"SELECT DISTINCT pid, parent_pid FROM tasks WHERE {_FORKED} LIMIT {_PIDS_MAX}"  # noqa: S608
    ):
        parents.setdefault(pid, set()).add(parent)
    wanted = {*pids}
    left = [*wanted]
    while left:
        for parent in parents.get(left.pop(), ()):
            if parent not in wanted:
                wanted.add(parent)
                left.append(parent)
    spaces = AddressSpaces()
    if not wanted:
        return spaces
    names = f"WITH wanted AS (SELECT unnest({numbers(wanted)}::INTEGER[]))"
    for since_ns, kind, pid, parent, *mapped in ask(names + _RECORDS):
        if kind == _FORK:
            spaces.fork(since_ns, pid, parent)
        elif kind == _EXEC:
            spaces.execute(since_ns, pid)
        else:
            begin, length, offset, path, build_id, inode = mapped
            code = bytes.fromhex(build_id)
            spaces.map(since_ns, pid, Mapping(begin, begin + length, offset, path, code, inode))
    return spaces


def numbers(values: Iterable[int]) -> str:
    """Return numbers as SQL that is short to parse, however many they are."""
    return f"string_split('{','.join(map(str, values))}', ',')"

# SPDX-License-Identifier: Apache-2.0
"""The answer of a BPF manifest that counts stacks, with the names of their addresses."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from collectord.model import KERNEL_MARK
from collectord.session.maps.table import Picker, known_stacks
from collectord.source.bcc_client import KERNEL
from collectord.text.foreign import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from collectord.programs.program_manifest import AnswerConfig
    from collectord.session.maps.table import TableContents

    # Returns names of addresses in a process, or in the kernel as process -1: a list per request.
    Symbols = Callable[[Sequence[tuple[int, Sequence[int]]]], Sequence[Sequence[str]]]

_LOST: Final = "[lost stack]"
_NO_STACK: Final = -14  # -EFAULT: there was no stack, e.g. of a kernel thread's user mode


@dataclass(frozen=True, slots=True)
class FoldedAnswer:
    """Stacks and their counts in `unit`: frames from the outermost in, highest count first."""

    title: str
    unit: str
    stacks: tuple[tuple[tuple[str, ...], int], ...]
    complete: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the answer for `--json`."""
        return {
            "kind": "folded",
            "title": self.title,
            "unit": self.unit,
            "stacks": [{"frames": list(frames), "value": value} for frames, value in self.stacks],
            "complete": self.complete,
        }


def folded(
    config: AnswerConfig, contents: TableContents, stacks: TableContents, symbols: Symbols
) -> FoldedAnswer:
    """Make the answer from the contents of its table and of that of the stacks.

    Args:
        config: the answer as the manifest declares it.
        contents: of its table.
        stacks: likewise.
        symbols: names addresses; called once.
    """
    table = contents.type
    known = dict(known_stacks(stacks))
    chosen = [config.pid, config.kernel_stack, config.user_stack]
    pick = Picker(
        table.key,
        [table.key_field(name) for name in (*filter(None, chosen), *config.frames_first)],
    )
    given = sum(map(bool, chosen))
    rows = []
    wanted: dict[int, dict[int, None]] = defaultdict(dict)
    for key, value in contents.positive(table.number(config.value)):
        picked = pick(key)
        numbers = iter(picked[:given])
        pid, kernel, user = (int(next(numbers)) if name else None for name in chosen)  # type: ignore[arg-type]  # is_number
        row = _Row(
            first=tuple(map(str, picked[given:])),
            pid=pid or 0,
            user=_stack(user, known),
            kernel=_stack(kernel, known),
            value=value,
        )
        wanted[row.pid].update(dict.fromkeys(row.user or ()))
        wanted[KERNEL].update(dict.fromkeys(row.kernel or ()))
        rows.append(row)
    named = _named(wanted, symbols)
    sums: dict[tuple[str, ...], int] = defaultdict(int)
    for row in rows:
        sums[tuple(_frames(row, named))] += row.value
    return FoldedAnswer(
        title=config.title,
        unit=config.unit,
        stacks=tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0]))),
        complete=contents.entries.complete and stacks.entries.complete,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """An entry with its stacks; a stack that was lost is None."""

    first: tuple[str, ...]
    pid: int
    user: tuple[int, ...] | None
    kernel: tuple[int, ...] | None
    value: int


def _stack(number: int | None, known: Mapping[int, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return a stack's addresses by its id, which is minus an errno if it could not be kept."""
    if number is None:
        return ()
    signed = (number + (1 << 31)) % (1 << 32) - (1 << 31)  # an int, whatever type holds it
    return () if signed == _NO_STACK else known.get(signed)


def _named(
    wanted: Mapping[int, Mapping[int, None]], symbols: Symbols
) -> dict[tuple[int, int], str]:
    requests = [(pid, tuple(addresses)) for pid, addresses in wanted.items() if addresses]
    if not requests:
        return {}
    return {
        (pid, address): name or f"{address:#x}"
        for (pid, addresses), names in zip(requests, symbols(requests), strict=True)
        for address, name in zip(addresses, names, strict=True)
    }


def _frames(row: _Row, named: Mapping[tuple[int, int], str]) -> Iterator[str]:
    yield from map(_frame, row.first)
    if row.user is None:
        yield _LOST
    else:
        yield from (_frame(named[row.pid, address]) for address in reversed(row.user))
    if row.kernel is None:
        yield _LOST + KERNEL_MARK
    else:
        for address in reversed(row.kernel):
            yield _frame(named[KERNEL, address]) + KERNEL_MARK


def _frame(name: str) -> str:
    """Return a frame's text, without frame separators and terminal control characters."""
    return visible(name).replace(";", ":")

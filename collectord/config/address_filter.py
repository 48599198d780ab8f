# SPDX-License-Identifier: Apache-2.0
"""Address filters: where an AUX event traces, in the user's and in the kernel's spelling.

    filter ADDRESS/SIZE[@FILE]      trace only there
    start ADDRESS[@FILE]            begin to trace there
    stop ADDRESS[@FILE]             end to trace there
    tracestop ADDRESS/SIZE[@FILE]   end to trace anywhere there

Several are separated by a comma or a space. With a file, addresses are offsets in it; without,
they are addresses of the kernel. PERF_EVENT_IOC_SET_FILTER knows the last as a `stop` with a size
(perf_event_parse_addr_filter() in kernel/events/core.c).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from collectord.errors import UsageError

# Whether an action takes a region, and its name in the kernel, by its name here.
_ACTIONS: Final = {
    "filter": (True, "filter"),
    "start": (False, "start"),
    "stop": (False, "stop"),
    "tracestop": (True, "stop"),
}
_ONE: Final = re.compile(
    r"(?P<action>\w+)\s+(?P<address>[^\s,/@]+)(?:\s*/\s*(?P<size>[^\s,@]*))?"
    r"(?:\s*@\s*(?P<file>[^\s,]*))?(?P<rest>[\s,]+|$)",
    re.ASCII,
)
_BETWEEN: Final = re.compile(r"[\s,]*")
_ADDRESS_BITS: Final = 64
_HINT: Final = "write ACTION ADDRESS/SIZE@FILE; actions are filter, start, stop and tracestop"
_SYMBOL_HINT: Final = "give a number; `nm -S FILE` tells a function's address and size"


@dataclass(frozen=True, slots=True)
class AddressFilter:
    """One address filter.

    Attributes:
        action: the user's name of the action.
        size: bytes of the region, 0 for one address.
        file: file that the address is an offset in, "" for an address of the kernel.
    """

    action: str
    address: int
    size: int = 0
    file: str = ""

    def __str__(self) -> str:
        """Return the filter as the kernel takes it."""
        size = f"/{self.size:#x}" if self.size else ""
        file = f"@{self.file}" if self.file else ""
        return f"{_ACTIONS[self.action][1]} {self.address:#x}{size}{file}"


def parse(text: str) -> tuple[AddressFilter, ...]:
    """Parse one filter or several.

    Raises:
        UsageError: there is none, or one is malformed.
    """
    filters = []
    at = _skip(text, 0)
    while at < len(text):
        match = _ONE.match(text, at)
        if match is None:
            raise UsageError(f"{text[at:]!r} is not an address filter", hint=_HINT)
        filters.append(_filter(match))
        at = _skip(text, match.end())
    if not filters:
        raise UsageError("an address filter is empty", hint=_HINT)
    return tuple(filters)


def _skip(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return at if match is None else match.end()


def _filter(match: re.Match[str]) -> AddressFilter:
    action, file = match["action"], match["file"]
    if action not in _ACTIONS:
        raise UsageError(f"{action!r} is not an action of an address filter", hint=_HINT)
    wants_size = _ACTIONS[action][0]
    address = _number(match["address"], "address")
    size = 0 if match["size"] is None else _number(match["size"], "size")
    problem, hint = "", _HINT
    if wants_size and not size:
        problem, hint = f"{action} needs a size", f"write {action} {match['address']}/SIZE"
    elif size and not wants_size:
        problem = f"{action} needs one address, not a region"
        hint = "tracestop stops anywhere in a region" if action == "stop" else _HINT
    elif address + max(size, 1) > 1 << _ADDRESS_BITS:
        problem = f"{action} {match['address']} ends beyond {_ADDRESS_BITS} bits"
    elif file is not None and not file.startswith("/"):
        problem, hint = (
            f"{file!r} is not an absolute path",
            "the kernel looks files up from the root",
        )
    if problem:
        raise UsageError(f"address filter: {problem}", hint=hint)
    return AddressFilter(action, address, size, file or "")


def _number(word: str, what: str) -> int:
    try:
        number = int(word, 0)
    except ValueError:
        number = -1
    if number < 0 or "_" in word:
        message = f"{what} {word!r} of an address filter is not a number"
        raise UsageError(message, hint=_SYMBOL_HINT)
    return number

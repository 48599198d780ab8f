# SPDX-License-Identifier: Apache-2.0
"""Probes of a tracefs source: the kind and place of each definition."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

import msgspec

from collectord.errors import UsageError

# Limit for groups and events: MAX_EVENT_NAME_LEN 64 of include/linux/trace_events.h, NUL included.
NAME_MAX: Final = 63
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class ProbeKind(StrEnum):
    """The kind of place of a probe."""

    KPROBE = "kprobe"
    KRETPROBE = "kretprobe"
    UPROBE = "uprobe"
    URETPROBE = "uretprobe"
    EPROBE = "eprobe"


# First letter of the definition.
_LETTER: Final[dict[ProbeKind, str]] = {
    ProbeKind.KPROBE: "p",
    ProbeKind.KRETPROBE: "r",
    ProbeKind.UPROBE: "p",
    ProbeKind.URETPROBE: "r",
    ProbeKind.EPROBE: "e",
}
# Without these forms the kernel would take a definition for one of another kind.
_PLACE: Final[dict[ProbeKind, tuple[re.Pattern[str], str]]] = {
    ProbeKind.KPROBE: (re.compile(r"[^\s/]+"), "SYMBOL[+OFFSET]"),
    ProbeKind.KRETPROBE: (re.compile(r"[^\s/]+"), "SYMBOL"),
    ProbeKind.UPROBE: (re.compile(r"/\S+:0x[0-9A-Fa-f]+\S*"), "/PATH:0xOFFSET"),
    ProbeKind.URETPROBE: (re.compile(r"/\S+:0x[0-9A-Fa-f]+\S*"), "/PATH:0xOFFSET"),
    ProbeKind.EPROBE: (re.compile(r"[^\s/.]+[./][^\s/.]+"), "SYSTEM.EVENT"),
}


class Probe(msgspec.Struct, frozen=True):
    """A tracepoint to make, in the terms of the kernel's kprobetrace, uprobetracer, eprobetrace.

    Attributes:
        kind: kind of its place.
        name: the event's name in the session's group.
        place: `SYMBOL[+OFFSET]`, `/PATH:0xOFFSET` (in the file, not in memory), `SYSTEM.EVENT`.
        arguments: values to fetch, such as "path=+0(%di):ustring flags=%si:x32".
        filter: filter over the fields of its own event; of an eprobe over those of the event that
            it is placed on.

    Raises:
        UsageError: a name, place or argument that is invalid, or would be another line.
    """

    kind: ProbeKind
    name: str
    place: str
    arguments: str = ""
    filter: str = ""

    def __post_init__(self) -> None:
        pattern, form = _PLACE[self.kind]
        if _NAME.fullmatch(self.name) is None or len(self.name) > NAME_MAX:
            raise self.unusable(f"{self.name!r} is not a name", f"a C name, up to {NAME_MAX} long")
        if pattern.fullmatch(self.place) is None:
            raise self.unusable(f"{self.place!r} is not a place", f"write {form}")
        text = f"{self.place} {self.arguments} {self._condition}"
        if not text.isprintable() or "#" in text or ";" in text:
            raise self.unusable("a definition is one line", "without # and ;")

    @property
    def event_filter(self) -> str:
        """The filter that its event gets; an eprobe's is part of its definition."""
        return "" if self.kind is ProbeKind.EPROBE else self.filter

    def definition(self, group: str) -> str:
        """Return the line that makes it; single spaces separate words, as in the kernel's log."""
        event = f"{_LETTER[self.kind]}:{group}/{self.name}"
        return " ".join(f"{event} {self.place} {self.arguments} {self._condition}".split())

    @property
    def _condition(self) -> str:
        return f"if {self.filter}" if self.filter and not self.event_filter else ""

    def unusable(self, problem: str, hint: str) -> UsageError:
        """Return the error for an invalid definition."""
        return UsageError(f"{self.kind} {self.name}: {problem}", hint=hint)

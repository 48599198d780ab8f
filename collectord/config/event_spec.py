# SPDX-License-Identifier: Apache-2.0
"""perf's event syntax (man perf-list): text to a tree, without looking at any kernel.

    cycles:u   LLC-load-misses   page-faults   r1a8   sched:sched_*   mem:0x1000/4:rw:u
    cpu/event=0x3c,umask=1/u   pmu//   {cycles,instructions}:u   a,b,{c,d}   cycles|cpu-clock
    pmu/aux-action=start-paused/   sched:sched_switch/aux-action=resume/   cs/aux-action=pause/u

The choice with a bar is ours: the first that the host has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from collectord.codec.event_names import find_named
from collectord.codec.perf_attr import PRECISE_IP_MAX, AuxAction
from collectord.codec.tracepoint import Tracepoint
from collectord.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.codec.event_names import NamedEvent

ALLOWED_MODIFIERS: Final = (
    "u user, k kernel, h hypervisor, G guest, H host, I not idle, "
    "p precise (up to ppp), D pinned, e exclusive"
)
_MODIFIER_LETTERS: Final = frozenset("ukhGHIpDe")
_U64: Final = 1 << 64

_TRACEPOINT_PART: Final = re.compile(r"[A-Za-z0-9_*?\[\]!-]+", re.ASCII)
_TRACEPOINT_SYSTEM: Final = re.compile(r"[A-Za-z0-9_*?\[\]!]+", re.ASCII)
_ALIAS: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)
_RAW: Final = re.compile(r"r([0-9a-fA-F]{1,16})", re.ASCII)
_PMU: Final = re.compile(r"([A-Za-z0-9_.-]+)/([^/]*)/:?(\w*)", re.ASCII)
_BREAKPOINT: Final = re.compile(
    r"mem:(0[xX][0-9a-fA-F]+|\d+)(?:/(\d+))?(?::([^:]*))?(?::([^:]*))?", re.ASCII
)
_BREAKPOINT_LENGTHS: Final = (1, 2, 4, 8)
# The term that any event takes, whatever its PMU, and its values.
_AUX_ACTION: Final = "aux-action"
AUX_ACTIONS: Final = {
    "start-paused": AuxAction.START_PAUSED,
    "pause": AuxAction.PAUSE,
    "resume": AuxAction.RESUME,
}
_ACTING: Final = re.compile(r"([^/]+)/aux-action=([^,/]*)/:?(\w*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Modifiers:
    """Modifiers after the colon; privilege levels are those asked for, none of them means all."""

    user: bool = False
    kernel: bool = False
    hv: bool = False
    guest: bool = False
    host: bool = False
    no_idle: bool = False
    precise: int = 0
    pinned: bool = False
    exclusive: bool = False

    @property
    def any_level(self) -> bool:
        """Whether a privilege level is named."""
        return self.user or self.kernel or self.hv

    def merged(self, other: Modifiers) -> Modifiers:
        """Return both together, as a group's modifiers are added to those of its events."""
        return Modifiers(
            user=self.user or other.user,
            kernel=self.kernel or other.kernel,
            hv=self.hv or other.hv,
            guest=self.guest or other.guest,
            host=self.host or other.host,
            no_idle=self.no_idle or other.no_idle,
            precise=max(self.precise, other.precise),
            pinned=self.pinned or other.pinned,
            exclusive=self.exclusive or other.exclusive,
        )


@dataclass(frozen=True, slots=True)
class Raw:
    """A CPU's own event code, `rHEX`."""

    config: int


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A breakpoint `mem:addr[/len][:access]`; access is a subset of "rwx", length in bytes."""

    address: int
    length_bytes: int
    access: str


@dataclass(frozen=True, slots=True)
class PmuEvent:
    """An event `pmu/term,term=value/`; a term without value has None."""

    pmu: str
    terms: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Alias:
    """A bare name that is in no table: perhaps an alias that a PMU of the host defines."""

    name: str


EventBody: TypeAlias = "NamedEvent | Raw | Tracepoint | Breakpoint | PmuEvent | Alias"


@dataclass(frozen=True, slots=True)
class EventSpec:
    """One event with its spelling.

    Attributes:
        text: its own text, modifiers included.
        body: the event itself.
        modifiers: its own and its group's.
        aux_action: bits of `AuxAction`.
        letters: its own modifiers as they are spelt.
    """

    text: str
    body: EventBody
    modifiers: Modifiers = field(default_factory=Modifiers)
    aux_action: int = 0
    letters: str = ""


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events that are scheduled together if `braced`, else one event; `text` is its own text."""

    events: tuple[EventSpec, ...]
    braced: bool = False
    text: str = field(default="", compare=False)


# Alternatives, of which the first that the host has is used.
EventChoices = tuple[tuple[EventGroup, ...], ...]


def events_of(choices: EventChoices) -> Iterator[EventSpec]:
    """Yield all events of all alternatives."""
    return (event for choice in choices for group in choice for event in group.events)


def parse(text: str) -> tuple[EventGroup, ...]:
    """Parse a comma-separated list of events and groups.

    Raises:
        UsageError: it does not parse, or a modifier is unknown.
    """
    groups = []
    for part in _split(text, ","):
        if part.startswith("{"):
            inner, brace, rest = part[1:].rpartition("}")
            if not brace or (rest and not rest.startswith(":")):
                raise UsageError(f"the group has no end: {part!r}")
            shared = _modifiers(rest[1:], part) if rest else Modifiers()
            events = tuple(
                replace(event, modifiers=event.modifiers.merged(shared))
                for event in (_event(item) for item in _split(inner, ","))
            )
            groups.append(EventGroup(events, braced=True, text=part))
        else:
            groups.append(EventGroup((_event(part),), text=part))
    return tuple(groups)


def parse_choices(text: str) -> EventChoices:
    """Parse a list with alternatives, "first|second": the first that the host has is used.

    Raises:
        UsageError: as `parse`.
    """
    return tuple(parse(choice) for choice in _split(text, "|"))


def spell(choices: EventChoices) -> str:
    """Return the text from which `parse_choices` makes these events."""
    return "|".join(",".join(group.text for group in choice) for choice in choices)


def parse_one(text: str) -> EventSpec:
    """Parse one event, without alternatives.

    Raises:
        UsageError: as `parse`, or there are several.
    """
    events = tuple(events_of(parse_choices(text)))
    if len(events) != 1:
        raise UsageError(f"{text!r} is not one event")
    return events[0]


def _split(text: str, separator: str) -> Iterator[str]:
    """Split at separators outside of braces and of a PMU's slashes; parts are never empty."""
    depth = 0
    in_terms = False
    parts = [""]
    item = ""  # the present event's text so far
    for char in text:
        # The slash of a breakpoint precedes its length and does not open terms.
        if char == "/" and not item.lstrip().startswith("mem:"):
            in_terms = not in_terms
        if char in "{}":
            depth += 1 if char == "{" else -1
        if char in "{,|" and not in_terms:
            item = ""
        else:
            item += char
        if char == separator and depth == 0 and not in_terms:
            parts.append("")
        else:
            parts[-1] += char
    if depth or in_terms:
        what = "brace" if depth else "slash"
        raise UsageError(f"unbalanced {what} in {text!r}")
    for part in parts:
        if not part.strip():
            raise UsageError(f"an event is missing in {text!r}")
        yield part.strip()


def _event(text: str) -> EventSpec:
    if text.startswith("{"):
        raise UsageError(f"a group within a group: {text!r}")
    if text.startswith("mem:"):
        return _breakpoint(text)
    if "/" in text:
        return _with_slashes(text)
    name, colon, rest = text.partition(":")
    letters = rest if colon else None
    known = find_named(name)
    if known is not None:
        return _modified(text, known, letters)
    raw = _RAW.fullmatch(name)
    if raw is not None:
        return _modified(text, Raw(int(raw[1], 16)), letters)
    # No tracepoint is called "u" or "pp": then it is an alias with modifiers.
    if colon and not set(rest) <= _MODIFIER_LETTERS:
        return _tracepoint(text, name, rest)
    if _ALIAS.fullmatch(name) is None:
        raise UsageError(f"not an event: {text!r}", hint="see `collectord list`")
    return _modified(text, Alias(name), letters)


def _modified(text: str, body: EventBody, letters: str | None) -> EventSpec:
    """Return an event with its modifiers; `letters` is None where it has no colon for them."""
    if letters is None:
        return EventSpec(text, body)
    return EventSpec(text, body, _modifiers(letters, text), letters=letters)


def _with_slashes(text: str) -> EventSpec:
    """Parse a PMU's event, or one of another kind with the one term that it takes."""
    acting = _ACTING.fullmatch(text)
    if acting is None or (":" not in acting[1] and find_named(acting[1]) is None):
        return _pmu_event(text)
    base = acting[1] + (f":{acting[3]}" if acting[3] else "")
    return replace(_event(base), text=text, aux_action=_aux_action(acting[2], text))


def _tracepoint(text: str, system: str, rest: str) -> EventSpec:
    name, colon, letters = rest.partition(":")
    if _TRACEPOINT_SYSTEM.fullmatch(system) is None or _TRACEPOINT_PART.fullmatch(name) is None:
        raise UsageError(f"not an event: {text!r}", hint="see `collectord list`")
    return _modified(text, Tracepoint(system, name), letters if colon else None)


def _breakpoint(text: str) -> EventSpec:
    syntax = "mem:ADDRESS[/LENGTH][:rwx][:MODIFIERS]"
    match = _BREAKPOINT.fullmatch(text)
    if match is None:
        raise UsageError(f"not a breakpoint: {text!r}", hint=syntax)
    address = int(match[1], 0)
    access = match[3] or "rw"
    letters = match[4]
    # `mem:ADDR:u`: the access is left out and the modifiers are not.
    if letters is None and match[3] and set(match[3]) <= _MODIFIER_LETTERS:
        access, letters = "rw", match[3]
    if not set(access) <= set("rwx") or len(set(access)) != len(access):
        raise UsageError(f"unknown access {access!r} in {text!r}", hint=syntax)
    if "x" in access and len(access) > 1:
        raise UsageError(f"{text!r}: x cannot be combined with r or w")
    # perf's defaults: four bytes of data; execution takes sizeof(long) on every 64-bit kernel.
    length = int(match[2]) if match[2] else 8 if access == "x" else 4
    if length not in _BREAKPOINT_LENGTHS:
        allowed = "1, 2, 4 or 8 bytes"
        raise UsageError(f"breakpoint length {length} in {text!r}", hint=allowed)
    if address >= _U64:
        raise UsageError(f"address larger than 64 bits in {text!r}")
    return _modified(text, Breakpoint(address, length, access), letters)


def _pmu_event(text: str) -> EventSpec:
    match = _PMU.fullmatch(text)
    if match is None:
        raise UsageError(f"not a PMU event: {text!r}", hint="PMU/TERM=VALUE,.../MODIFIERS")
    terms: list[tuple[str, str | None]] = []
    for item in match[2].split(",") if match[2].strip() else ():
        name, equals, value = item.partition("=")
        if not name.strip() or (equals and not value.strip()):
            raise UsageError(f"not a term: {item!r} in {text!r}", hint="TERM=VALUE")
        terms.append((name.strip(), value.strip() if equals else None))
    action = AuxAction(0)
    for name, value in terms:
        if name == _AUX_ACTION:
            action |= _aux_action(value or "", text)
    own = tuple(term for term in terms if term[0] != _AUX_ACTION)
    found = _modified(text, PmuEvent(match[1], own), match[3] or None)
    return replace(found, aux_action=action)


def _aux_action(value: str, text: str) -> AuxAction:
    action = AUX_ACTIONS.get(value)
    if action is None:
        raise UsageError(f"unknown aux-action {value!r} in {text!r}", hint=", ".join(AUX_ACTIONS))
    return action


def _modifiers(letters: str, text: str) -> Modifiers:
    counts = {letter: letters.count(letter) for letter in letters}
    for letter, count in counts.items():
        if letter not in _MODIFIER_LETTERS:
            raise UsageError(f"unknown modifier {letter!r} in {text!r}", hint=ALLOWED_MODIFIERS)
        if count > (PRECISE_IP_MAX if letter == "p" else 1):
            raise UsageError(
                f"modifier {letter!r} is repeated in {text!r}", hint=ALLOWED_MODIFIERS
            )
    if not letters:
        raise UsageError(f"there is no modifier after the colon of {text!r}")
    return Modifiers(
        user="u" in counts,
        kernel="k" in counts,
        hv="h" in counts,
        guest="G" in counts,
        host="H" in counts,
        no_idle="I" in counts,
        precise=counts.get("p", 0),
        pinned="D" in counts,
        exclusive="e" in counts,
    )

# SPDX-License-Identifier: Apache-2.0
"""The difference between two plans, as documents: those that `Plan.to_dict` makes.

A daemon shows its plan in this form, so that another process can compare it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from collectord.plan.settings import need_restart
from collectord.text.foreign import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from collectord.plan.plan import Plan

    Document = Mapping[str, Any]

# These may differ although a session is the same: remarks, and the limits of all segments.
_REMARKS: Final = frozenset({"notes", "degraded", "imposed"})
_COMMON: Final = "retention"
_MEASURED: Final = "transport_reason"  # it may have a figure
_SHOWN_MAX: Final = 8
_VALUE_CHARS: Final = 60


class Kind(StrEnum):
    """The kind of a session's difference."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Change:
    """A value that differs; None stands for one that is absent.

    Attributes:
        path: its place in the document, such as `events[0].filter`.
    """

    path: str
    old: Any
    new: Any

    def describe(self) -> str:
        """Return it in words."""
        return f"{self.path}: {_short(self.old)} -> {_short(self.new)}"


@dataclass(frozen=True, slots=True)
class SessionDifference:
    """A session of either plan.

    Attributes:
        changes: what differs, for a session that is in both.
    """

    name: str
    source: str
    kind: Kind
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two plans.

    Attributes:
        sessions: all of both plans, those of the old one first.
        core: what differs in the core, whose threads and memory all sessions share.
        settings: what differs in the other settings, by their keys.
        needs_restart: the keys of those that only a restart applies.
    """

    sessions: tuple[SessionDifference, ...]
    core: tuple[Change, ...]
    settings: tuple[Change, ...] = ()
    needs_restart: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the plans are the same."""
        same = all(one.kind is Kind.UNCHANGED for one in self.sessions)
        return same and not self.core and not self.settings

    def of(self, kind: Kind) -> frozenset[tuple[str, str]]:
        """Return the name and source of each session with a difference of this kind."""
        return frozenset((one.name, one.source) for one in self.sessions if one.kind is kind)

    def describe(self) -> Iterator[str]:
        """Yield the lines that `check --diff` prints."""
        for one in self.sessions:
            yield f"session {one.name} ({one.source}): {one.kind}"
            yield from _lines(one.changes)
        if self.core:
            yield "core: changed"
            yield from _lines(self.core)
        if self.settings:
            yield "settings: changed"
            yield from _lines(self.settings)
        if self.needs_restart:
            yield f"needs a restart: {', '.join(self.needs_restart)}"


def document(plan: Plan) -> dict[str, Any]:
    """Return a plan as another process gets it: lists instead of tuples, no enums."""
    return decode_json(encode_json(plan.to_dict()), dict[str, Any])


def difference(old: Document, new: Document) -> Difference:
    """Compare two plans.

    Args:
        old: a plan's document.
        new: another one's.
    """
    before, after = _by_key(old["sessions"]), _by_key(new["sessions"])
    settings = tuple(_changes_by_key(old["settings"], new["settings"]))
    return Difference(
        sessions=tuple(
            _session(key, before.get(key), after.get(key))
            for key in dict.fromkeys((*before, *after))
        ),
        core=tuple(_changes(old["core"], new["core"], "")),
        settings=settings,
        needs_restart=need_restart(change.path for change in settings),
    )


def _by_key(sessions: Iterable[Document]) -> dict[tuple[str, str], Document]:
    return {(one["name"], one["source"]): one for one in sessions}


def _session(
    key: tuple[str, str], old: Document | None, new: Document | None
) -> SessionDifference:
    if old is None or new is None:
        return SessionDifference(*key, Kind.ADDED if old is None else Kind.REMOVED)
    changes = tuple(_changes(_without_remarks(old), _without_remarks(new), ""))
    return SessionDifference(*key, Kind.CHANGED if changes else Kind.UNCHANGED, changes)


def _without_remarks(session: Document) -> dict[str, Any]:
    told = {key: value for key, value in session.items() if key not in _REMARKS}
    if told["ftrace"]:
        told["ftrace"] = {**told["ftrace"], _MEASURED: None}
    return {**told, "sink": {**session["sink"], _COMMON: None}}


def _changes_by_key(old: Document, new: Document) -> Iterator[Change]:
    for key in dict.fromkeys((*old, *new)):
        if old.get(key) != new.get(key):
            yield Change(key, old.get(key), new.get(key))


def _changes(old: Any, new: Any, path: str) -> Iterator[Change]:  # noqa: ANN401  # plain data
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            yield from _changes(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            yield from _changes(_at(old, index), _at(new, index), f"{path}[{index}]")
    elif old != new:
        yield Change(path, old, new)


def _at(values: Sequence[Any], index: int) -> Any:  # noqa: ANN401  # plain data
    return values[index] if index < len(values) else None


def _lines(changes: Sequence[Change]) -> Iterator[str]:
    yield from (f"  {change.describe()}" for change in changes[:_SHOWN_MAX])
    if len(changes) > _SHOWN_MAX:
        yield f"  and {len(changes) - _SHOWN_MAX} more"


def _short(value: Any) -> str:  # noqa: ANN401  # plain data
    if value is None:
        return "none"
    text = encode_json(value).decode()
    return text if len(text) <= _VALUE_CHARS else f"{text[: _VALUE_CHARS - 3]}..."

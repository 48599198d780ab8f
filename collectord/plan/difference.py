# SPDX-License-Identifier: Apache-2.0
"""The difference between two plans, as documents: those that `Plan.to_dict` makes.

A daemon shows its plan in this form, so that another process can compare it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from collectord.text.foreign import encode_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Document = Mapping[str, Any]

# Remarks on a session, which nothing depends on.
_REMARKS: Final = frozenset({"notes", "degraded", "imposed"})
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
    """

    sessions: tuple[SessionDifference, ...]
    core: tuple[Change, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the plans are the same."""
        return not self.core and all(one.kind is Kind.UNCHANGED for one in self.sessions)

    def describe(self) -> Iterator[str]:
        """Yield the lines that `check --diff` prints."""
        for one in self.sessions:
            yield f"session {one.name} ({one.source}): {one.kind}"
            yield from _lines(one.changes)
        if self.core:
            yield "core: changed"
            yield from _lines(self.core)


def difference(old: Document, new: Document) -> Difference:
    """Compare two plans.

    Args:
        old: a plan's document.
        new: another one's.
    """
    before, after = _by_key(old["sessions"]), _by_key(new["sessions"])
    return Difference(
        sessions=tuple(
            _session(key, before.get(key), after.get(key))
            for key in dict.fromkeys((*before, *after))
        ),
        core=tuple(_changes(old["core"], new["core"], "")),
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
    return {key: value for key, value in session.items() if key not in _REMARKS}


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

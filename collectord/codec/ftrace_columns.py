# SPDX-License-Identifier: Apache-2.0
"""Fields of ftrace's records as columns of a table: their kinds, and where their values are.

The kinds and places are those that the core's decoder has (`_native/_columns.pyi`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.codec.ftrace_format import Placement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord.codec.ftrace_format import EventFormat, Field

# Columns of every event; a field of its own with such a name gets the prefix.
COMMON: Final = {
    "time": ("time", "utc"),
    "mono_ns": ("u64", "stamp"),
    "cpu": ("i32", "cpu"),
    "pid": ("i32", "pid"),
    "tid": ("i32", "tid"),
    "comm": ("text", "comm"),
}
# A column of the events of perf.data files that have it.
CGROUP: Final = "cgroup"
_PREFIX: Final = "event_"
_PLACES: Final = {
    Placement.INLINE: "inline",
    Placement.DATA_LOC: "data_loc",
    Placement.REL_LOC: "rel_loc",
}
# Where a value is: place, offset, bytes, bytes of an element, signed?
Where = tuple[str, int, int, int, bool]
MISSING: Final[Where] = ("missing", 0, 0, 0, False)
_U32_MAX: Final = (1 << 32) - 1


class FieldColumn(NamedTuple):
    """A column, and where one file's records have its values."""

    name: str
    kind: str
    where: Where


COMMON_COLUMNS: Final = tuple(
    FieldColumn(name, kind, (place, 0, 0, 0, False)) for name, (kind, place) in COMMON.items()
)


def own_name(name: str) -> str:
    """Return the name of the column of an event's own field."""
    return _PREFIX + name if name.lower() in {*COMMON, CGROUP} else name


def columns_of(layout: EventFormat) -> Iterator[FieldColumn]:
    """Yield the columns of an event: the common ones, then its own fields."""
    yield from COMMON_COLUMNS
    for field in layout.fields:
        if max(field.offset, field.size_bytes) <= _U32_MAX:
            yield _column(field)


def _column(field: Field) -> FieldColumn:
    is_signed = field.signed and "*" not in field.type
    element = field.element_bytes
    if not element and field.placement is Placement.INLINE:
        element = field.size_bytes
        kind = _number(element, is_signed)
    elif field.is_string:
        kind = "text"
    elif element > 1:
        kind = f"list_{_number(element, is_signed)}"
    else:
        kind, element = "bytes", 1
    place = _PLACES[field.placement]
    where = (place, field.offset, field.size_bytes, element, is_signed)
    return FieldColumn(own_name(field.name), kind, where)


def _number(size_bytes: int, is_signed: bool) -> str:
    return f"{'i' if is_signed else 'u'}{8 * size_bytes}"


def widest(kinds: Iterable[str]) -> str:
    """Return the kind of a column whose files have these kinds, the first one for other kinds.

    Numbers of several widths become one of 64 bits.
    """
    first, *others = kinds = tuple(dict.fromkeys(kinds))
    if others and all(is_number(kind) for kind in kinds):
        return "i64" if any(kind.startswith("i") for kind in kinds) else "u64"
    return first


def is_number(kind: str) -> bool:
    """Whether values of a kind are single numbers."""
    return kind[:1] in {"i", "u"} and kind[1:].isdigit()


def fits(kind: str, column: str) -> bool:
    """Whether values of a kind can be put into a column of another one."""
    return kind == column or (is_number(kind) and is_number(column))

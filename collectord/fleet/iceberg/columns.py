# SPDX-License-Identifier: Apache-2.0
"""The columns of an Iceberg table, by those of its files; pure.

Files have no ids of columns, so the table maps names to them. A column that Iceberg cannot hold
has an id too, and is not in the schema: readers pass over it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from collectord.fleet.per_host_statement import HOST
from collectord.fleet.question import DATE, MAP, TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLUMNS_MAX: Final = 4000
# The first ids, of the columns that keys tell.
OF_KEYS: Final = {DATE: 1, HOST: 2}
UNSIGNED: Final = "UBIGINT"
NANOSECONDS: Final = "timestamp_ns"
_LONG: Final = "long"
_TYPES: Final = {
    "BIGINT": _LONG,
    "BLOB": "binary",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "DOUBLE": "double",
    "FLOAT": "float",
    "INTEGER": "int",
    "SMALLINT": "int",
    "TIMESTAMP": "timestamp",
    TIMESTAMP: NANOSECONDS,
    "TINYINT": "int",
    UNSIGNED: _LONG,
    "UINTEGER": _LONG,
    "USMALLINT": "int",
    "UTINYINT": "int",
    "VARCHAR": "string",
}
# Iceberg lets a column of the first type become one of the second.
_WIDER: Final = frozenset({("int", _LONG), ("float", "double")})
_LIST: Final = re.compile(r"(\w+)\[\]")


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        id: of the table's own, for good.
        inner: ids of the elements of a list, or of keys and values of a map.
        type: of Iceberg, of a list its elements', of a map both with a comma; "": the table does
            not have it.
    """

    id: int
    inner: tuple[int, ...]
    type: str


class Columns(NamedTuple):
    """The columns of a table's files, by name.

    Attributes:
        last_id: the largest that was given.
    """

    named: Mapping[str, Column]
    last_id: int

    def fields(self) -> list[dict[str, Any]]:
        """Return the fields of the schema, as Iceberg's JSON has them."""
        types = {name: one for name, one in self.named.items() if one.type}
        of_keys = [_field(OF_KEYS[DATE], DATE, "date"), _field(OF_KEYS[HOST], HOST, "string")]
        return [*of_keys, *(_field(one.id, name, _type(one)) for name, one in types.items())]

    def mapping(self) -> list[dict[str, Any]]:
        """Return which names of files' columns have which ids, as Iceberg's JSON has it."""
        found = []
        for name, one in self.named.items():
            parts = ("element",) if len(one.inner) == 1 else ("key", "value")
            inner = [
                {"field-id": number, "names": [part]}
                for number, part in zip(one.inner, parts, strict=False)
            ]
            found.append(
                {"field-id": one.id, "names": [name]} | ({"fields": inner} if inner else {})
            )
        return found

    def left_out(self) -> list[str]:
        """Return the names of the columns that files have, and the table has not."""
        return [name for name, one in self.named.items() if not one.type]


NONE: Final = Columns({}, max(OF_KEYS.values()))


def kind_of(kind: str, *, fits: bool) -> str:
    """Return the type of Iceberg for one of DuckDB, as `Column.type` has it.

    Args:
        kind: name of DuckDB.
        fits: no value of it is beyond what 64 bits with a sign have.
    """
    if kind == UNSIGNED and not fits:
        return ""
    for pattern in (_LIST, MAP):
        match = pattern.fullmatch(kind)
        if match is not None:
            inner = [_TYPES.get(one, "") for one in match.groups() if one != UNSIGNED]
            return ",".join(inner) if all(inner) and len(inner) == pattern.groups else ""
    return _TYPES.get(kind, "")


def extended(columns: Columns, found: Mapping[str, tuple[str, bool]]) -> tuple[Columns, list[str]]:
    """Return columns with those of a file, and names whose types do not go together.

    Args:
        columns: of the table.
        found: DuckDB's type of each, and whether all its values fit.
    """
    named = dict(columns.named)
    last_id = columns.last_id
    clashes: list[str] = []
    for name, (kind, fits) in found.items():
        new = "" if name in OF_KEYS else kind_of(kind, fits=fits)
        count = _inner(kind)
        known = named.get(name)
        if known is None:
            ids = range(last_id + 1, last_id + 2 + count)
            named[name] = Column(ids[0], tuple(ids[1:]), new)
            last_id = ids[-1]
        elif len(known.inner) != count:
            clashes.append(name)
        elif new != known.type and known.type and (new, known.type) not in _WIDER:
            if new and (known.type, new) not in _WIDER:
                clashes.append(name)
            named[name] = known._replace(type=new)
    return Columns(named, last_id), clashes


def from_document(
    fields: Sequence[Mapping[str, Any]], mapping: Sequence[Any], last: int
) -> Columns:
    """Return the columns that a table's JSON tells. Raises KeyError, TypeError and ValueError."""
    types = {field["id"]: field["type"] for field in fields}
    named: dict[str, Column] = {}
    for one in mapping:
        number = int(one["field-id"])
        inner = tuple(int(part["field-id"]) for part in one.get("fields", ()))
        named[str(one["names"][0])] = Column(number, inner, _type_text(types.get(number, "")))
    return Columns(named, int(last))


def _type_text(kind: Any) -> str:  # noqa: ANN401  # of JSON
    if isinstance(kind, str):
        return kind
    parts = ("element",) if kind["type"] == "list" else ("key", "value")
    return ",".join(str(kind[part]) for part in parts)


def _inner(kind: str) -> int:
    return 1 if kind.endswith("[]") else 2 if MAP.fullmatch(kind) else 0


def _type(column: Column) -> Any:  # noqa: ANN401  # of JSON
    if not column.inner:
        return column.type
    if len(column.inner) == 1:
        return {
            "type": "list",
            "element-id": column.inner[0],
            "element": column.type,
            "element-required": False,
        }
    key, value = column.type.split(",")
    return {
        "type": "map",
        "key-id": column.inner[0],
        "key": key,
        "value-id": column.inner[1],
        "value": value,
        "value-required": False,
    }


def _field(number: int, name: str, kind: Any) -> dict[str, Any]:  # noqa: ANN401  # of JSON
    return {"id": number, "name": name, "required": False, "type": kind}

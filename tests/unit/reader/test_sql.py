# SPDX-License-Identifier: Apache-2.0
"""Statements as the versions of DuckDB parse them, and processors that these run on."""

from __future__ import annotations

import pytest

from collectord.reader.embedded_db import dies_on
from collectord.reader.sql import named_in


def test_names_are_found_beside_types() -> None:
    """DuckDB 1 has an object where DuckDB 2 has the name of a kind: the type of a cast."""
    cast = {"type": {"id": "BIGINT"}, "child": {"type": "COLUMN_REF", "column_names": ["pid"]}}
    table = {"type": "BASE_TABLE", "table_name": "Tasks", "alias": ""}
    named = named_in({"node": {"select_list": [cast], "from_table": table}})
    assert named.tables == {"tasks"}
    assert "pid" in named.words
    assert not named.everything


@pytest.mark.parametrize(
    ("version", "processor", "dies"),
    [
        ("2.0.1", "model name\t: Nehalem\nflags\t\t: fpu sse4_2\n", True),
        ("2.0.1", "flags\t\t: fpu avx avx2\n", False),
        ("1.5.6", "flags\t\t: fpu sse4_2\n", False),
        ("2.0.1", "Features\t: fp asimd\n", False),
    ],
)
def test_an_old_processor(version: str, processor: str, *, dies: bool) -> None:
    """Only wheels of DuckDB 2 for x86-64 need AVX2."""
    assert dies_on(version, processor) is dies

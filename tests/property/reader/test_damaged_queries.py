# SPDX-License-Identifier: Apache-2.0
"""Damaged trace.dat files in a query: what is sound is read, or one line says what is wrong."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from collectord.cli import query
from collectord.errors import CollectordError
from tests.support.examples import examples
from tests.support.query_files import GOLDEN, switches, write_trace

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_STATEMENTS = (
    "SELECT * FROM sched_switch",
    "SELECT * FROM sys_enter",
    "SELECT * FROM losses, damage",
    "FROM segments",
)


def test_any_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No change of bytes, and no cut, ends in anything but rows or an error of ours."""
    path = tmp_path / "trace.dat"
    captured = (GOLDEN / "sys_enter.page").read_bytes()
    write_trace(path, {0: [switches(1000, *range(20))], 1: [captured, switches(5000, 3, lost=2)]})
    sound = path.read_bytes()
    # The room for names of tasks fills most of a file, and holds nothing here.
    lively = [at for at in range(len(sound)) if sound[at] not in b"\0\n"]
    told: list[str] = []
    made = random.Random(7)  # noqa: S311  # the same damage in every run
    for number in range(examples(120)):
        data = bytearray(sound)
        for _ in range(made.choice((1, 1, 2, 8))):
            at = made.choice(lively)
            width = made.choice((1, 1, 2, 4, 8))
            data[at : at + width] = made.choice(
                (made.randbytes(width), b"\0" * width, b"\xff" * width)
            )
        if made.random() < 0.2:
            del data[made.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            query.run([_STATEMENTS[number % len(_STATEMENTS)], str(path)])
        except CollectordError as error:
            told.append(str(error))
        capsys.readouterr()
    assert not [one for one in told if "\n" in one]

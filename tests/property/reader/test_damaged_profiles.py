# SPDX-License-Identifier: Apache-2.0
"""Damaged profiles give the stacks that are sound, or an error of ours."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from collectord.errors import CollectordError
from collectord.reader.any_events import open_tables
from collectord.reader.event_file import Window
from collectord.reader.flame.forms import FORMS
from collectord.reader.flame.picture import Picture
from collectord.reader.flame.profile import Asked, read_profile
from collectord.text.foreign import visible
from collectord.text.nearest import did_you_mean
from tests.support.examples import examples
from tests.support.profiles import KERNEL, USER, comm, fork, mapped, sample, write

if TYPE_CHECKING:
    import pytest


@cache
def _whole() -> bytes:
    with TemporaryDirectory() as folder:
        path = write(
            Path(folder) / "perf.data",
            comm(1, 50, b"sh"),
            mapped(2, 50, "/bin/true", addr=0x1000, inode=3),
            mapped(2, 50, "//anon", addr=0x90000),
            sample(3, 50, KERNEL, (1 << 64) - (1 << 31), USER, 0x1010, 0x90010),
            fork(4, 50, 51),
            comm(5, 51, b"\xff;<b>", execs=True),
            mapped(6, 51, "/bin/false", addr=0x1000, build_id=bytes(20)),
            sample(7, 51, USER, 0x1010, 0x2010),
        )
        return path.read_bytes()


@settings(max_examples=examples(30), deadline=None)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=12),
    from_end=st.booleans(),
    kept=st.floats(0.1, 1),
)
def test_any_damage_is_survived(
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[tuple[float, int]],
    from_end: bool,
    kept: float,
) -> None:
    """Every form can be written of what is left."""
    data = bytearray(_whole())
    begin = len(data) // 2 if from_end else 0
    for share, value in changes:
        data[min(begin + int(share * (len(data) - begin)), len(data) - 1)] = value
    path = tmp_path_factory.mktemp("flame") / "perf.data"
    path.write_bytes(data[: int(len(data) * kept)] if not changes else data)
    asked = Asked(Window(), ("*",), "pid", None, visible, did_you_mean)
    with ExitStack() as stack, suppress(CollectordError):
        file = open_tables(path, stack)
        profile = read_profile([file] if file is not None else [], asked)
        picture = Picture("damaged", profile.unit, profile.stacks, profile.stacks)
        for form in FORMS:
            for piece in form.encode(picture):
                assert isinstance(piece, bytes) or piece.encode()

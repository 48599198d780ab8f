# SPDX-License-Identifier: Apache-2.0
"""An address means a place in a file, in a process at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectord.reader.symbols import address_spaces
from collectord.reader.symbols.address_spaces import AddressSpaces, Mapping

if TYPE_CHECKING:
    import pytest


def _map(begin: int, end: int, file: str = "/a", offset: int = 0) -> Mapping:
    return Mapping(begin, end, offset, file)


def _file(spaces: AddressSpaces, pid: int, since_ns: int | None, address: int) -> str | None:
    found = spaces.find(pid, since_ns, address)
    return found.file if found is not None else None


def test_a_child_has_what_its_parent_had_then() -> None:
    """The parent may map more later."""
    spaces = AddressSpaces()
    spaces.map(1, 10, _map(0x1000, 0x2000))
    spaces.fork(2, 11, 10)
    spaces.map(3, 10, _map(0x5000, 0x6000, "/b"))
    assert _file(spaces, 11, None, 0x1800) == "/a"
    assert _file(spaces, 11, None, 0x5800) is None
    assert _file(spaces, 10, None, 0x5800) == "/b"
    assert not [*spaces.changes()]


def test_another_program_has_nothing_of_the_one_before() -> None:
    """Both are known by their times."""
    spaces = AddressSpaces()
    spaces.map(1, 10, _map(0x1000, 0x2000))
    spaces.execute(5, 10)
    spaces.map(6, 10, _map(0x1000, 0x3000, "/b"))
    times = [time_ns for pid, time_ns in spaces.changes() if pid == 10]
    assert times == [1, 5]
    assert [_file(spaces, 10, at, 0x1800) for at in times] == ["/a", "/b"]


def test_an_address_that_changes_its_meaning_begins_an_epoch() -> None:
    """The rest of the old mapping stays, at its offset; the same file again is no change."""
    spaces = AddressSpaces()
    spaces.map(1, 10, _map(0x1000, 0x5000))
    spaces.map(2, 10, _map(0x2000, 0x3000, offset=0x1000))
    assert not [*spaces.changes()]
    spaces.map(3, 10, _map(0x2000, 0x3000, "/b"))
    assert [*spaces.changes()] == [(10, 1), (10, 3)]
    found = [spaces.find(10, 3, at) for at in (0x1000, 0x2000, 0x3000, 0x5000)]
    assert [one and one.file for one in found] == ["/a", "/b", "/a", None]
    assert found[2] is not None
    assert (found[2].begin, found[2].file_offset) == (0x3000, 0x2000)
    assert _file(spaces, 10, 1, 0x2000) == "/a"


def test_there_are_not_more_mappings_than_memory_is_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that are left out are counted, copies for children too."""
    monkeypatch.setattr(address_spaces, "MAPPINGS_MAX", 3)
    spaces = AddressSpaces()
    for at in range(3):
        spaces.map(at, 10, _map(0x1000 * at, 0x1000 * at + 0x1000))
    spaces.fork(5, 11, 10)
    spaces.map(6, 11, _map(0, 0x1000))
    assert spaces.left_out == 4
    assert _file(spaces, 11, None, 0) is None


def test_mappings_of_no_length_and_unknown_processes() -> None:
    """They have no files."""
    spaces = AddressSpaces()
    spaces.map(1, 10, _map(0x2000, 0x2000))
    spaces.map(1, 10, _map(0x2000, 0x1000))
    spaces.fork(2, 12, 99)
    assert [_file(spaces, pid, None, 0x2000) for pid in (10, 12, 99)] == [None] * 3

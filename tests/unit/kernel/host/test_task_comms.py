# SPDX-License-Identifier: Apache-2.0
"""Names of tasks are gathered from the kernel's cache and from /proc, below injected roots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectord.codec.trace_dat import build_head
from collectord.kernel.host.task_comms import TaskComms
from tests.support.trace_segments import METADATA

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a cache with two names, and a process of two threads."""
    (tmp_path / "saved_cmdlines").write_bytes(b"10 old name\n11 <...>\n12 twelve\n")
    for tid, comm in ((20, b"main\n"), (21, b"a\xffb\n")):
        folder = tmp_path / f"proc/20/task/{tid}"
        folder.mkdir(parents=True)
        (folder / "comm").write_bytes(comm)
    (tmp_path / "proc/20/task/12").mkdir()
    (tmp_path / "proc/20/task/12/comm").write_bytes(b"other\n")
    return tmp_path


def test_both_places_are_read(tree: Path) -> None:
    """The cache goes before /proc, unknown names are none, and bytes stay as they are."""
    comms = TaskComms(tree, tree / "proc").read()
    assert comms == {10: b"old name", 12: b"twelve", 20: b"main", 21: b"a\xffb"}
    assert list(comms)[:2] == [10, 12]


def test_names_are_kept(tree: Path) -> None:
    """Names evicted from the kernel's cache are kept, and a new name replaces the old one."""
    comms = TaskComms(tree, tree / "proc")
    comms.read()
    (tree / "saved_cmdlines").write_bytes(b"12 renamed\n13 thirteen\n")
    found = comms.read()
    assert (found[10], found[12], found[13]) == (b"old name", b"renamed", b"thirteen")


def test_names_that_the_cache_has_no_more_go_first(tree: Path) -> None:
    """More names than there may be cost those that the kernel has displaced, the oldest first."""
    cache = tree / "saved_cmdlines"
    cache.write_bytes(_lines(range(100, 116)))
    comms = TaskComms(tree, tree / "proc", names_max=16)
    comms.read()
    cache.write_bytes(b"100 t\n" + _lines(range(200, 204)))  # the line of 100 is as it was
    kept = [100, *range(107, 116), *range(200, 204)]
    assert [tid for tid in comms.read() if tid >= 100] == kept
    cache.write_bytes(_lines(range(201, 205)))
    assert [tid for tid in comms.read() if tid >= 100] == [*kept, 204]


def test_more_names_than_are_kept(tree: Path) -> None:
    """Names of the cache that there was no room for are found at the next reading."""
    (tree / "saved_cmdlines").write_bytes(_lines(range(100, 104)))
    comms = TaskComms(tree, tree / "proc", names_max=2)
    assert [tid for tid in comms.read() if tid >= 100] == [102, 103]
    (tree / "saved_cmdlines").write_bytes(_lines(range(100, 102)))
    assert [tid for tid in comms.read() if tid >= 100] == [100, 101]


def _lines(tids: Iterable[int]) -> bytes:
    return b"".join(b"%d t\n" % tid for tid in tids)


def test_names_are_found_wherever_they_stand(tree: Path) -> None:
    """One that comes before others moves these, and a name with a line feed is more lines."""
    comms = TaskComms(tree, tree / "proc")
    comms.read()
    text = b"9 nine\n10 old name\n11 eleven\n12 two\nlines\n14 fourteen\n"
    (tree / "saved_cmdlines").write_bytes(text)
    found = comms.read()
    assert [found[tid] for tid in (9, 10, 11, 12, 14)] == [
        *(b"nine", b"old name", b"eleven", b"two", b"fourteen"),
    ]


def test_no_cache(tree: Path) -> None:
    """Without the cache /proc tells the names."""
    (tree / "saved_cmdlines").unlink()
    assert TaskComms(tree, tree / "proc").read()[20] == b"main"


def test_a_worker_has_the_name_that_events_have_for_it(tree: Path) -> None:
    """The file tells more than the 15 bytes of a task's own name."""
    (tree / "proc/20/task/20/comm").write_bytes(b"kworker/0:1-events_unbound\n")
    assert TaskComms(tree, tree / "proc").read()[20] == b"kworker/0:1-eve"


def test_a_segment_has_room_for_the_names_that_are_kept(tree: Path) -> None:
    """The latest of very many are among those that its head takes."""
    comms = TaskComms(tree, tree / "proc")
    first = 4_100_000  # ids of most digits
    for ids in (range(first, first + 6_000), range(first + 6_000, first + 12_000)):
        lines = (b"%d fifteen bytes..\n" % tid for tid in ids)
        (tree / "saved_cmdlines").write_bytes(b"".join(lines))
        found = comms.read()
    head = build_head(METADATA, [0], 1 << 20)
    patch = head.cmdlines_patch(found.items())
    assert b"%d fifteen bytes" % (first + 11_999) in patch.data
    assert b"20 main" in patch.data

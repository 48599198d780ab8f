# SPDX-License-Identifier: Apache-2.0
"""bpf(2) on real maps and programs: entries by batch and by key, values of CPUs, ids, counters."""

from __future__ import annotations

import errno
import mmap
import os
import struct
import threading
from contextlib import ExitStack, contextmanager
from itertools import cycle
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import pytest

from collectord._native import _syscalls
from collectord.errors import KernelError, MissingFeature
from collectord.kernel.bpf import bpf_calls, bpf_entries
from collectord.kernel.bpf.bpf_entries import map_entries, walk_entries
from collectord.kernel.host import cpus
from tests.support import bpf as support
from tests.support.bpf_tables import u32, u64
from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from collectord.kernel.values.bpf_objects import Entries, MapInfo

pytestmark = [pytest.mark.usefixtures("_bpf"), pytest.mark.beside]
READERS: Final = (map_entries, walk_entries)
KINDS: Final = (
    support.HASH,
    support.LRU_HASH,
    support.ARRAY,
    support.PERCPU_HASH,
    support.PERCPU_ARRAY,
)
CPUS: Final = len(cpus.possible())
LOOKS: Final = 60
CHANGED: Final = 50
GRACE_S: Final = patient(10)
PAGES: Final = 64


def _split_cpus(info: MapInfo, value: bytes) -> list[bytes]:
    """Split a value of `map_lookup` into one value for each possible CPU."""
    starts = range(0, info.entry_bytes, info.cpu_bytes)
    return [value[at : at + info.value_bytes] for at in starts]


@pytest.fixture
def _bpf(require: Callable[[str], None]) -> None:
    require("BPF")


def numbers(entries: Entries, *, each: int = 1) -> dict[int, tuple[int, ...]]:
    """Keys of 4 bytes and their values, `each` of 8 bytes."""
    keys = [key for (key,) in struct.iter_unpack("<I", entries.keys)]
    values = list(struct.iter_unpack(f"<{each}Q", entries.values))
    assert len(keys) == len(set(keys)) == len(values) == entries.count
    return dict(zip(keys, values, strict=True))


def values_of(kind: int, number: int) -> tuple[int, ...]:
    """Return a different value for each CPU, where CPUs have their own."""
    per_cpu = kind in (support.PERCPU_HASH, support.PERCPU_ARRAY)
    return tuple(number * 100 + cpu for cpu in range(CPUS if per_cpu else 1))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", KINDS)
def test_entries(kind: int, read: Callable[..., Entries]) -> None:
    """Every type of map is read whole, with the values of all CPUs."""
    with support.create_map(kind, 4, 8, 300) as fd:
        wanted = {number: values_of(kind, number) for number in range(300)}
        if kind == support.LRU_HASH:  # which may drop some before it is full
            wanted = {number: wanted[number] for number in range(50)}
        for number, values in wanted.items():
            support.update(fd, u32(number), u64(*values))
        entries = read(fd)
        assert entries.complete
        assert numbers(entries, each=len(wanted[0])) == wanted


@pytest.mark.parametrize("read", READERS)
def test_an_empty_map(read: Callable[..., Entries]) -> None:
    """It has no entries, and that is all of them."""
    with support.create_map(support.HASH, 4, 8, 1000) as fd:
        entries = read(fd)
        assert (entries.count, entries.keys, entries.values, entries.complete) == (
            0,
            b"",
            b"",
            True,
        )


def test_batches_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map larger than a batch takes several; a bucket larger than one makes the next larger."""
    wanted = {number: (number,) for number in range(2000)}
    with (
        support.create_map(support.HASH, 4, 8, 2000) as table,
        support.create_map(support.ARRAY, 4, 8, 2000) as array,
    ):
        for number in wanted:
            support.update(table, u32(number), u64(number))
            support.update(array, u32(number), u64(number))
        for room in (1, 12, 100, 5000, 1 << 20):
            monkeypatch.setattr(bpf_entries, "_BATCH_BYTES", room)
            assert numbers(map_entries(table)) == wanted
            assert numbers(map_entries(array)) == wanted


@pytest.mark.parametrize("kind", [support.HASH, support.ARRAY])
def test_a_limit(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it nothing is read, and the result says that there is more."""
    monkeypatch.setattr(bpf_entries, "_BATCH_BYTES", 120)
    with support.create_map(kind, 4, 8, 500) as fd:
        for number in range(500):
            support.update(fd, u32(number), u64(number))
        batch, walk = map_entries(fd, limit=100), walk_entries(fd, limit=100)
        assert 100 <= batch.count <= 110
        assert walk.count == 100
        assert (batch.complete, walk.complete) == (False, False)
        assert map_entries(fd, limit=1000).complete
        assert walk_entries(fd, limit=500).complete


def test_a_kernel_without_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 5.6 the command is unknown: keys are walked."""
    refused = []

    def old_kernel(fd: int, *_: object) -> None:
        refused.append(fd)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(_syscalls, "bpf_map_batch", old_kernel)
    with support.create_map(support.HASH, 4, 8, 10) as fd:
        support.update(fd, u32(1), u64(11))
        assert numbers(map_entries(fd)) == {1: (11,)}
        assert refused == [fd]


def test_a_map_without_batches() -> None:
    """A device map has none, and has indexes that nothing was put at."""
    with support.create_map(support.DEVMAP, 4, 4, 4) as fd:
        support.update(fd, u32(2), u32(1))  # the loopback device
        entries = map_entries(fd)
        assert (entries.keys, entries.values, entries.complete) == (u32(2), u32(1), True)


@pytest.mark.parametrize("read", READERS)
def test_a_map_that_changes_while_it_is_read(read: Callable[..., Entries]) -> None:
    """Reading ends, no key is there twice, and what was there all the time is there each time."""
    steady = set(range(0, 600, 3))
    with support.create_map(support.HASH, 4, 8, 1000) as fd:
        for number in steady:
            support.update(fd, u32(number), u64(number))
        others = [number for number in range(600) if number % 3]
        with churn(fd, others) as changes:
            for _ in range(LOOKS):
                entries = read(fd)
                found = numbers(entries)
                if entries.complete:
                    assert steady <= found.keys()
                assert all(found[number] == (number,) for number in steady & found.keys())
                changes.get(timeout=GRACE_S)
        final = read(fd)
        assert final.complete
        assert steady <= numbers(final).keys()


@contextmanager
def churn(fd: int, keys: list[int]) -> Iterator[SimpleQueue[int]]:
    """Entries come and go, from another thread; each change is told."""
    stop = threading.Event()
    changes: SimpleQueue[int] = SimpleQueue()

    def put(key: int) -> None:
        support.update(fd, u32(key), u64(key))

    def take(key: int) -> None:
        support.delete(fd, u32(key))

    def change() -> None:
        for at in cycle(range(0, len(keys), CHANGED)):
            for step in (put, take):
                for key in keys[at : at + CHANGED]:
                    step(key)
                    changes.put(key)
            if stop.is_set():
                return

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield changes
    finally:
        stop.set()
        thread.join()


def test_a_walk_whose_keys_always_vanish_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """If every key that it stands on is deleted, the kernel begins anew each time: steps end."""
    real, steps = bpf_calls.map_next_key, 0
    looked_up = []
    with support.create_map(support.HASH, 4, 8, 50) as fd:
        for number in range(10):
            support.update(fd, u32(number), u64(number))

        def vanishing(fd: int, key: bytes | None, info: MapInfo) -> bytes | None:
            nonlocal steps
            steps += 1
            del key
            return real(fd, None, info)

        def lookup(fd: int, key: bytes, *, info: MapInfo) -> bytes | None:
            looked_up.append(key)
            return bpf_calls.map_lookup(fd, key, info=info)

        monkeypatch.setattr(bpf_entries, "map_next_key", vanishing)
        monkeypatch.setattr(bpf_entries, "map_lookup", lookup)
        entries = walk_entries(fd)
    assert (entries.count, entries.complete) == (1, False)
    assert steps < 2000
    assert len(looked_up) == 1


def test_lookup_and_update() -> None:
    """A key's value is what was put there; a key that is not there has none."""
    with support.create_map(support.HASH, 4, 12, 10, name=b"pairs") as fd:
        info = bpf_calls.map_info(fd)
        assert (info.name, info.type, info.key_bytes, info.value_bytes, info.max_entries) == (
            "pairs", support.HASH, 4, 12, 10,
        )  # fmt: skip
        assert info.id in support.map_ids()
        bpf_calls.map_update(fd, u32(1), b"abcdefghijkl")
        assert bpf_calls.map_lookup(fd, u32(1)) == b"abcdefghijkl"
        assert bpf_calls.map_lookup(fd, u32(2), info=info) is None
        with pytest.raises(ValueError, match="key of 8 bytes"):
            bpf_calls.map_lookup(fd, u64(1))
        with pytest.raises(ValueError, match="1 values of 12 bytes"):
            bpf_calls.map_update(fd, u32(1), b"short")


def test_per_cpu_values() -> None:
    """Each possible CPU has its own value, rounded up to 8 bytes; one value is for all."""
    with support.create_map(support.PERCPU_ARRAY, 4, 12, 2) as fd:
        info = bpf_calls.map_info(fd)
        assert (info.cpus, info.cpu_bytes, info.entry_bytes) == (CPUS, 16, 16 * CPUS)
        each = [struct.pack("<III", cpu, 2, 3) for cpu in range(CPUS)]
        bpf_calls.map_update(fd, u32(0), each)
        bpf_calls.map_update(fd, u32(1), b"abcdefghijkl")
        first, second = bpf_calls.map_lookup(fd, u32(0)), bpf_calls.map_lookup(fd, u32(1))
        assert first is not None
        assert second is not None
        assert _split_cpus(info, first) == each
        assert _split_cpus(info, second) == [b"abcdefghijkl"] * CPUS
        with pytest.raises(ValueError, match=f"{CPUS} values of 12 bytes"):
            bpf_calls.map_update(fd, u32(0), [*each, each[0]])


def test_a_full_map_says_so() -> None:
    """The error says what to do."""
    with (
        support.create_map(support.ARRAY, 4, 8, 1, name=b"small") as fd,
        pytest.raises(KernelError, match=r"write to BPF map small .*more entries"),
    ):
        bpf_calls.map_update(fd, u32(1), u64(0))


def test_no_map_at_all(tmp_path: Path) -> None:
    """A descriptor of something else is refused."""
    other = tmp_path / "file"
    other.touch()
    with other.open("rb") as file, pytest.raises(KernelError, match="about a BPF map"):
        bpf_calls.map_info(file.fileno())


def test_statistics_of_a_program() -> None:
    """Runs are counted while someone asks for it, to the run, and time passes in them."""
    with support.filter_program(b"counted") as fd:
        support.run(fd, 10)
        before = bpf_calls.program_info(fd)
        assert (before.name, before.run_count, before.recursion_misses) == ("counted", 0, 0)
        assert before.id in bpf_calls.program_ids()
        with ExitStack() as stack:
            stats = bpf_calls.enable_stats()
            stack.callback(os.close, stats)
            assert not os.get_inheritable(stats)
            support.run(fd, 1000)
        after = bpf_calls.program_info(fd)
        assert (after.id, after.run_count) == (before.id, 1000)
        assert after.run_time_ns is not None
        assert 1000 <= after.run_time_ns < 1_000_000_000
        support.run(fd, 10)
        assert bpf_calls.program_info(fd).run_count == 1000
    assert before.id not in bpf_calls.program_ids()


def test_runs_that_the_kernel_left_out(require: Callable[[str], None]) -> None:
    """A program that is running on a CPU does not run there again, and that is counted."""
    require("page fault tracepoints")
    with ExitStack() as stack:
        stack.callback(os.close, bpf_calls.enable_stats())
        with support.faulting_program(b"faults") as fd:
            pages = stack.enter_context(mmap.mmap(-1, PAGES * mmap.PAGESIZE))
            zeroes = os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, zeroes)
            with memoryview(pages) as room:
                for at in range(0, len(pages), mmap.PAGESIZE):
                    os.readv(zeroes, [room[at : at + 8]])  # the kernel writes to a new page
            info = bpf_calls.program_info(fd)
        assert info.recursion_misses is not None
        assert info.recursion_misses >= PAGES
        assert info.run_count is not None
        assert info.run_count >= PAGES


def test_a_kernel_that_gives_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields behind the end of an older kernel's struct are None, and not 0."""
    with support.filter_program(b"old") as fd:
        whole = bpf_calls.object_info(fd, "BPF program")
        assert len(whole) >= 216
        for given, known in ((192, (False, False, False)), (208, (True, True, False))):
            monkeypatch.setattr(bpf_calls, "object_info", lambda *_, end=given: whole[:end])
            info = bpf_calls.program_info(fd)
            told = (info.run_time_ns, info.run_count, info.recursion_misses)
            assert tuple(value is not None for value in told) == known
            assert info.name == "old"


def test_no_such_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without the system call lacks the feature, and says so."""

    def absent(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(_syscalls, "bpf_next_id", absent)
    with pytest.raises(MissingFeature, match="cannot list BPF objects"):
        support.link_ids()


def test_ids_come_and_go() -> None:
    """Lists are those of the kernel at that moment; links need a program to hang on."""
    before = set(support.map_ids())
    with ExitStack() as stack:
        fds = [stack.enter_context(support.create_map(support.ARRAY, 4, 4, 1)) for _ in range(3)]
        made = {bpf_calls.map_info(fd).id for fd in fds}
        assert len(made) == 3
        assert made <= set(support.map_ids())
        assert not made & before
    assert list(support.link_ids()) == sorted(support.link_ids())

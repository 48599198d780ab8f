# SPDX-License-Identifier: Apache-2.0
"""Instances below an injected root: what is read, written, locked, and told when refused."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.config.trace_probe import Probe, ProbeKind
from collectord.errors import (
    KernelError,
    MissingFeature,
    MissingPrivilege,
    NoSuchTarget,
    UsageError,
)
from collectord.kernel.host.fd_holders import holders_below
from collectord.kernel.tracefs.control_files import ControlFolder
from collectord.kernel.tracefs.instance import Instance
from collectord.kernel.tracefs.instance_events import filter_reason
from collectord.kernel.tracefs.instance_lock import (
    check_unheld,
    find_leftovers,
    find_live,
    is_being_salvaged,
    make_locked,
    take_over,
)
from collectord.kernel.tracefs.mount import Tracefs
from collectord.kernel.tracefs.trace_probes import group_of, last_reason
from collectord.kernel.values.instance_settings import InstanceSettings, cpu_mask
from collectord.kernel.values.ring_stats import parse_stats

if TYPE_CHECKING:
    from collections.abc import Iterator

STATS: Final = b"""entries: 404
overrun: 2596
commit overrun: 3
bytes: 13300
oldest event ts:  3908.144302
now ts:  3908.202139
dropped events: 7
read events: 5
"""
PAGE_64_KIB: Final = """\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;
\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;
\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;
\tfield: char data;\toffset:16;\tsize:65520;\tsigned:0;
"""
ERROR_LOG: Final = """[   1.1] trace_uprobe: error: Failed to find the given file
  Command: p:collectord_a/x /no/such:0x10
                            ^
[   2.2] trace_uprobe: error: Invalid register name
  Command: p:collectord_a/y /lib/x.so:0x10 a=%zz b=%di
                                             ^
"""


@pytest.fixture
def tree(tmp_path: Path) -> Tracefs:
    """Return a tracefs with an empty folder of instances."""
    (tmp_path / "events").mkdir()
    (tmp_path / "instances").mkdir()
    return Tracefs(tmp_path)


@pytest.fixture
def left(tree: Tracefs) -> Iterator[Path]:
    """An instance that a crash left, with the files that are read when it is taken over."""
    path = tree.root / "instances/collectord-night-shift"
    for leaf, text in {
        "tracing_on": "",
        "events/enable": "",
        "events/header_page": PAGE_64_KIB,
        "set_event": "sched:sched_switch\n:mod:gone\nblock:block_rq_issue\n",
        "buffer_size_kb": "191\n",
        "buffer_percent": "25\n",
        "options/overwrite": "0\n",
        "trace_clock": "local global [mono] mono_raw\n",
        "per_cpu/cpu0/stats": STATS.decode(),
        "per_cpu/cpu0/trace_pipe_raw": "",
        "per_cpu/cpu10/stats": "",
    }.items():
        file = path / leaf
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tree.root / "dynamic_events").write_text("p:collectord_other/p /lib/x.so:0x10\n")
    yield path
    assert path.is_dir()  # plain files, unlike tracefs's, keep their folder


def test_statistics() -> None:
    """Every counter of the text comes out, times in ns."""
    stats = parse_stats(STATS)
    assert (stats.entries, stats.overrun, stats.commit_overrun) == (404, 2596, 3)
    assert (stats.bytes, stats.dropped, stats.read_events) == (13300, 7, 5)
    assert stats.oldest_event_ns == 3_908_144_302_000
    assert stats.now_ns == 3_908_202_139_000
    assert stats.written == 3005


def test_oldest_event_of_an_empty_ring() -> None:
    """Without unread events the kernel's time of the oldest is stale, and not told."""
    assert parse_stats(STATS.replace(b"entries: 404", b"entries: 0")).oldest_event_ns is None


@pytest.mark.parametrize(
    "text", [b"", STATS[:-1], STATS + b"more: 1\n", STATS.replace(b"3908.202139", b"123456")]
)
def test_other_statistics_are_not_guessed(text: bytes) -> None:
    """A layout or a clock that is unknown is an error, not a zero."""
    with pytest.raises(KernelError, match="cannot parse the statistics"):
        parse_stats(text)


@pytest.mark.parametrize(
    ("cpus", "mask"),
    [
        ((0,), "1"),
        ((1, 0, 1), "3"),
        ((31,), "80000000"),
        ((32,), "1,00000000"),
        ((0, 63), "80000000,00000001"),
        ((68,), "10,00000000,00000000"),
    ],
)
def test_cpu_mask(cpus: tuple[int, ...], mask: str) -> None:
    """CPUs become words of 32 bits, with no zeros before the first."""
    assert cpu_mask(cpus) == mask


@pytest.mark.parametrize(
    ("shown", "text", "reason", "word"),
    [
        (
            "bogus == 1\n      ^\nparse_error: Field not found\n\n",
            "bogus == 1",
            "Field not found, at character 7",
            "bogus",
        ),
        ("(id == 1\n^\nparse_error: Too many '('\n\n", "(id == 1", "Too many '(', at", ""),
        ("other == 1\n", "bogus == 1", "", ""),
        ("id == 1\n", "id == 1", "", ""),
        ("", "x", "", ""),
    ],
)
def test_filter_reason(shown: str, text: str, reason: str, word: str) -> None:
    """The reason counts only if it is of this text; the word before the mark is what is meant."""
    found = filter_reason(shown, text)
    assert found.text.startswith(reason)
    assert bool(found.text) == bool(reason)
    assert found.word == word


def test_last_reason() -> None:
    """The log's last entry for the command is taken, with the word under its caret."""
    assert (
        last_reason(ERROR_LOG, "p:collectord_a/y /lib/x.so:0x10 a=%zz b=%di")
        == "Invalid register name, at character 35: '%zz'"
    )
    assert last_reason(ERROR_LOG, "p:collectord_a/x /no/such:0x10").startswith("Failed to find")
    assert last_reason(ERROR_LOG, "p:collectord_a/z /no/such:0x10") == ""
    assert last_reason("", "p:collectord_a/z /no/such:0x10") == ""


@pytest.mark.parametrize(
    ("probe", "line"),
    [
        (
            Probe(ProbeKind.KPROBE, "open", "do_sys_openat2+4", "name=+0(%si):ustring   f=%dx"),
            "p:g/open do_sys_openat2+4 name=+0(%si):ustring f=%dx",
        ),
        (Probe(ProbeKind.KRETPROBE, "back", "do_exit"), "r:g/back do_exit"),
        (Probe(ProbeKind.UPROBE, "u", "/bin/sh:0x1f0"), "p:g/u /bin/sh:0x1f0"),
        (Probe(ProbeKind.URETPROBE, "u", "/bin/sh:0x1f0"), "r:g/u /bin/sh:0x1f0"),
        (
            Probe(ProbeKind.EPROBE, "e", "sched.sched_switch", "pid=$next_pid", "next_pid > 1"),
            "e:g/e sched.sched_switch pid=$next_pid if next_pid > 1",
        ),
    ],
)
def test_probe_definitions(probe: Probe, line: str) -> None:
    """Each kind has its letter; words are apart by one space."""
    assert probe.definition("g") == line


@pytest.mark.parametrize(
    ("kind", "name", "place", "arguments", "condition"),
    [
        (ProbeKind.KPROBE, "a-b", "do_exit", "", ""),
        (ProbeKind.KPROBE, "a" * 64, "do_exit", "", ""),
        (ProbeKind.KPROBE, "a", "/bin/sh:0x10", "", ""),
        (ProbeKind.KPROBE, "a", "", "", ""),
        (ProbeKind.UPROBE, "a", "/bin/sh:main", "", ""),
        (ProbeKind.UPROBE, "a", "do_exit", "", ""),
        (ProbeKind.UPROBE, "a", "/bin/sh:0x10", "x=%di\np:other/x do_exit", ""),
        (ProbeKind.UPROBE, "a", "/bin/sh:0x10", "x=%di # y=%si", ""),
        (ProbeKind.UPROBE, "a", "/bin/sh:0x10", "x=%di; -:other/x", ""),
        (ProbeKind.EPROBE, "a", "sched_switch", "", ""),
        (ProbeKind.EPROBE, "a", "sched.sched_switch", "", "x > 1\n-:other/x"),
    ],
)
def test_unusable_probes(
    kind: ProbeKind, name: str, place: str, arguments: str, condition: str
) -> None:
    """Invalid definitions, and several in one line, are refused."""
    with pytest.raises(UsageError, match=f"{kind} {name}: "):
        Probe(kind, name, place, arguments, condition)


def test_only_an_eprobes_filter_is_part_of_its_definition() -> None:
    """Filters of other probes are over the fields of their own event."""
    kprobe = Probe(ProbeKind.KPROBE, "a", "do_exit", filter="x > 1")
    assert (kprobe.definition("g"), kprobe.event_filter) == ("p:g/a do_exit", "x > 1")


def test_group_is_a_c_name() -> None:
    """A session's name may have what a group's may not."""
    assert group_of("night-shift.2") == "collectord_night_shift_2"


def test_lock_tells_live_from_left(tree: Tracefs) -> None:
    """An instance is live while its maker keeps the lock, and left from then on."""
    (tree.root / "instances/someone-elses").mkdir()
    fd = make_locked(tree.root, "collectord-a")
    try:
        assert (find_live(tree.root), find_leftovers(tree.root)) == (("collectord-a",), ())
        with pytest.raises(KernelError, match=rf"in use .*; held by .*\(pid {os.getpid()}\)"):
            take_over(tree.root, "collectord-a")
        with pytest.raises(KernelError, match=r"exists already.*held by"):
            make_locked(tree.root, "collectord-a")
    finally:
        os.close(fd)
    assert (find_live(tree.root), find_leftovers(tree.root)) == ((), ("collectord-a",))
    with pytest.raises(KernelError, match="left by a crash"):
        make_locked(tree.root, "collectord-a")
    fd = take_over(tree.root, "collectord-a")
    try:
        assert (find_live(tree.root), find_leftovers(tree.root)) == (("collectord-a",), ())
        assert find_leftovers(tree.root, "collectord-b") == ()
    finally:
        os.close(fd)


def test_lock_tells_who_salvages(tree: Tracefs) -> None:
    """Only one process salvages, and it is not the maker; a removed instance has no salvager."""
    fd = make_locked(tree.root, "collectord-a")
    assert not is_being_salvaged(tree.root, "collectord-a")
    os.close(fd)
    assert not is_being_salvaged(tree.root, "collectord-a")
    fd = take_over(tree.root, "collectord-a")
    try:
        for _ in range(2):
            assert is_being_salvaged(tree.root, "collectord-a")
            with pytest.raises(
                NoSuchTarget, match=rf"pid {os.getpid()}\) is salvaging collectord-a"
            ):
                take_over(tree.root, "collectord-a")
        with pytest.raises(KernelError, match=r"exists already.*held by"):
            check_unheld(tree.root, "collectord-a")
    finally:
        os.close(fd)
    assert not is_being_salvaged(tree.root, "collectord-a")
    assert not is_being_salvaged(tree.root, "collectord-gone")


def test_lock_is_not_inherited_by_programs(tree: Tracefs) -> None:
    """Descriptors of instances are close-on-exec: a child does not keep its parent's session."""
    fd = make_locked(tree.root, "collectord-a")
    try:
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    finally:
        os.close(fd)


def test_no_instances(tmp_path: Path) -> None:
    """If tracefs is empty, the message names the mount and lockdown."""
    with pytest.raises(MissingFeature, match="lockdown"):
        find_leftovers(tmp_path)
    settings = InstanceSettings("a", 1 << 16, 1 << 12)
    with ExitStack() as stack, pytest.raises(MissingFeature):
        Instance.create(Tracefs(tmp_path), settings, stack)


def test_nothing_to_take_over(tree: Tracefs) -> None:
    """An instance that is gone is named."""
    with ExitStack() as stack, pytest.raises(NoSuchTarget, match="collectord-gone"):
        Instance.adopt(tree, "collectord-gone", stack)


def test_taking_over(tree: Tracefs, left: Path) -> None:
    """A left instance is stopped; its sizes, clock and events are those it was given."""
    stack = ExitStack()
    instance = Instance.adopt(tree, left.name, stack)
    assert (left / "tracing_on").read_text() == "0"
    assert (left / "events/enable").read_text() != "0"
    assert instance.session == "night-shift"
    assert [str(event) for event in instance.events] == [
        "sched:sched_switch",
        "block:block_rq_issue",
    ]
    found = instance.effective()
    assert (found.subbuf_bytes, found.subbufs) == (65536, 3)
    assert found.buffer_bytes == 3 * 65536
    assert (found.overwrite, found.buffer_percent, found.clock) == (False, 25, "mono")
    assert instance.cpus() == (0, 10)
    ring = instance.open_ring(0)
    assert ring.stats().written == 3005
    assert ring.stats().written == 3005
    for fd in (ring.raw_fd, ring.stats_fd):
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert fcntl.fcntl(ring.raw_fd, fcntl.F_GETFL) & os.O_NONBLOCK
    with pytest.raises(NoSuchTarget, match="no CPU 3"):
        instance.open_ring(3)
    with pytest.raises(KernelError, match="cannot remove tracefs instance"):
        stack.close()
    assert (left / "events/enable").read_text() == "0"
    assert (tree.root / "dynamic_events").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (errno.EACCES, MissingPrivilege, "needs CAP_DAC_OVERRIDE"),
        (errno.EPERM, MissingPrivilege, "lockdown"),
        (errno.ENOENT, MissingFeature, "this kernel does not have it"),
        (errno.ENOMEM, KernelError, "ask for less"),
        (errno.EBUSY, KernelError, r"kept by tr\\x1bp \(pid 7\), cat \(pid 9\)$"),
        (errno.EINVAL, KernelError, "refuses '5' for .*Invalid argument"),
    ],
)
def test_refusals(
    tmp_path: Path, proc: Path, code: int, kind: type[KernelError], words: str
) -> None:
    """Each errno of a control file has its error, and says who or what would help."""
    folder = ControlFolder(tmp_path / "instances/collectord-a", proc=proc)
    found = folder.refused(OSError(code, os.strerror(code)), folder.path / "buffer_size_kb", "5")
    assert type(found) is kind
    assert found.errno == code
    with pytest.raises(kind, match=words):
        raise found


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Process 7 has a file of the instance open, 8 only its folder, 9 one mapped."""
    root = tmp_path / "proc"
    inside = "/sys/kernel/tracing/instances/collectord-a"
    for pid, comm, target, maps in (
        (7, "tr\x1bp\n", f"{inside}/per_cpu/cpu0/trace_pipe_raw", ""),
        (8, "owner\n", inside, f"7f00-7f01 r--s 0 00:0d 5 {inside}x/per_cpu/cpu0/stats\n"),
        (
            9,
            "cat\n",
            "/dev/null",
            f"7f00-7f01 rw-p 0 00:00 0\n7f02-7f03 r--s 0 00:0d 5   {inside}/a\n",
        ),
    ):
        folder = root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fd/3").symlink_to(target)
        (folder / "comm").write_text(comm)
        (folder / "maps").write_text(maps)
    (root / "11").mkdir()  # it exited while the list was read
    return root


def test_holders(proc: Path) -> None:
    """A process with the file open or mapped is found; folders and longer names do not count."""
    found = holders_below("/instances/collectord-a/", proc)
    assert [(holder.pid, holder.comm) for holder in found] == [(7, r"tr\x1bp"), (9, "cat")]
    nobody = ControlFolder(Path("/sys/kernel/tracing/instances/collectord-b"), proc=proc)
    assert nobody.kept_by().startswith("the kernel")

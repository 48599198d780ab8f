# SPDX-License-Identifier: Apache-2.0
"""Probe, first scan and hotplug watch on the running kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.codec.perf_attr import EventType, PerfEventAttr, SampleType, SoftwareId
from collectord.codec.perf_record import iter_records
from collectord.codec.perf_sideband import Comm, Fork, Mmap2, decode
from collectord.codec.tracepoint import Tracepoint
from collectord.daemon.cpu_watch import CpuWatch
from collectord.kernel.host import processes
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.values.facts_wanted import FactsWanted
from collectord.plan.facts_document import read_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.generator import Generator

pytestmark = pytest.mark.vm  # also with Linux 6.12

NOBODY: Final = 65_534
CPU0_UEVENT: Final = Path("/sys/devices/system/cpu/cpu0/uevent")
SIDEBAND: Final = PerfEventAttr(
    type=EventType.SOFTWARE,
    config=SoftwareId.DUMMY,
    sample_type=SampleType.IDENTIFIER | SampleType.TID | SampleType.TIME | SampleType.CPU,
    sample_id_all=True,
)


def test_facts_of_this_kernel(tracefs: Path) -> None:
    """The facts agree with what the kernel shows elsewhere."""
    facts = LinuxKernel().facts(FactsWanted((Tracepoint("sched", "sched_process_*"),)))
    ids = {
        one: int((tracefs / "events/sched" / one.name / "id").read_text())
        for one in facts.tracepoints
    }
    assert facts.tracepoints == ids
    assert Tracepoint("sched", "sched_process_exec") in ids
    assert facts.release == os.uname().release
    assert facts.cpus_online == LinuxKernel().online_cpus()
    assert facts.pmus["software"].type == EventType.SOFTWARE
    assert facts.tracefs_path == str(tracefs)
    assert facts.tracefs_problem == ""


@pytest.mark.usefixtures("tracefs")
def test_unmatched_name_reads_all_names() -> None:
    """For a name that matches nothing all names are given, so that the nearest can be told."""
    some = LinuxKernel().facts(FactsWanted((Tracepoint("sched", "sched_switch"),)))
    every = LinuxKernel().facts(FactsWanted((Tracepoint("sched", "sched_swithc"),)))
    assert [*map(str, some.tracepoints)] == ["sched:sched_switch"]
    assert some.task_tracepoints == {*some.tracepoints}
    named = {"sched:sched_waking", "sched:sched_migrate_task", "signal:signal_generate"}
    of_tasks = {*map(str, every.task_tracepoints)}
    assert of_tasks > named
    assert not of_tasks & {"syscalls:sys_enter_kill", "irq:irq_handler_entry"}
    assert every.tracepoints.keys() > some.tracepoints.keys()
    assert every.tracepoints == LinuxKernel().facts(FactsWanted()).tracepoints


def test_features_are_found_by_trying(require: Callable[[str], None]) -> None:
    """The probe agrees with the test's own trial of each feature."""
    facts = LinuxKernel().facts(FactsWanted(()))
    require("PERF_FORMAT_LOST")
    assert facts.format_lost
    assert facts.sample_cgroup
    assert facts.hardware_pmu == next(
        check.ok for check in facts.checks if check.name == "hardware counters"
    )


@pytest.mark.usefixtures("tracefs")
def test_facts_survive_json() -> None:
    """Facts that doctor writes can be read by check."""
    facts = LinuxKernel().facts(FactsWanted())
    assert read_facts(facts.to_json()) == facts


def test_without_privilege_remedies_are_the_least(tracefs: Path) -> None:
    """A user without privileges is told a capability or a group for each thing that is missing."""
    assert tracefs.is_dir()
    script = (
        "import os, sys\n"
        "from collectord.kernel.linux import LinuxKernel\n"
        "from collectord.kernel.values.facts_wanted import FactsWanted\n"
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
        "sys.stdout.buffer.write(LinuxKernel().facts(FactsWanted(())).to_json())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    facts = read_facts(done.stdout)
    missing = {check.name: check.remedy for check in facts.checks if not check.ok}
    assert facts.euid == NOBODY
    assert not facts.may_observe_cpus
    assert missing["system-wide"].startswith("CAP_")
    assert "CAP_DAC_READ_SEARCH" in missing["tracepoints"]
    assert facts.tracefs_need == missing["tracepoints"]
    assert missing["ring memory"].startswith("CAP_IPC_LOCK")
    assert missing["kernel symbols"].startswith("CAP_SYSLOG")
    assert missing["processes of others"].startswith("CAP_SYS_PTRACE")


def test_tracefs_is_mounted_or_only_seen(tracefs: Path) -> None:
    """Where it is not mounted a probe sees it and changes nothing, or mounts it if it may."""
    script = (
        "from pathlib import Path\n"
        "from collectord.kernel.linux import LinuxKernel\n"
        "from collectord.kernel.values.facts_wanted import FactsWanted\n"
        "from collectord.codec.tracepoint import Tracepoint\n"
        "kernel, switch = LinuxKernel(), Tracepoint('sched', 'sched_switch')\n"
        "print(kernel.filter_refusal(switch, 'nothing == 1'))\n"
        "for mount in (False, True):\n"
        "    wanted = FactsWanted((switch,), mount=mount, ftrace=True)\n"
        "    facts = kernel.facts(wanted)\n"
        "    seen = facts.ftrace.instances, 'tracefs' in Path('/proc/mounts').read_text()\n"
        "    print(facts.tracefs_path, *facts.tracepoints, *seen)\n"
    )
    refusal, seen, mounted = _without_tracefs(sys.executable, "-c", script)
    assert refusal == "Field not found"
    assert seen == f"{tracefs} sched:sched_switch True False"
    assert mounted == f"{tracefs} sched:sched_switch True True"
    assert not list(tracefs.glob("instances/*probe*"))


def test_who_may_not_mount_tracefs_is_told(tracefs: Path) -> None:
    """Without the privilege to mount the probe says who does."""
    script = (
        "from collectord.kernel.linux import LinuxKernel\n"
        "from collectord.kernel.values.facts_wanted import FactsWanted\n"
        "from collectord.codec.tracepoint import Tracepoint\n"
        "switch = Tracepoint('sched', 'sched_switch')\n"
        "facts = LinuxKernel().facts(FactsWanted((switch,)))\n"
        "remedies = [c.remedy for c in facts.checks if c.name == 'tracepoints']\n"
        "print(facts.tracefs_path, *remedies, sep='|')\n"
    )
    unprivileged = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    (told,) = _without_tracefs(*unprivileged, sys.executable, "-c", script)
    remedy = f"the daemon and `record` mount it; as root: mount -t tracefs tracefs {tracefs}"
    assert told == f"None|{remedy}"


def _without_tracefs(*words: str) -> list[str]:
    """Run a command where tracefs is not mounted, and return the lines that it prints."""
    # A mount namespace of its own: the unmounting is seen by no other process.
    unmount = 'umount -a -t tracefs && umount -a -t debugfs && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "/bin/sh", "-c", unmount, "sh", *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    return done.stdout.splitlines()


def test_first_scan_describes_this_process() -> None:
    """The scan has this process with its parent, its threads' names and its files."""
    ready, done = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        done.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        ready.wait()
        data = processes.scan(SIDEBAND, 1)
    finally:
        done.set()
        thread.join()
    records = [decode(data, header, SIDEBAND) for header in iter_records(data)]
    pid = os.getpid()
    assert Fork(pid, os.getppid(), pid, os.getppid(), 0) in records
    assert Comm(pid, pid, Path("/proc/self/comm").read_bytes().rstrip()) in records
    assert thread.native_id in {r.tid for r in records if isinstance(r, Comm) and r.pid == pid}
    files = {r.filename: r.inode for r in records if isinstance(r, Mmap2) and r.pid == pid}
    libc = next(name for name in files if b"/libc" in name)
    assert files[libc] == Path(os.fsdecode(libc)).stat().st_ino


def test_first_scan_of_many_processes_is_whole(generator: Generator) -> None:
    """Hundreds of processes with executable mappings are all described."""
    with generator.start("idle", processes=300, maps=3) as running:
        data = processes.scan(SIDEBAND, 1)
        children = {
            int(path.parent.name)
            for path in Path("/proc").glob("[1-9]*/stat")
            if path.read_text().rpartition(")")[2].split()[1] == str(running.pid)
        }
    described = [decode(data, header, SIDEBAND) for header in iter_records(data)]
    assert len(children) == 300
    assert children <= {r.pid for r in described if isinstance(r, Comm)}
    assert children <= {r.pid for r in described if isinstance(r, Mmap2)}


def test_a_cpu_is_not_offline_because_somebody_writes_it() -> None:
    """A message that is made by a write to a CPU's `uevent` comes to the watch, and is no news."""
    with CpuWatch(LinuxKernel()) as watch:
        CPU0_UEVENT.write_text("offline")
        assert watch.poll().left == frozenset()

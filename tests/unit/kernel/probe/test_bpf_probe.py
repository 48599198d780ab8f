# SPDX-License-Identifier: Apache-2.0
"""The host's support for BPF programs, and the rows of `doctor` about it."""

from __future__ import annotations

import errno
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.codec.bpf_symbols import function_id, member_offset
from collectord.errors import KernelError, MissingFeature, MissingPrivilege
from collectord.facts.kernel_facts import BpfFacts, Check
from collectord.kernel.bpf import kernel_headers
from collectord.kernel.bpf.kernel_headers import HeaderTree
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.probe import bpf_probe, checks
from collectord.kernel.probe.bpf_probe import probe_bpf
from collectord.kernel.values.facts_wanted import BpfWanted
from collectord.kernel.values.limits import Limits
from tests.support.bpf_pairs import write

if TYPE_CHECKING:
    from pathlib import Path

ROOT: Final = Limits(
    euid=0,
    capabilities=frozenset({"CAP_BPF", "CAP_PERFMON"}),
    nofile=(1024, 4096),
    memlock_bytes=8 << 20,
    paranoid=2,
    mlock_kb=516,
    max_sample_rate=100_000,
    max_stack=127,
)
WHOLE: Final = BpfFacts(
    python="/usr/bin/python3",
    bcc_version="0.26",
    headers="/lib/modules/6.12/build",
    headers_kind="build",
    headers_release="6.12",
    headers_match=True,
    unprivileged_disabled=2,
)


class Host(LinuxKernel):
    """A kernel of files, whose trials go as the test says."""

    def __init__(self, root: Path, limits: Limits = ROOT) -> None:
        super().__init__(proc=root / "proc", sys=root / "sys")
        self._limits = limits

    def limits(self) -> Limits:
        """Return the given limits."""
        return self._limits


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a host that has everything, the root of its files."""
    for name in ("kprobe", "uprobe"):
        (tmp_path / "sys/bus/event_source/devices" / name).mkdir(parents=True)
    for name, text in (
        ("sys/kernel/btf/vmlinux", "x"),
        ("sys/kernel/security/lockdown", "[none] integrity confidentiality"),
        ("proc/sys/kernel/unprivileged_bpf_disabled", "2\n"),
        ("proc/sys/net/core/bpf_jit_enable", "1\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tree = HeaderTree("build", tmp_path / "h", (tmp_path / "h",), "6.12", matches=True)
    monkeypatch.setattr(kernel_headers, "find_headers", lambda _release: tree)
    monkeypatch.setattr(bpf_probe, "try_load", lambda: True)
    monkeypatch.setattr(bpf_probe, "try_fentry", lambda _btf: True)
    return tmp_path


def probed(
    root: Path,
    *,
    limits: Limits = ROOT,
    python: str = "/usr/bin/python3",
    **wanted: Any,  # noqa: ANN401
) -> BpfFacts:
    """Return facts of the host."""
    found = (python, "0.26" if python else "no interpreter has bcc")
    question = BpfWanted((), found, root / "none")
    return probe_bpf(Host(root, limits), replace(question, **wanted))


def test_a_host_that_has_everything(host: Path) -> None:
    """No part is missing, and each fact agrees with the host."""
    expected = replace(WHOLE, headers=str(host / "h"), headers_release="6.12")
    assert probed(host) == expected


def test_what_the_kernel_lacks(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features are told one by one; that they are missing keeps no program from running."""
    (host / "sys/kernel/btf/vmlinux").unlink()
    (host / "sys/bus/event_source/devices/kprobe").rmdir()
    (host / "proc/sys/kernel/unprivileged_bpf_disabled").unlink()
    monkeypatch.setattr(bpf_probe, "try_load", lambda: False)
    facts = probed(host)
    assert (facts.btf, facts.fentry, facts.kprobes, facts.uprobes) == (False, False, False, True)
    assert (facts.jit, facts.unprivileged_disabled, facts.problem) == (False, None, "")


def _refuse(monkeypatch: pytest.MonkeyPatch, error: KernelError) -> None:
    def refuse() -> bool:
        raise error

    monkeypatch.setattr(bpf_probe, "try_load", refuse)


def test_the_first_problem_is_told(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No system call, lockdown, privilege, refusal, bcc, headers: each hides those after it."""
    few = replace(ROOT, capabilities=frozenset())
    monkeypatch.setattr(kernel_headers, "find_headers", lambda _release: None)
    assert "no kernel headers" in probed(host).problem
    facts = probed(host, python="")
    assert facts.problem == "no interpreter has bcc"
    assert "apt install python3-bpfcc" in facts.remedy
    assert "PyPI" in facts.remedy
    refusal = MissingPrivilege("cannot load", need="CAP_BPF", syscall="bpf", errno=errno.EPERM)
    _refuse(monkeypatch, refusal)
    facts = probed(host, python="")
    assert facts.problem.startswith("cannot load")
    assert facts.need == "CAP_BPF"
    facts = probed(host, python="", limits=few)
    assert facts.need == "CAP_BPF and CAP_PERFMON"
    (host / "sys/kernel/security/lockdown").write_text("none integrity [confidentiality]")
    facts = probed(host, python="", limits=few)
    assert ("lockdown" in facts.problem, facts.need) == (True, "a kernel without lockdown")
    _refuse(monkeypatch, MissingFeature("x", feature="bpf", syscall="bpf", errno=errno.ENOSYS))
    assert probed(host, python="", limits=few).problem == "this kernel has no bpf(2)"


def test_integrity_lets_programs_trace(host: Path) -> None:
    """Only confidentiality keeps them from reading the kernel."""
    (host / "sys/kernel/security/lockdown").write_text("none [integrity] confidentiality")
    assert probed(host).problem == ""


@pytest.mark.parametrize(("switch", "jit"), [("1\n", True), ("0\n", False), (None, True)])
def test_jit_where_nothing_can_be_loaded(
    switch: str | None, jit: bool, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the sysctl has the say, if it is there: in a network namespace it is not."""
    _refuse(monkeypatch, KernelError("x"))
    path = host / "proc/sys/net/core/bpf_jit_enable"
    path.unlink()
    if switch is not None:
        path.write_text(switch)
    facts = probed(host)
    assert (facts.jit, facts.fentry) == (jit, False)


@pytest.mark.parametrize(
    ("capabilities", "paranoid", "need"),
    [
        ({"CAP_SYS_ADMIN"}, 4, ""),
        ({"CAP_BPF", "CAP_PERFMON"}, 2, ""),
        ({"CAP_BPF"}, 2, "CAP_PERFMON"),
        ({"CAP_PERFMON"}, 2, "CAP_BPF"),
        (set(), -1, "CAP_BPF and CAP_PERFMON"),
    ],
)
def test_the_least_privilege(capabilities: set[str], paranoid: int, need: str) -> None:
    """CAP_SYS_ADMIN is not asked for where less will do."""
    limits = replace(ROOT, capabilities=frozenset(capabilities), paranoid=paranoid)
    assert bpf_probe.missing_capabilities(limits) == need


def test_the_closed_paranoid_level_takes_more() -> None:
    """CAP_BPF would not be enough there: one capability is asked for, not two."""
    limits = replace(ROOT, paranoid=3)
    assert bpf_probe.missing_capabilities(limits).startswith("CAP_SYS_ADMIN, as kernel.perf")


def test_headers_that_the_configuration_names(host: Path) -> None:
    """They are judged by what they say of themselves."""
    tree = host / "named"
    facts = probed(host, headers=str(tree))
    assert f"{tree} is not a tree of kernel headers" in facts.problem
    for name in ("linux/kconfig.h", "generated/autoconf.h"):
        (tree / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / "include" / name).touch()
    facts = probed(host, headers=str(tree))
    assert (facts.problem, facts.headers, facts.headers_match) == ("", str(tree), False)
    release = tree / "include/generated/utsrelease.h"
    release.write_text('#define UTS_RELEASE "5.10.0-x"\n')
    assert probed(host, headers=str(tree)).headers_release == "5.10.0-x"


def test_programs_that_are_asked_for(host: Path) -> None:
    """All, or those named; one that is none has its reason."""
    folder = write(host / "p")
    write(host / "p", source="x", name="wrong")
    facts = probed(host, names=("switches", "wrong", "nosuch"), local=folder)
    assert set(facts.programs) == {"switches"}
    assert set(facts.program_problems) == {"wrong"}
    assert set(facts.unknown_programs) == {"nosuch"}
    assert "there is no BPF program 'nosuch'" in facts.unknown_programs["nosuch"]
    facts = probed(host, names=None, local=folder)
    assert {"switches", "execsnoop"} <= set(facts.programs)
    assert "wrong" in facts.program_problems


def rows(limits: Limits = ROOT, lockdown: str = "none", **changes: Any) -> dict[str, Check]:  # noqa: ANN401
    """Return the rows that doctor prints, by name."""
    facts = replace(WHOLE, **changes)
    return {check.name: check for check in checks.bpf(facts, limits, lockdown)}


def test_rows_of_a_host_that_has_everything() -> None:
    """All are ok and none has a remedy."""
    found = rows()
    assert list(found) == [
        "BPF programs",
        "BPF privileges",
        "BPF lockdown",
        "bcc",
        "kernel headers",
        "BTF",
        "BPF JIT",
        "BPF attachments",
        "unprivileged BPF",
    ]
    assert all(check.ok and not check.remedy for check in found.values())
    assert found["bcc"].detail == "0.26, by /usr/bin/python3"


@pytest.mark.parametrize(
    ("changes", "name", "detail", "remedy"),
    [
        ({"problem": "no x", "remedy": "get x"}, "BPF programs", "no x", "get x"),
        ({"python": ""}, "bcc", "no interpreter", "python3-bpfcc"),
        ({"headers_kind": ""}, "kernel headers", "none found", "apt install linux-headers-"),
        (
            {"headers_match": False, "headers_release": "6.1"},
            "kernel headers",
            "of 6.1, not of this kernel",
            "apt install linux-headers-",
        ),
        ({"btf": False}, "BTF", "not in this kernel", "CONFIG_DEBUG_INFO_BTF"),
        ({"jit": False}, "BPF JIT", "interpreted", "net.core.bpf_jit_enable=1"),
        ({"kprobes": False}, "BPF attachments", "no kprobes", "CONFIG_KPROBE_EVENTS"),
        (
            {"uprobes": False, "fentry": False},
            "BPF attachments",
            "no uprobes, fentry",
            "CONFIG_DYNAMIC_FTRACE",
        ),
        ({"program_problems": {"x": "wrong"}}, "BPF program x", "wrong", "correct the files"),
        ({"program_problems": {"/p": "open"}}, "BPF directory", "open", "correct the files"),
        ({"lockdown": "confidentiality"}, "BPF lockdown", "cannot read", "no capability opens it"),
        ({"lockdown": "unknown"}, "BPF lockdown", "unknown: ", "mount -t securityfs"),
        (
            {"limits": replace(ROOT, capabilities=frozenset({"CAP_BPF"}))},
            "BPF privileges",
            "CAP_PERFMON missing",
            "CAP_DAC_READ_SEARCH for tracefs, CAP_IPC_LOCK for rings",
        ),
    ],
)
def test_rows_of_what_is_missing(
    changes: dict[str, Any], name: str, detail: str, remedy: str
) -> None:
    """One row is not ok, and names the remedy."""
    found = rows(**changes)
    assert [check.name for check in found.values() if not check.ok] == [name]
    assert detail in found[name].detail
    assert remedy in found[name].remedy


def test_unprivileged_bpf_is_told_and_not_judged() -> None:
    """It is needed neither open nor closed."""
    assert rows(unprivileged_disabled=0)["unprivileged BPF"].ok
    assert "unprivileged BPF" not in rows(unprivileged_disabled=None)


def test_without_privilege_nothing_is_said_of_attachments() -> None:
    """Support for fentry could not be tried."""
    assert "BPF attachments" not in rows(replace(ROOT, capabilities=frozenset()), fentry=False)


def _btf(*types: tuple[str, int, int]) -> bytes:
    """Return a kernel's BTF with types (name, kind, members) in this order."""
    bodies = {1: (4, 0), 4: (0, 12), 12: (0, 0), 13: (0, 8), 19: (0, 12)}
    names, data = b"\0", b""
    for name, kind, members in types:
        fixed, each = bodies[kind]
        data += struct.pack("<III", len(names), kind << 24 | members, 0)
        data += b"\xff" * (fixed + each * members)
        names += name.encode() + b"\0"
    return struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(data), len(data), len(names)) + (
        data + names
    )


def test_a_functions_number_in_btf() -> None:
    """Types of every length are walked over; a struct of the name is no function."""
    types = (("int", 1, 0), ("s", 4, 3), ("wanted", 13, 2), ("e", 19, 2), ("f", 12, 0))
    assert function_id(_btf(*types), b"f") == 5
    assert function_id(_btf(*types), b"wanted") == 0
    assert function_id(_btf(*types), b"nosuch") == 0
    assert function_id(b"\0" * 64, b"f") == 0
    assert function_id(_btf(*types)[:20], b"f") == 0


def test_a_members_offset_in_btf() -> None:
    """It is in bytes, also of structs that have bitfields; other kinds and names have none."""
    names = b"\0wanted\0first\0second\0"

    def struct_of(flags: int, second_at: int) -> bytes:
        types = struct.pack("<III", 1, 1 << 24, 4) + b"\0" * 4  # an INT of the same name before
        types += struct.pack("<III", 1, flags | 4 << 24 | 2, 16)
        types += struct.pack("<IIIIII", 8, 1, 0, 14, 1, second_at)
        head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names))
        return head + types + names

    for data in (struct_of(0, 64), struct_of(1 << 31, 3 << 24 | 64)):
        assert member_offset(data, b"wanted", b"first") == 0
        assert member_offset(data, b"wanted", b"second") == 8
        assert member_offset(data, b"wanted", b"third") == -1
        assert member_offset(data, b"first", b"second") == -1
        assert member_offset(data[:60], b"wanted", b"second") == -1
    assert member_offset(b"", b"wanted", b"first") == -1


def test_members_of_structs_without_a_name() -> None:
    """They are the outer struct's; one that holds itself, as no compiler makes it, ends too."""
    names = b"\0outer\0inner\0"

    def data(inner_name: int) -> bytes:
        types = struct.pack("<IIIIII", 1, 4 << 24 | 1, 16, 0, 2, 32)
        types += struct.pack("<IIIIII", 0, 5 << 24 | 1, 8, inner_name, 2, 8)
        head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names))
        return head + types + names

    assert member_offset(data(7), b"outer", b"inner") == 5
    assert member_offset(data(0), b"outer", b"inner") == -1

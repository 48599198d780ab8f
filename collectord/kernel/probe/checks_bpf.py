# SPDX-License-Identifier: Apache-2.0
"""Rows of `doctor` about BPF: requirements of compiling, loading and attaching a program."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from collectord.facts.kernel_facts import Check
from collectord.kernel.host.lockdown import CONFIDENTIALITY, LOOK, REMEDY, UNKNOWN
from collectord.kernel.probe.bpf_probe import BCC_REMEDY, missing_capabilities
from collectord.kernel.probe.checks import check, feature, probes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.facts.kernel_facts import BpfFacts
    from collectord.kernel.values.limits import Limits

_HEADER_KINDS: Final = {
    "build": "the kernel's build directory",
    "kheaders": "the kernel's own archive",
    "merged": "packages in /usr/src",
}


def bpf(facts: BpfFacts, limits: Limits, lockdown: str) -> Iterator[Check]:
    """Yield all rows about BPF.

    Args:
        facts: facts of the probe.
        limits: limits of this process.
        lockdown: the level of kernel lockdown.
    """
    yield check(
        "BPF programs",
        ok=not facts.problem,
        detail=facts.problem or "can be compiled, loaded and attached",
        remedy=facts.remedy,
    )
    need = missing_capabilities(limits)
    yield check(
        "BPF privileges",
        ok=not need,
        detail=f"{need} missing" if need else "CAP_BPF and CAP_PERFMON, or CAP_SYS_ADMIN",
        remedy=f"{need}; CAP_DAC_READ_SEARCH for tracefs, CAP_IPC_LOCK for rings",
    )
    yield _lockdown(lockdown)
    yield check(
        "bcc",
        ok=bool(facts.python),
        detail=f"{facts.bcc_version}, by {facts.python}" if facts.python else "no interpreter",
        remedy=BCC_REMEDY,
    )
    yield _headers(facts)
    yield feature(
        "BTF",
        known=facts.btf,
        detail="the kernel describes its types",
        remedy="a kernel with CONFIG_DEBUG_INFO_BTF; most programs do not need it",
    )
    yield check(
        "BPF JIT",
        ok=facts.jit,
        detail="programs run as machine code"
        if facts.jit
        else "programs are interpreted, which is slow",
        remedy="sysctl net.core.bpf_jit_enable=1",
    )
    # fentry is unknown without the privilege to try it.
    if not need:
        yield probes(
            "BPF attachments",
            {
                "kprobes": (facts.kprobes, "CONFIG_KPROBE_EVENTS"),
                "uprobes": (facts.uprobes, "CONFIG_UPROBE_EVENTS"),
                "fentry": (facts.fentry, "CONFIG_DEBUG_INFO_BTF and CONFIG_DYNAMIC_FTRACE"),
            },
        )
    if facts.unprivileged_disabled is not None:
        yield Check(
            "unprivileged BPF",
            ok=True,
            detail="closed" if facts.unprivileged_disabled else "open to every user; not needed",
        )
    for name, reason in sorted(facts.program_problems.items()):
        yield Check(
            "BPF directory" if name.startswith("/") else f"BPF program {name}",
            ok=False,
            detail=reason,
            remedy="correct the files, or remove them",
        )


def _lockdown(level: str) -> Check:
    if level == UNKNOWN:
        detail = f"{level}: at {CONFIDENTIALITY} programs cannot read the kernel"
        return Check("BPF lockdown", ok=False, detail=detail, remedy=LOOK, unknown=True)
    locked = level == CONFIDENTIALITY
    what = "programs cannot read the kernel" if locked else "programs can trace"
    return check("BPF lockdown", ok=not locked, detail=f"{level}: {what}", remedy=REMEDY)


def _headers(facts: BpfFacts) -> Check:
    release = os.uname().release
    remedy = f"apt install linux-headers-{release}"
    if not facts.headers_kind:
        return Check("kernel headers", ok=False, detail="none found", remedy=remedy)
    origin = f"{_HEADER_KINDS[facts.headers_kind]}, {facts.headers}"
    if facts.headers_match:
        return Check("kernel headers", ok=True, detail=origin)
    return Check(
        "kernel headers",
        ok=False,
        detail=f"of {facts.headers_release}, not of this kernel: programs that read its structs "
        f"misread them, the shipped ones do not ({origin})",
        remedy=remedy,
    )

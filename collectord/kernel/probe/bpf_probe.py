# SPDX-License-Identifier: Apache-2.0
"""Requirements of BPF programs on this host: privileges, kernel features, bcc and headers.

Trials load a program that does nothing. Nothing stays: programs end with their descriptors. The
attached one is on a function that the kernel has for such tests and that nobody calls.
"""

from __future__ import annotations

import os
import re
import struct
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord._native import _syscalls
from collectord.codec.bpf_symbols import function_id
from collectord.errors import (
    CollectordError,
    KernelError,
    MissingFeature,
    MissingPrivilege,
    UsageError,
)
from collectord.facts.kernel_facts import BpfFacts
from collectord.kernel.bpf import bpf_calls, catalogue, kernel_headers
from collectord.kernel.bpf.catalogue import BpfProblem
from collectord.kernel.bpf.kernel_headers import HeaderTree
from collectord.kernel.bpf.kernel_members import BTF
from collectord.kernel.host import lockdown, sysfs
from collectord.kernel.host.errno_mapping import perf_need
from collectord.programs.bpf_program import BpfProgram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.kernel.probe.local_kernel import LocalKernel
    from collectord.kernel.values.facts_wanted import BpfWanted
    from collectord.kernel.values.limits import Limits

BCC_REMEDY: Final = "apt install python3-bpfcc (PyPI's package bcc is something else)"
_PMUS: Final = "bus/event_source/devices"
_RELEASE: Final = re.compile(r'#define\s+UTS_RELEASE\s+"([^"]*)"')
_RELEASE_FILE: Final = "include/generated/utsrelease.h"
_TRACING: Final = 26  # enum bpf_prog_type
_TRACE_FENTRY: Final = 24  # enum bpf_attach_type
# The program returns 0.
_INSTRUCTIONS: Final = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)
_NAME: Final = b"collectord"
_JITED_LENGTH_AT: Final = 16  # in struct bpf_prog_info

# net/bpf/test_run.c
_FUNCTION: Final = b"bpf_fentry_test1"


def probe_bpf(kernel: LocalKernel, wanted: BpfWanted) -> BpfFacts:
    """Probe the running kernel, this user, and the programs.

    A program that does nothing is loaded and unloaded; nothing else changes.
    """
    programs, others = _programs(wanted)
    facts = BpfFacts(
        btf=(kernel.sys / BTF).is_file(),
        unprivileged_disabled=sysfs.number(kernel.proc / "sys/kernel/unprivileged_bpf_disabled"),
        # PMUs that bcc attaches by: without them it would leave probes in tracefs.
        kprobes=(kernel.sys / _PMUS / "kprobe").is_dir(),
        uprobes=(kernel.sys / _PMUS / "uprobe").is_dir(),
        programs={program.name: program for program in programs},
        program_problems={one.name or one.path: one.reason for one in others if one.path},
        unknown_programs={one.name: one.reason for one in others if not one.path},
    )
    facts, refusal = _with_trials(kernel, facts)
    facts, no_headers = _with_headers(facts, wanted.headers)
    python, version = wanted.python
    if python:
        facts = replace(facts, python=python, bcc_version=version)
    problems = _problems(kernel, refusal, "" if python else version, no_headers)
    problem = next(problems, _Problem())
    return replace(facts, problem=problem.text, remedy=problem.remedy, need=problem.need)


def missing_capabilities(limits: Limits) -> str:
    """Return the least that loads and attaches programs, "" where the process has it."""
    if "CAP_SYS_ADMIN" in limits.capabilities:
        return ""
    perf = perf_need(limits)
    if "CAP_SYS_ADMIN" in perf:
        return perf
    own = "" if "CAP_BPF" in limits.capabilities else "CAP_BPF"
    return " and ".join(filter(None, (own, perf)))


@dataclass(frozen=True, slots=True)
class _Problem:
    """A reason why no program can run, as `BpfFacts` has it."""

    text: str = ""
    remedy: str = ""
    need: str = ""


def _problems(
    kernel: LocalKernel, refusal: KernelError | None, no_bcc: str, no_headers: KernelError | None
) -> Iterator[_Problem]:
    """Yield the reasons why no program can run, the one to put right first at the beginning."""
    if isinstance(refusal, MissingFeature):
        yield _Problem("this kernel has no bpf(2)", "a kernel with CONFIG_BPF_SYSCALL")
    if lockdown.read_lockdown(kernel.sys) == lockdown.CONFIDENTIALITY:
        message = "kernel lockdown does not let BPF programs trace"
        yield _Problem(message, lockdown.REMEDY, lockdown.NEED)
    need = missing_capabilities(kernel.limits())
    if need:
        yield _Problem("BPF programs need a privilege", f"needs {need}", need)
    if refusal is not None:
        need = refusal.need if isinstance(refusal, MissingPrivilege) else ""
        yield _Problem(refusal.message, refusal.hint, need)
    if no_bcc:
        yield _Problem(no_bcc, BCC_REMEDY)
    if no_headers is not None:
        yield _Problem(no_headers.message, no_headers.hint)


def _with_trials(kernel: LocalKernel, facts: BpfFacts) -> tuple[BpfFacts, KernelError | None]:
    """Return facts completed by loading a program, and the refusal if none can be loaded."""
    try:
        jit = try_load()
    except KernelError as error:
        switch = sysfs.number(kernel.proc / "sys/net/core/bpf_jit_enable")
        return replace(facts, jit=switch != 0, fentry=False), error
    fentry = facts.btf and try_fentry(kernel.sys / BTF)
    return replace(facts, jit=jit, fentry=fentry), None


def _with_headers(facts: BpfFacts, named: str) -> tuple[BpfFacts, KernelError | None]:
    release = os.uname().release
    tree = _named_tree(Path(named), release) if named else kernel_headers.find_headers(release)
    if tree is None and named:
        missing = MissingFeature(
            f"{named} is not a tree of kernel headers",
            feature="kernel headers",
            hint="it needs include/linux and include/generated; or leave [bpf] headers out",
        )
        return facts, missing
    if tree is None:
        return facts, kernel_headers.missing(release)
    return replace(
        facts,
        headers=str(tree.path),
        headers_kind=tree.kind,
        headers_release=tree.release,
        headers_match=tree.matches,
    ), None


def _named_tree(path: Path, release: str) -> HeaderTree | None:
    if not kernel_headers.is_complete(path):
        return None
    try:
        found = _RELEASE.search((path / _RELEASE_FILE).read_text(errors="replace"))
    except OSError:
        found = None
    theirs = found[1] if found else "another kernel"
    return HeaderTree("build", path, (path,), theirs, matches=theirs == release)


def _programs(wanted: BpfWanted) -> tuple[list[BpfProgram], list[BpfProblem]]:
    if wanted.names is None:
        found = catalogue.list_programs(wanted.local)
    else:
        found = [_loaded(name, wanted.local) for name in wanted.names]
    return (
        [one for one in found if isinstance(one, BpfProgram)],
        [one for one in found if isinstance(one, BpfProblem)],
    )


def _loaded(name: str, local: Path) -> BpfProgram | BpfProblem:
    """Return the program or its problem; a problem without a path means an unknown name."""
    try:
        return catalogue.load(name, local)
    except UsageError as error:
        return BpfProblem(name, "", str(error))
    except CollectordError as error:
        return BpfProblem(name, str(local), str(error))


def try_load() -> bool:
    """Load a tracepoint program.

    Returns:
        whether the kernel compiled it.

    Raises:
        MissingFeature: this kernel has no bpf(2).
        MissingPrivilege, KernelError: the kernel refuses it.
    """
    with ExitStack() as stack:
        fd = _load(bpf_calls.TRACEPOINT, stack)
        info = bpf_calls.object_info(fd, "BPF program")
        return bool(struct.unpack_from("<I", info, _JITED_LENGTH_AT)[0])


def try_fentry(btf: Path) -> bool:
    """Whether a program can be attached to a kernel function by a trampoline.

    Args:
        btf: the kernel's own types.
    """
    try:
        number = function_id(btf.read_bytes(), _FUNCTION)
    except OSError:
        return False
    if not number:
        return False
    with ExitStack() as stack:
        try:
            fd = _load(_TRACING, stack, attach_type=_TRACE_FENTRY, btf_id=number)
            os.close(_syscalls.bpf_attach_tracing(fd))
        except (KernelError, OSError):
            return False
    return True


def _load(kind: int, stack: ExitStack, *, attach_type: int = 0, btf_id: int = 0) -> int:
    """Load the program and return its descriptor, owned by the stack. Raises KernelError."""
    try:
        fd = _syscalls.bpf_load_program(
            kind, _INSTRUCTIONS, name=_NAME, attach_type=attach_type, btf_id=btf_id
        )
    except OSError as error:
        raise bpf_calls.refused(error.errno or 0, "cannot load a BPF program") from error
    stack.callback(os.close, fd)
    return fd

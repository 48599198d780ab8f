# SPDX-License-Identifier: Apache-2.0
"""Whether a loaded BPF program may hide a tracepoint's events from perf, by the kernel's answer.

trace_call_bpf() hides an event where a program returns 0, and where it skips a program's run
because another one runs on the CPU; only since Linux 6.7 are skipped runs counted.
"""

from __future__ import annotations

import os
from typing import Final

from collectord.codec.bpf_returns import always_returns
from collectord.codec.perf_bpf import BpfArray
from collectord.errors import KernelError
from collectord.kernel.bpf import bpf_calls, program_image
from collectord.programs.bpf_program import tracepoint_misses_are_counted

_PASS: Final = 1


def may_hide_events(fd: int) -> bool:
    """Whether the program hides events, or may do so without being counted by the kernel.

    A program that is on no tracepoint hides none. One whose instructions cannot be read may.

    Args:
        fd: descriptor of the program.
    """
    try:
        if bpf_calls.program_info(fd).type != bpf_calls.TRACEPOINT:
            return False
        image = program_image.read_image(fd, (BpfArray.XLATED_INSNS,))
    except (KernelError, OSError):
        return True
    code = image.arrays.get(BpfArray.XLATED_INSNS, b"")
    counted = tracepoint_misses_are_counted(os.uname().release)
    return not (counted and always_returns(code, _PASS))

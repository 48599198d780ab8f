# SPDX-License-Identifier: Apache-2.0
"""Errors about a program that the worker could not compile, load, attach or describe.

Each is one line that says what failed and where, and what to do.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from collectord.errors import BpfError, KernelError, MissingFeature, MissingPrivilege
from collectord.text.units import MIB

if TYPE_CHECKING:
    from collectord.source.bcc_child import Outcome

_TEXT_LINES: Final = 60
_NEEDS: Final = {
    "bpf": "CAP_BPF and CAP_PERFMON",
    "perf": "CAP_PERFMON (CAP_SYS_ADMIN where kernel.perf_event_paranoid is 3 or more)",
    "tracefs": "CAP_DAC_READ_SEARCH, or a group that may read tracefs",
}
_VERBS: Final = {"bpf": "load", "perf": "attach", "tracefs": "read the tracepoint"}
_INSTALL: Final = "install python3-bpfcc (Debian, Ubuntu), python3-bcc (Fedora) or python-bcc"
# Remedies by the first word of what is missing.
_HINTS: Final = {
    "tracefs": "mount it: mount -t tracefs nodev /sys/kernel/tracing",
    "kprobes": "a program on tracepoints needs none",
    "function": "one of a module is there while the module is loaded",
}
# Lines of clang, libbcc and the verifier are looked for to be shown. None decides the kind of an
# error or its hint: the step, the errno and the exit status of the worker do.
_COMPILER_ERROR: Final = re.compile(r"^.*?: (?:fatal )?error: .*$", re.MULTILINE)
_MAP_ERROR: Final = re.compile(r"could not open bpf map: (\S+), error: ")
_VERIFIED: Final = re.compile(r"^processed \d+ insns", re.MULTILINE)
# Lines of the log that are not reasons: instructions, places in the source, statistics.
_LOG_NOTE: Final = re.compile(r"\d+: |; |from \d+ to \d+|verification time|stack depth|$")
_CRASHES: Final = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)


class Failure(msgspec.Struct, forbid_unknown_fields=True):
    """The worker's report of its failure; see `bcc_program.Failure`."""

    step: Literal["compile", "map", "load", "attach", "describe", "worker"]
    message: str
    errno: int = 0
    lack: str = ""
    need: Literal["", "bpf", "perf", "tracefs"] = ""


@dataclass(frozen=True, slots=True)
class Words:
    """Errors about one program.

    Attributes:
        name: name of the program.
        python: interpreter of the worker.
        timeout_s, memory_bytes: its limits.
    """

    name: str
    python: str
    timeout_s: float
    memory_bytes: int

    def error(self, step: str, message: str, *, text: str = "", hint: str = "") -> BpfError:
        """Return an error at a step."""
        own_place = message.startswith(f"{self.name}.bpf.c:")
        whole = message if own_place else f"{self.name}: {message}"
        return BpfError(whole, program=self.name, step=step, text=text, hint=hint)

    def not_started(self, error: OSError) -> BpfError:
        """Return the error where the worker could not be started."""
        reason = error.strerror or str(error)
        return self.error(
            "worker", f"cannot start {self.python}: {reason}", hint="it must be a Python with bcc"
        )

    def garbage(self, outcome: Outcome) -> BpfError:
        """Return the error for an answer that no worker of ours gives."""
        message = f"the bcc worker under {self.python} gave no valid answer"
        return self.error("worker", message, text=outcome.said.end)

    def of_outcome(self, outcome: Outcome) -> BpfError | None:
        """Return the error for how the worker ended, None if it ended well."""
        if outcome.too_late:
            message = f"the bcc worker took more than {self.timeout_s:g} s and was stopped"
            hint = "raise compile_time in [bpf], or give the program less to do"
            return self.error("worker", message, text=outcome.said.beginning, hint=hint)
        if outcome.status:
            return self._of_status(outcome)
        if outcome.fds_lost:
            message = "out of file descriptors for what the program opened"
            hint = "raise RLIMIT_NOFILE (LimitNOFILE= of the unit, ulimit -n)"
            return self.error("worker", message, hint=hint)
        return None

    def _of_status(self, outcome: Outcome) -> BpfError:
        text, status = outcome.said.end, outcome.status
        limit = f"limit of {self.memory_bytes // MIB} MiB"
        if status == errno.ENOMEM:
            message = f"the bcc worker needs more memory than its {limit}"
            return self.error("worker", message, text=text, hint="raise compile_memory in [bpf]")
        if status > 0:
            last = text.strip().splitlines()[-1:] or [f"status {status}"]
            return self.error("worker", f"the bcc worker failed: {last[0]}", text=text)
        number = -status
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        hint = ""
        if status in _CRASHES:
            hint = f"a crash of LLVM, or the {limit} is too low"
        message = f"the bcc worker was killed by {name}"
        return self.error("worker", message, text=text, hint=hint)

    def of_failure(self, failure: Failure, outcome: Outcome) -> BpfError | KernelError:
        """Return the error for the failure that the worker reports."""
        said = outcome.said
        if failure.need:
            message = f"{self.name}: no privilege to {_VERBS[failure.need]} {failure.message}"
            return MissingPrivilege(message, need=_NEEDS[failure.need], errno=failure.errno)
        if failure.lack:
            return self._lacking(failure.lack, failure.message)
        if failure.step == "compile":
            found = _COMPILER_ERROR.search(said.beginning)
            message = found[0] if found else failure.message
            return self.error("compile", message, text=said.beginning)
        if failure.step == "map":
            refused = _MAP_ERROR.search(said.beginning)
            which = f"map {refused[1]}" if refused else "a map"
            message = f"{which} cannot be made: {os.strerror(failure.errno)}"
            return self.error("load", message, text=said.beginning)
        if failure.step == "load":
            return self._verifier(failure, said.end)
        text = _last_lines(said.end)
        reason = os.strerror(failure.errno) if failure.errno else text.rpartition("\n")[2]
        message = f"{failure.message}: {reason}" if reason else failure.message
        return self.error(failure.step, message, text=text)

    def _lacking(self, feature: str, message: str = "") -> MissingFeature:
        if feature == "bcc":
            message = f"{self.python} has no bcc ({message})"
            return MissingFeature(message, feature=feature, hint=_INSTALL)
        message = f"{self.name}: this kernel has no {feature}"
        hint = _HINTS.get(feature.partition(" ")[0], "")
        return MissingFeature(message, feature=feature, hint=hint)

    def _verifier(self, failure: Failure, text: str) -> BpfError:
        text = _last_lines(text)
        ends = list(_VERIFIED.finditer(text))
        log = text[: ends[-1].start()].splitlines() if ends else []
        reasons = [line for line in log if not _LOG_NOTE.match(line)]
        if reasons:
            message = f"the verifier rejects {failure.message}: {reasons[-1]}"
        else:
            reason = os.strerror(failure.errno) if failure.errno else "unknown error"
            message = f"{failure.message} cannot be loaded: {reason}"
        return self.error("load", message, text=text)


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_TEXT_LINES:])

# SPDX-License-Identifier: Apache-2.0
"""The exception tree. Each class carries fields, and says what to do next.

    CollectordError                     exit 1
      UsageError        hint                        exit 2
        UnknownEvent    hint                        exit 2
      NotAllowed        hint                        exit 4
      ConfigError       path, key, hint             exit 6
      PlanError         what, hint                  exit 6
      KernelError       syscall, errno, hint        exit 1
        MissingPrivilege  need                      exit 4
        MissingFeature    feature                   exit 5
        NoSuchTarget                                exit 1
      ShardSilent       shard                       exit 1
      CodecError        offset, reason              exit 1
      SinkError         path, errno, hint           exit 1
        UnsafePath      reason                      exit 1
      BpfError          program, step, text         exit 1
      StoreError        key, hint                   exit 1
        StoreUnavailable                            exit 1
        StoreRefused                                exit 4
        NotStored                                   exit 1
        StoreConflict                               exit 1

A corrupt ring is not an exception: the native pass returns a reason code and the ring is
quarantined. The exit codes are part of the command-line contract (docs/cli.md).
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import ClassVar


def install_command(*extras: str) -> str:
    """Return the command that installs extras of this program where it runs, for a hint.

    An environment of a package or of `make install` has no pip: that of the host, of any version
    since 22.3, installs into it.
    """
    where = "" if find_spec("pip") is not None else f"--python {sys.prefix} "
    return f"python3 -m pip {where}install 'collectord[{','.join(extras)}]'"


class CollectordError(Exception):
    """Base of all errors that this program raises on purpose.

    `str(error)` is one line for the user: what failed, and what to do.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class UsageError(CollectordError):
    """The command line asks for something that does not parse or cannot be combined."""

    exit_code: ClassVar[int] = 2


class UnknownEvent(UsageError):
    """An event that does not exist on this host; `hint` names the nearest one."""


class NotAllowed(CollectordError):
    """A request to a daemon by a user who may not make it; `hint` names those who may."""

    exit_code: ClassVar[int] = 4


class ConfigError(CollectordError):
    """An error in a configuration file. `key` is dotted, e.g. `session[0].source[1].ring`."""

    exit_code: ClassVar[int] = 6

    def __init__(self, message: str, *, path: str = "", key: str = "", hint: str = "") -> None:
        where = ": ".join(part for part in (path, key) if part)
        super().__init__(f"{where}: {message}" if where else message, hint=hint)
        self.path = path
        self.key = key


class PlanError(CollectordError):
    """Configuration and kernel facts cannot be made into a plan (limits, unknown event)."""

    exit_code: ClassVar[int] = 6

    def __init__(self, message: str, *, what: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.what = what


class KernelError(CollectordError):
    """A failed system call, for a reason without a narrower class."""

    def __init__(self, message: str, *, syscall: str = "", errno: int = 0, hint: str = "") -> None:
        why = ": ".join(part for part in (syscall, os.strerror(errno) if errno else "") if part)
        detail = f"{message} ({why})" if errno else message
        super().__init__(detail, hint=hint)
        self.syscall = syscall
        self.errno = errno


class NoDaemon(KernelError):
    """No daemon runs: the control socket is absent, or is one that a killed daemon left."""

    exit_code: ClassVar[int] = 3


class MissingPrivilege(KernelError):
    """A refusal of the kernel for lack of a privilege. `need` is the least that would suffice."""

    exit_code: ClassVar[int] = 4

    def __init__(
        self, message: str, *, need: str, syscall: str = "", errno: int = 0, hint: str = ""
    ) -> None:
        super().__init__(message, syscall=syscall, errno=errno, hint=hint or f"needs {need}")
        self.need = need


class MissingFeature(KernelError):
    """A feature that this kernel or machine lacks. `source` is the source that needs it, or ""."""

    exit_code: ClassVar[int] = 5
    source: str = ""

    def __init__(
        self, message: str, *, feature: str, syscall: str = "", errno: int = 0, hint: str = ""
    ) -> None:
        super().__init__(message, syscall=syscall, errno=errno, hint=hint)
        self.feature = feature


class NoSuchTarget(KernelError):
    """A pid, thread, user, cgroup or CPU that does not exist, or no longer exists."""


class ShardSilent(CollectordError):
    """A drain thread that did not respond. `shard` is its number, as in `drain/0`."""

    def __init__(self, shard: int, seconds: float) -> None:
        super().__init__(
            f"drain thread drain/{shard} did not answer for {seconds:g} s",
            hint="a read of one of its rings hangs, or the thread gets no CPU",
        )
        self.shard = shard


class CodecError(CollectordError):
    """Bytes that violate their format. `offset` counts from the start of the input."""

    def __init__(self, message: str, *, offset: int, reason: str) -> None:
        super().__init__(f"{message} at byte {offset} ({reason})")
        self.offset = offset
        self.reason = reason


class SinkError(CollectordError):
    """A segment, manifest or state directory that cannot be written or read."""

    def __init__(self, message: str, *, path: str, errno: int = 0, hint: str = "") -> None:
        detail = f"{message}: {path}" + (f" ({os.strerror(errno)})" if errno else "")
        super().__init__(detail, hint=hint)
        self.path = path
        self.errno = errno


class UnsafePath(SinkError):
    """A name of something that is not a plain file, or that another user could have replaced."""

    def __init__(self, reason: str, *, path: str, errno: int = 0, hint: str = "") -> None:
        CollectordError.__init__(self, f"{path}: {reason}", hint=hint)
        self.reason = reason
        self.path = path
        self.errno = errno


class BpfError(CollectordError):
    """A BPF program that cannot be compiled, loaded, attached or described.

    `step` is one of these, or "worker" if the process that runs them failed. `text` is the output
    of the compiler or the verifier, several lines.
    """

    def __init__(
        self, message: str, *, program: str, step: str, text: str = "", hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.program = program
        self.step = step
        self.text = text


class StoreError(CollectordError):
    """An object store that cannot be opened, read or written. `key` is the object's, or "".

    `reason` is a word for a metric.
    """

    reason: ClassVar[str] = "failed"

    def __init__(self, message: str, *, key: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.key = key


class StoreUnavailable(StoreError):
    """A store that does not answer, or says that it cannot now: it may have done it."""

    reason: ClassVar[str] = "unavailable"


class StoreRefused(StoreError):
    """A store that refuses these credentials."""

    exit_code: ClassVar[int] = 4
    reason: ClassVar[str] = "refused"


class NotStored(StoreError):
    """An object that is not there, be it that the store has said that it was put."""

    reason: ClassVar[str] = "missing"


class StoreConflict(StoreError):
    """An object with other contents than it must have. Nothing is replaced by itself."""

    reason: ClassVar[str] = "conflict"

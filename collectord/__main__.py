# SPDX-License-Identifier: Apache-2.0
"""The program's entry, and `python -m collectord`: signal handling first, then slow imports."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from collectord.control import early_signals
from collectord.control.imports import slow_imports

if TYPE_CHECKING:
    from collectord.kernel.port import Kernel

# Verbs with rings to drain and segments to seal, and the signals that do not end them, in addition
# to those that end no verb.
_COLLECTING: Final = {"run": (signal.SIGHUP,), "opener": (signal.SIGHUP,), "record": ()}


def main() -> NoReturn:
    """Run the command line, and end the process with its exit status.

    It ends without the interpreter's teardown, which takes 10 ms to free all memory object by
    object and runs no code that matters here: a verb has undone what it did.
    """
    for verb in sys.argv[1:2]:
        if verb in _COLLECTING:
            early_signals.ignore(*_COLLECTING[verb])
    with slow_imports():
        from collectord import cli  # noqa: PLC0415  # a tenth of a second
    status = cli.main(make_kernel)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # it was reported, or there is no place to report it
            stream.flush()
    os._exit(status)


def make_kernel() -> Kernel:
    """Return the kernel of this process. Only verbs that take one pay for its import."""
    with slow_imports():
        from collectord.kernel.linux import LinuxKernel  # noqa: PLC0415
    return LinuxKernel()


if __name__ == "__main__":
    main()

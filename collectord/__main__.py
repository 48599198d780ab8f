# SPDX-License-Identifier: Apache-2.0
"""The program's entry, and `python -m collectord`: signal handling first, then slow imports."""

from __future__ import annotations

import gc
import signal
import sys
from typing import TYPE_CHECKING, Final

from collectord.control import stray

if TYPE_CHECKING:
    from collectord.kernel.port import Kernel

# Verbs with rings to drain and segments to seal, and the signals that do not end them, in addition
# to those that end no verb.
_COLLECTING: Final = {"run": (signal.SIGHUP,), "opener": (signal.SIGHUP,), "record": ()}


def main() -> int:
    """Run the command line and return its exit status."""
    for verb in sys.argv[1:2]:
        if verb in _COLLECTING:
            stray.ignore(*_COLLECTING[verb])
    with stray.abrupt_interrupt():
        from collectord import cli  # noqa: PLC0415  # a tenth of a second
    status = cli.main(make_kernel)
    # The interpreter at its end traverses all imported objects three times; frozen ones are
    # skipped.
    gc.freeze()
    return status


def make_kernel() -> Kernel:
    """Return the kernel of this process. Only verbs that take one pay for its import."""
    with stray.abrupt_interrupt():
        from collectord.kernel.linux import LinuxKernel  # noqa: PLC0415
    return LinuxKernel()


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The program's entry, and `python -m collectord`: signal handling first, then slow imports."""

import gc
import signal
import sys
from typing import Final

from collectord.control import stray

# Verbs with rings to drain and segments to seal, and the signals that do not end them, in addition
# to those that end no verb.
_COLLECTING: Final = {"run": (signal.SIGHUP,), "record": ()}


def main() -> int:
    """Run the command line and return its exit status."""
    for verb in sys.argv[1:2]:
        if verb in _COLLECTING:
            stray.ignore(*_COLLECTING[verb])
    with stray.abrupt_interrupt():
        from collectord import cli  # noqa: PLC0415  # a tenth of a second
    status = cli.main()
    # The interpreter at its end traverses all imported objects three times; frozen ones are
    # skipped.
    gc.freeze()
    return status


if __name__ == "__main__":
    sys.exit(main())

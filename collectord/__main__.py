# SPDX-License-Identifier: Apache-2.0
"""The program's entry, and `python -m collectord`: signals first, then long imports."""

import gc
import signal
import sys
from typing import Final

from collectord.control import stray

# Verbs that have rings to drain and segments to seal, with the signals that do not end them
# besides those that end none of them.
_COLLECTING: Final = {"run": (signal.SIGHUP,), "record": ()}


def main() -> int:
    """Run the command line and return its exit status."""
    for verb in sys.argv[1:2]:
        if verb in _COLLECTING:
            stray.ignore(*_COLLECTING[verb])
    with stray.abrupt_interrupt():
        from collectord import cli  # noqa: PLC0415  # a tenth of a second
    status = cli.main()
    # The interpreter, as it ends, looks three times through all that was ever imported.
    gc.freeze()
    return status


if __name__ == "__main__":
    sys.exit(main())

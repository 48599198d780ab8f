# SPDX-License-Identifier: Apache-2.0
"""A BCC program as its users write them: a callback for each event, by polling.

Runs under an interpreter that has bcc: PROGRAM PAGES -- COMMAND. PROGRAM submits into a table
"events", rings of perf or a ring buffer; what it cannot reserve in a ring buffer it counts in
"refused". This counts what its callback got and what was lost while COMMAND ran, and prints both
as JSON. It stores nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bcc import BPF, RingBuf

_POLL_MS = 100


def main(program: str, pages: str, command: list[str]) -> int:
    """Count events until the command ends."""
    bpf = BPF(text=Path(program).read_text())
    seen = lost = 0
    buffer = bpf["events"]

    def handle(_cpu: int, data: int, _size: int) -> int:
        nonlocal seen
        event: Any = buffer.event(data)
        seen += event.nr >= 0
        return 0

    def handle_lost(count: int) -> None:
        nonlocal lost
        lost += count

    if isinstance(buffer, RingBuf):
        buffer.open_ring_buffer(handle)
        poll = bpf.ring_buffer_poll
    else:
        buffer.open_perf_buffer(handle, page_cnt=int(pages), lost_cb=handle_lost)
        poll = bpf.perf_buffer_poll
    child = subprocess.Popen(command)
    while child.poll() is None:
        poll(timeout=_POLL_MS)
    poll(timeout=0)
    if isinstance(buffer, RingBuf):
        lost = bpf["refused"].sum(0).value
    print(json.dumps({"seen": seen, "lost": lost}))
    return child.returncode


if __name__ == "__main__":
    _, PROGRAM, PAGES, _, *COMMAND = sys.argv
    sys.exit(main(PROGRAM, PAGES, COMMAND))

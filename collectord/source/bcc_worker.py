# SPDX-License-Identifier: Apache-2.0
"""The worker: it compiles and attaches a BPF program with BCC, and sends its descriptors.

It runs under any interpreter that has `bcc` and knows nothing of this package: it and
`bcc_program` beside it import only the standard library and `bcc`, in the language of Python 3.9.
It is started as

    python -I bcc_worker.py SOCKET PARENT

and gets one request by the inherited socket: 8 bytes of length, little-endian, and JSON. The
answer has the same form; messages of one byte follow that carry descriptors. "fd" in the answer
counts them from 0 in the order of their arrival. Messages of clang, libbcc and the verifier go to
stderr.

It ends by os._exit: the clean-up that bcc registers disables perf events, also those that another
process has taken over by then.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collectord.source.bcc_program import Failure, Program
else:
    # -I leaves the program's own folder out. It comes last, so that it hides no module of bcc.
    sys.path.append(str(Path(__file__).resolve().parent))
    sys.dont_write_bytecode = True
    from bcc_program import Failure, Program

_FDS_PER_MESSAGE: Final = 250  # SCM_MAX_FD is 253
_PR_SET_PDEATHSIG: Final = 1


def load(request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Compile, load, attach, describe."""
    program = Program(_import_bcc(), request)
    program.load()
    program.attach()
    return program.describe()


def symbols(request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Return names of addresses, process by process."""
    bcc = _import_bcc()
    names = []
    for pid, addresses in request["stacks"]:
        cache = bcc.SymbolCache(pid)
        names.append([_symbol(*cache.resolve(address, pid >= 0)) for address in addresses])
        bcc.lib.bcc_free_symcache(cache.cache, pid)
    return {"names": names}, []


def _symbol(name: bytes | None, offset: int, module: bytes | None) -> str:
    if name:
        return name.decode(errors="backslashreplace")
    if module:
        file = module.rpartition(b"/")[2].decode(errors="backslashreplace")
        return f"{offset:#x} [{file}]"
    return "[unknown]"


def _import_bcc() -> Any:  # noqa: ANN401 - a module
    try:
        import bcc  # noqa: PLC0415

        bcc.BPF, bcc.lib  # noqa: B018
    except (ImportError, OSError, AttributeError) as error:
        raise Failure("worker", str(error), lack="bcc") from error
    return bcc


def _contain(parent: int, memory_bytes: int) -> None:
    """Die with the parent, or before it when memory runs out, and leave no core file."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    """Serve one request."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with sock.makefile("rb") as stream:
        request = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    _contain(int(sys.argv[2]), request["memory_bytes"])
    fds: list[int] = []
    try:
        answer, fds = {"load": load, "symbols": symbols}[request["mode"]](request)
    except Failure as failure:
        answer = {"failure": failure.facts}
    text = json.dumps(answer).encode()
    sock.sendall(len(text).to_bytes(8, "little") + text)
    for start in range(0, len(fds), _FDS_PER_MESSAGE):
        socket.send_fds(sock, [b"f"], fds[start : start + _FDS_PER_MESSAGE])


if __name__ == "__main__":
    code = 1
    try:
        main()
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may reach bcc's clean-up
        traceback.print_exc()
    os._exit(code)

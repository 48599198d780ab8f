# SPDX-License-Identifier: Apache-2.0
"""The worker: it compiles and attaches a BPF program with BCC, and sends its descriptors.

It runs under any interpreter that has `bcc` and knows nothing of this package: it,
`bcc_program` and `bcc_submissions` beside it import only the standard library and `bcc`, in the
language of Python 3.9.
It is started as

    python -I bcc_worker.py SOCKET PARENT

and gets one request by the inherited socket: 8 bytes of length, little-endian, and JSON. The
answer has the same form; messages of one byte follow that carry descriptors. "fd" in the answer
counts them from 0 in the order of their arrival. Messages of clang, libbcc and the verifier go to
stderr.

It ends by os._exit, with the status ENOMEM where its memory does not do: the clean-up that bcc
registers disables perf events, also those that another process has taken over by then.
"""

from __future__ import annotations

import ctypes
import errno
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
# Functions of C++ and of LLVM that take what is called where memory is refused; else they abort.
_HANDLER_SETTERS: Final = (
    "_ZSt15set_new_handlerPFvvE",
    "_ZN4llvm31install_bad_alloc_error_handlerEPFvPvPKcbES0_",
)
_GIVE_UP: Final = ctypes.CFUNCTYPE(None)(lambda: os._exit(errno.ENOMEM))


def load(bcc: Any, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:  # noqa: ANN401 - a module
    """Compile, load, attach, describe."""
    program = Program(bcc, request)
    program.load()
    program.attach()
    return program.describe()


def symbols(bcc: Any, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:  # noqa: ANN401 - a module
    """Return names of addresses, process by process."""
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


def _contain(parent: int) -> None:
    """Die with the parent, or before it when the host's memory runs out; leave no core file."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _limit_memory(bcc: Any, memory_bytes: int) -> None:  # noqa: ANN401 - a module
    """Limit what is mapped, with bcc's libraries: they are there, as their loader has no errno."""
    for name in _HANDLER_SETTERS:
        with suppress(AttributeError):  # a libbcc that has them within
            getattr(bcc.lib, name)(_GIVE_UP, None)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    """Serve one request."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with sock.makefile("rb") as stream:
        request = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    _contain(int(sys.argv[2]))
    fds: list[int] = []
    try:
        bcc = _import_bcc()
        _limit_memory(bcc, request["memory_bytes"])
        answer, fds = {"load": load, "symbols": symbols}[request["mode"]](bcc, request)
    except Failure as failure:
        if isinstance(failure.__cause__, MemoryError):
            raise failure.__cause__  # noqa: B904 - the failure is of no use
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
    except MemoryError:
        code = errno.ENOMEM
    except BaseException:  # noqa: BLE001 - nothing may reach bcc's clean-up
        traceback.print_exc()
    os._exit(code)

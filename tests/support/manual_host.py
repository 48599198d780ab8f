# SPDX-License-Identifier: Apache-2.0
"""A host for the commands of the manual: a daemon with its default places, seen by nobody else.

The daemon and the commands share a mount namespace, where folders of the test stand at
/etc/collectord, /var/lib/collectord and /run/collectord, and a network namespace, where the port
of the metrics is free.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support import manual
from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Iterator

ETC: Final = Path("/etc/collectord")
_PLACES: Final = (ETC, Path("/var/lib/collectord"), Path("/run/collectord"))
_LIMIT_S: Final = patient(60)
# Binds the folders, brings the loopback device up, and becomes the daemon.
_WITHIN: Final = """
set -e
while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done
shift
"$1" -c 'import fcntl, socket, struct
with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sH14x", b"lo", 0x41))'
exec "$@" -m collectord run
"""


class ManualHost:
    """A running daemon, and a shell beside it."""

    def __init__(self, pid: int, folder: Path, environment: dict[str, str]) -> None:
        self._pid = pid
        self._folder = folder
        self._environment = environment

    def shell(self, command: str, page: str) -> subprocess.CompletedProcess[str]:
        """Run one command in the folder of a page."""
        place = self._folder / page
        place.mkdir(parents=True, exist_ok=True)
        inside = ["nsenter", "-t", str(self._pid), "-m", "-n", f"--wd={place}"]
        return subprocess.run(
            [*inside, "bash", "-ec", command],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )


@contextmanager
def running(folder: Path) -> Iterator[ManualHost]:
    """Start the daemon with the configuration that is installed; it ends with the block."""
    with ExitStack() as stack:
        binds: list[str] = []
        for place in _PLACES:
            if not place.exists():
                place.mkdir()
                stack.callback(place.rmdir)
            own = folder / place.name / place.parent.name
            own.mkdir(parents=True)
            binds += [str(own), str(place)]
        _fill_etc(Path(binds[0]))
        environment = _environment(folder)
        notify = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        notify.settimeout(_LIMIT_S)
        notify.bind(str(folder / "notify"))
        log = stack.enter_context((folder / "log").open("w"))
        own_namespaces = ["unshare", "--mount", "--net", "--propagation", "private"]
        process = subprocess.Popen(
            [*own_namespaces, "sh", "-c", _WITHIN, "-", *binds, "--", sys.executable],
            cwd=folder,
            env={**environment, "NOTIFY_SOCKET": str(folder / "notify")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        try:
            while not notify.recv(4096).startswith(b"READY=1"):
                pass
        except TimeoutError as error:
            raise AssertionError((folder / "log").read_text()) from error
        yield ManualHost(process.pid, folder, environment)


def _fill_etc(etc: Path) -> None:
    """Install the configuration, and the BPF programs that the manual shows."""
    shutil.copy(manual.ROOT / "config/collectord.toml", etc)
    for language in ("c", "toml"):
        for block in manual.all_blocks(language):
            name = manual.named_file(block, str(ETC / "bpf"))
            if name:
                path = etc / "bpf" / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(block.text)


def _environment(folder: Path) -> dict[str, str]:
    """Put this checkout's collectord on the PATH."""
    program = folder / "bin" / "collectord"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m collectord "$@"\n')
    program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(manual.ROOT),
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
    }

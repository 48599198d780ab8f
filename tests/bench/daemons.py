# SPDX-License-Identifier: Apache-2.0
"""The daemon with the default configuration, or with some of its sessions, or more of them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.bench.collectors import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.bench.row import Settings

_START_TIMEOUT_S: Final = 60
_SESSION: Final = re.compile(r"(?m)^\[\[session\]\]\n")
_TRIGGER: Final = re.compile(r"(?m)^\[\[trigger\]\]\n")
_NAME: Final = re.compile(r'(?m)^name = "(.*)"$')


def default_config() -> str:
    """Return the configuration that is installed."""
    return (ROOT / "config/collectord.toml").read_text()


def without_bcc(text: str) -> str:
    """Return a configuration that finds no bcc, as on a host where it is not installed."""
    line = '# python = ""'
    assert text.count(line) == 1
    return text.replace(line, 'python = "/bin/false"')


def with_sessions(text: str, wanted: Iterable[str]) -> str:
    """Return a configuration with these of its sessions, each with its place behind its name."""
    text, *triggers = _TRIGGER.split(text)
    head, *sessions = _SESSION.split(text)
    own = {_name(session): session for session in sessions}
    chosen = [
        _NAME.sub(f'name = "{name}-{number}"', own[name], count=1)
        for number, name in enumerate(wanted)
    ]
    tables = [f"[[session]]\n{one}" for one in chosen]
    tables += [f"[[trigger]]\n{one}" for one in triggers]
    return head + "".join(tables)


def _name(session: str) -> str:
    found = _NAME.search(session)
    assert found, session
    return found[1]


def start_cli(
    *words: str | Path, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start the program, as the fixture of this name starts it for tests."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "collectord", *words],
        env={**os.environ, **(env or {})},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def daemon(settings: Settings, text: str, *around: str) -> Iterator[int]:
    """Provide the daemon with this configuration and a state directory of its own, when ready.

    Args:
        settings: where its folders go.
        text: the configuration.
        around: words before its command line.
    """
    with (
        tempfile.TemporaryDirectory(dir=settings.directory.parent) as name,
        # where a socket's name fits (sun_path has 108 bytes), however long that folder's is
        tempfile.TemporaryDirectory(prefix="collectord-bench-", dir="/run") as sockets,
    ):
        directory = Path(name)
        text = re.sub(r"(?m)^#? ?state_dir *=.*", f'state_dir = "{directory}/state"', text)
        text = re.sub(r"(?m)^#? ?socket *=.*", f'socket = "{sockets}/control.sock"', text)
        text = re.sub(r"(?m)^#? ?listen *=.*", 'listen = "127.0.0.1:0"', text, count=1)
        config = directory / "collectord.toml"
        config.write_text(text)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(f"{sockets}/notify")
            notify.settimeout(_START_TIMEOUT_S)
            process = subprocess.Popen(
                [*around, sys.executable, "-m", "collectord", "run", "--config", config],
                env={**os.environ, "NOTIFY_SOCKET": f"{sockets}/notify"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
            )
            try:
                while b"READY=1" not in notify.recv(4096):
                    pass
                yield process.pid
            finally:
                process.terminate()
                process.wait()

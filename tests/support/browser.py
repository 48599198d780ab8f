# SPDX-License-Identifier: Apache-2.0
"""A real browser without a window, driven over a pipe by the DevTools protocol."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PROGRAMS: Final = ("chromium-headless-shell", "chromium")
_WORDS: Final = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # which root does not have; it opens the files of tests alone
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--window-size=1200,800",
)
_PIPE_FDS: Final = (3, 4)  # of commands and of answers, as the option says
_PIECE_BYTES: Final = 1 << 16
_SECONDS: Final = patient(60)


class Page:
    """A page of a browser.

    Attributes:
        problems: errors of scripts and of the page's policy, and what was printed as an error.
        requests: all that was fetched, or was to be.
    """

    def __init__(self, pipe: socket.socket) -> None:
        pipe.settimeout(_SECONDS)
        self._pipe = pipe
        self._received = b""
        self._number = 0
        self._session = ""
        self._loaded = False
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
        """Call a method of the protocol, and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._pipe.sendall(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, path: Path) -> None:
        """Open a file, and wait until all of it is there."""
        self.visit(path.as_uri())

    def visit(self, url: str) -> None:
        """Open an address, and wait until all of it is there."""
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._next()

    def value(self, expression: str) -> Any:  # noqa: ANN401  # JSON
        """Return the value of an expression in the page, or what it promises."""
        how = {"returnByValue": True, "awaitPromise": True}
        done = self.call("Runtime.evaluate", expression=expression, **how)
        assert "exceptionDetails" not in done, f"{expression}: {done}"
        return done["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Click at a place."""
        for kind in ("mousePressed", "mouseReleased"):
            where = {"x": x, "y": y, "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **where)

    def click_on(self, selector: str) -> None:
        """Click in the middle of an element."""
        found = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        place = self.value(
            f"(() => {{ const r = {found}; return [r.x, r.y, r.width, r.height] }})()"
        )
        x, y, width, height = place
        self.click(x + width / 2, y + height / 2)

    def type(self, text: str) -> None:
        """Type a text into the field that has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key that is no letter."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def _next(self) -> dict[str, Any]:
        """Return the next message, with what it says of the page noted."""
        while b"\0" not in self._received:
            piece = self._pipe.recv(_PIECE_BYTES)
            assert piece, "the browser has ended"
            self._received += piece
        raw, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown" | "Page.javascriptDialogOpening":
                self.problems.append(f"{method}: {params}")
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.problems.append(f"{method}: {params}")
            case "Runtime.consoleAPICalled" if params["type"] in {"error", "assert"}:
                self.problems.append(f"{method}: {params}")


@contextmanager
def browser_page(directory: Path) -> Iterator[Page]:
    """Provide an empty page of a browser that keeps its files in a directory."""
    program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
    assert program is not None, "`make setup` installs chromium-headless-shell"
    directory.mkdir(exist_ok=True)
    with ExitStack() as stack:
        log = stack.enter_context((directory / "log").open("wb"))
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        with theirs:
            pid = os.posix_spawn(
                program,
                [program, *_WORDS, f"--user-data-dir={directory}"],
                {**os.environ, "HOME": str(directory)},
                file_actions=[
                    *((os.POSIX_SPAWN_DUP2, log.fileno(), fd) for fd in (1, 2)),
                    *((os.POSIX_SPAWN_DUP2, theirs.fileno(), fd) for fd in _PIPE_FDS),
                ],
                setpgroup=0,
            )
        stack.callback(_end, pid)
        yield Page(ours)


def _end(pid: int) -> None:
    """End a browser, which ends the processes that it has."""
    ended = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGTERM)
        if not select.select([ended], [], [], _SECONDS)[0]:
            os.killpg(pid, signal.SIGKILL)
    finally:
        os.close(ended)
        os.waitpid(pid, 0)

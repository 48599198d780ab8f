# SPDX-License-Identifier: Apache-2.0
"""Speedscope and the Firefox Profiler as readers of profiles: `make setup` installs them."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.support.daemons import wait_for
from tests.support.manual import ROOT
from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.browser import Page

_INSTALLED: Final = ROOT / "build/viewers"
_SPEEDSCOPE: Final = _INSTALLED / "node_modules/speedscope/dist/release/index.html"
_PROFILER: Final = _INSTALLED / "node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js"
_SECONDS: Final = patient(60)
_SESSION: Final = "read"
# After half a second, whatever the machine does; the process goes on.
_STARTING: Final = "did not become ready within"
_ALL: Final = "1000000"  # lines of a call tree, of which a hundred are printed by default

# Keeps what a page gives to the user as a file.
_KEEP_SAVED: Final = """(() => {
  const address = URL.createObjectURL;
  window.saved = [];
  URL.createObjectURL = (blob) => { window.saved.push(blob); return address.call(URL, blob); };
})()"""
# Clicks on the part of the page that has a text once it is there, and gives what comes of it.
_CLICK: Final = """new Promise((done) => {
  const awaited = (look, then) => {
    const found = look();
    found ? then(found) : setTimeout(() => awaited(look, then), 20);
  };
  const named = () => [...document.querySelectorAll("div")].findLast(
    (one) => one.childElementCount == 1 && one.lastChild.textContent == %s);
  awaited(named, (button) => { button.click(); awaited(() => %s, done); });
})"""
_ROWS: Final = """(() => {
  const rows = [...document.querySelectorAll("tr")].slice(1);
  return rows.length && rows.map((row) => [...row.children].map((cell) => cell.textContent));
})()"""


class Shown(NamedTuple):
    """A profile as speedscope has read it.

    Attributes:
        unit: of the weights.
        stacks: the weights of stacks of functions with files, the outermost function first.
        rows: what the page's table of functions says: name to its total and its own weight,
            with their shares.
    """

    unit: str
    stacks: Counter[tuple[tuple[str, str], ...]]
    rows: dict[str, tuple[str, str]]


def shown_by_speedscope(page: Page, profile: Path, directory: Path) -> Shown:
    """Return what speedscope shows of a file, which it gets as its own command gives it."""
    script = directory / "load.js"
    data = base64.b64encode(profile.read_bytes()).decode()
    script.write_text(f"speedscope.loadFileFromBase64({json.dumps(profile.name)}, '{data}')")
    page.visit("about:blank")  # a browser does not load a page again for another fragment
    page.visit(f"{_SPEEDSCOPE.as_uri()}#localProfilePath={script}")
    page.value(_KEEP_SAVED)
    rows = page.value(_CLICK % ('"Sandwich"', _ROWS))
    written = page.value(_CLICK % ('"Export"', "window.saved.length && window.saved[0].text()"))
    told = json.loads(written)
    (made,) = told["profiles"]
    return Shown(
        made["unit"],
        _stacks(told["shared"]["frames"], made["events"]),
        {name: (total, own) for total, own, name in rows},
    )


def _stacks(
    frames: list[dict[str, str]], events: list[dict[str, Any]]
) -> Counter[tuple[tuple[str, str], ...]]:
    """Return the weights of stacks, whose functions are opened and closed one after the other."""
    found: Counter[tuple[tuple[str, str], ...]] = Counter()
    open_frames: list[int] = []
    before = 0
    for event in events:
        if event["at"] > before:
            told = (frames[number] for number in open_frames)
            found[tuple((one["name"], one.get("file", "")) for one in told)] += (
                event["at"] - before
            )
            before = event["at"]
        if event["type"] == "O":
            open_frames.append(event["frame"])
        else:
            assert open_frames.pop() == event["frame"]
    assert not open_frames
    return found


class FirefoxProfiler:
    """The Firefox Profiler without a window, which has read a file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, profile: Path) -> None:
        """Start its process, which reads a file. On a busy machine its command gives up early."""
        done = self._call("load", profile)
        if _STARTING in done.stderr:
            wait_for(lambda: self._call("thread", "list").returncode == 0, "the profiler")
        else:
            assert done.returncode == 0, f"{done.stdout}{done.stderr}"

    def run(self, *words: str | Path) -> str:
        """Return what a command prints; a status other than 0 is a failure."""
        done = self._call(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def _call(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [_INSTALLED / "node", _PROFILER, *words, "--session", _SESSION],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self._directory),
                "PROFILER_CLI_SESSION_DIR": str(self._directory),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )

    def stacks(self) -> dict[str, Counter[tuple[str, ...]]]:
        """Return the weights of stacks, by the names of threads; functions are FILE!NAME."""
        threads = json.loads(self.run("thread", "list", "--limit", "0", "--json"))["threads"]
        found: dict[str, Counter[tuple[str, ...]]] = {}
        for thread in threads:
            assert thread["name"] not in found
            words = ("--thread", thread["threadHandle"], "--max-lines", _ALL, "--json")
            told = json.loads(self.run("thread", "samples-top-down", *words))
            own: Counter[tuple[str, ...]] = Counter()
            for node in told["regularCallTree"]["children"]:
                _add(own, (), node)
            found[thread["name"]] = own
        return found


def _add(found: Counter[tuple[str, ...]], callers: tuple[str, ...], node: dict[str, Any]) -> None:
    """Add the own weights of a function and of those that it calls."""
    stack = (*callers, node["nameWithLibrary"])
    if node["selfSamples"]:
        found[stack] += node["selfSamples"]
    for called in node["children"]:
        _add(found, stack, called)


@contextmanager
def firefox_profiler(profile: Path, directory: Path) -> Iterator[FirefoxProfiler]:
    """Provide the Firefox Profiler with a file, with its own files in a directory."""
    assert _PROFILER.exists(), "`make setup` installs profiler-cli"
    profiler = FirefoxProfiler(directory)
    profiler.load(profile)
    # It stays as a process of its own, which this one adopts.
    pid = json.loads((directory / f"{_SESSION}.json").read_text())["pid"]
    ended = os.pidfd_open(pid)
    try:
        yield profiler
    finally:
        profiler.run("stop")
        assert select.select([ended], [], [], _SECONDS)[0], "it does not end"
        os.close(ended)
        os.waitpid(pid, 0)

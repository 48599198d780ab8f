# SPDX-License-Identifier: Apache-2.0
"""Whatever is in a configuration or a request: it is understood, or refused as what it is."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collectord.config.load import load
from collectord.control.api import control_app
from collectord.errors import CollectordError, ConfigError
from collectord.plan.build import build
from tests.support import balances
from tests.support.commands import Commands, serve_unix
from tests.support.examples import examples
from tests.support.hosts import host

CONFIG: Final = """
[daemon]
state_dir = "/s"
shards = 0
staging = "64MiB"
flush_interval = "1s"
log_level = "info"
[metrics]
listen = "127.0.0.1:0"
per_cpu = false
[retention]
free = "10%"
[bpf]
programs = "/etc/x"
[[session]]
name = "a"
mode = "stream"
segment_bytes = "256MiB"
[[session.source]]
kind = "perf"
events = ["cpu-clock", { event = "cs", filter = "", frequency = 99 }]
call_graph = "fp"
max_stack = 0
ring = "2MiB"
watermark = "25%"
when = "present"
[[session]]
name = "b"
[session.target]
scope = "user"
user = 0
[[session.source]]
kind = "perf"
events = ["cs"]
period = 5
[[session]]
name = "c"
[session.target]
scope = "process"
pids = [1]
[[session.source]]
kind = "tracefs"
events = ["sched:sched_switch"]
probes = [{ kind = "kprobe", name = "forked", place = "kernel_clone" }]
[[session]]
name = "d"
[[session.source]]
kind = "bpf"
program = "execsnoop"
arguments = { a = 1 }
[[session]]
name = "e"
[[session.source]]
kind = "relay"
device = "/dev/vda"
actions = ["read"]
pid = 0
subbufs = 4
when = "present"
"""
LINES: Final = CONFIG.splitlines()
KEYS: Final = [number for number, line in enumerate(LINES) if " = " in line]
DEEP: Final = 100_000
DIGITS: Final = "9" * 5_000
NUMBERS: Final = [
    DIGITS,
    "0x" + "f" * 5_000,
    "-9223372036854775809",
    "1e999",
    "nan",
    "-1",
    "4294967296",
]
TEXTS: Final = [
    "",
    "\0",
    DIGITS,
    "²",
    "99999999999999999999GiB",
    "-5%",
    "a/b",
    "..",
    "[",
    "a" * 5_000,
]
VALUES: Final = st.one_of(
    st.sampled_from(NUMBERS),
    st.integers().map(str),
    st.text().map(json.dumps),
    st.sampled_from(TEXTS).map(json.dumps),
    st.sampled_from(
        ["[]", "{}", "[[]]", "[{}]", "1979-05-27", "true", '["", 1]', "[" * 50 + "]" * 50]
    ),
)


def check_text(text: bytes) -> None:
    """Load and plan a configuration.

    Raises:
        AssertionError: it fails with another error than the configuration's.
    """
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "collectord.toml"
        path.write_bytes(text)
        try:
            build(load([path]), host())
        except CollectordError as error:
            assert error.exit_code == ConfigError.exit_code, str(error)  # noqa: PT017  # or none


@settings(max_examples=examples(150))
@given(key=st.sampled_from(KEYS), value=VALUES)
@example(key=KEYS[0], value=DIGITS)
@example(key=KEYS[1], value=NUMBERS[1])
def test_values_of_a_configuration(key: int, value: str) -> None:
    """A value of any type and size for any key."""
    lines = [*LINES]
    lines[key] = f"{LINES[key].partition(' = ')[0]} = {value}"
    check_text("\n".join(lines).encode(errors="surrogatepass"))


@settings(max_examples=examples(100))
@given(
    place=st.integers(0, len(CONFIG)),
    length=st.integers(0, 30),
    inserted=st.binary(max_size=20)
    | st.sampled_from([b"\n", b"]", b"[", b'"', b"'''", b"\\ud800"]),
)
def test_damaged_configurations(place: int, length: int, inserted: bytes) -> None:
    """Bytes that are changed, added and missing."""
    whole = CONFIG.encode()
    check_text(whole[:place] + inserted + whole[place + length :])


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * DEEP,
        "x = " + "[" * DEEP + "]" * DEEP,
        "x = " + "{a=" * DEEP + "1" + "}" * DEEP,
        ".".join(["a"] * DEEP) + " = 1",
        "[" + " . ".join(["a"] * DEEP) + "]",
        f"{LINES[1]}\n" + "[".join(["a"] * DEEP),
        "[[session]]\nname='a'\n[[session.source]]\nkind='bpf'\nprogram='p'\narguments."
        + ".".join(["'a'"] * 200)
        + " = 1",
    ],
    ids=["open", "lists", "tables", "key", "table", "brackets", "arguments"],
)
def test_deep_configurations(text: str) -> None:
    """Nesting of any depth is refused."""
    check_text(text.encode())


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "session", "sessions", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
BODIES: Final = st.one_of(
    JSON.map(json.dumps).map(str.encode),
    st.binary(max_size=50),
    st.text(st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), min_size=1).map(
        lambda text: json.dumps({"text": text}).encode()
    ),
)
MARK: Final = "/v1/mark"


@settings(max_examples=examples(100))
@given(place=st.sampled_from([MARK, "/v1/snapshot"]), body=BODIES)
@example(place=MARK, body=b"[" * 60_000)
@example(place=MARK, body=b'{"text": ' + b"[" * 30_000 + b"]" * 30_000 + b"}")
@example(place=MARK, body=b'{"text": ' + DIGITS.encode() + b"}")
@example(place=MARK, body=b'{"text": "\\ud800"}')
@example(place=MARK, body=b'{"text": "\\udcff"}')
@example(place="/v1/snapshot", body=b'{"sessions": ["\\udfff"]}')
def test_bodies_of_requests(place: str, body: bytes) -> None:
    """A body is a request, whose text can be written, or 400."""
    commands = Commands()

    async def ask(path: Path) -> tuple[int, Any]:
        async with (
            serve_unix(control_app(balances.status, commands), path),
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as client,
            client.post(f"http://localhost{place}", data=body) as response,
        ):
            return response.status, await response.json()

    with tempfile.TemporaryDirectory() as name:
        status, answer = asyncio.run(ask(Path(name) / "control.sock"))
    assert (status, bool(commands.asked)) in {(200, True), (400, False)}, answer
    for asked in commands.asked:
        assert isinstance(asked, tuple)
        for text in filter(None, asked):
            os.fsencode(text)

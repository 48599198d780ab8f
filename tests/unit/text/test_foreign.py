# SPDX-License-Identifier: Apache-2.0
"""Foreign text: what cannot be shown or encoded is made visible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from collectord.model import RingRole
from collectord.text.foreign import encodable, encode_json, visible
from collectord.text.units import Bytes, Nanoseconds

PATH = os.fsdecode(b"/d\xff\x80/\xc3\xa9")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("日本 é", "日本 é"),
        ("two\nlines\x00", r"two\nlines\x00"),
        ("right\u202eleft", r"right\u202eleft"),
        ("a\x1b[2J\n", r"a\x1b[2J\n"),
        (PATH, "/d\\xff\\x80/\u00e9"),
        ("\ud800", r"\ud800"),
        (r"back\slash", r"back\slash"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    """Control characters and bytes that are no UTF-8 show as escapes, all else as it is."""
    assert visible(text) == shown
    assert visible(text).isprintable()


@dataclass(frozen=True, slots=True)
class Thing:
    """An item of a result."""

    path: Path
    role: RingRole
    names: tuple[str, ...]
    counts: dict[str, int]
    limit: None = None


def test_json_is_valid_whatever_bytes_a_path_has() -> None:
    """Strings, keys and paths come out as UTF-8 with the odd bytes visible."""
    document = encode_json(Thing(Path(PATH), RingRole.DATA, (PATH, "a\n"), {PATH: 1}))
    shown = "/d\\xff\\x80/\u00e9"
    assert json.loads(document.decode()) == {
        "path": shown,
        "role": "data",
        "names": [shown, "a\n"],
        "counts": {shown: 1},
        "limit": None,
    }


def test_only_strings_change() -> None:
    """Figures stay figures."""
    assert encodable([1, 2.5, True, None, ("x",)]) == [1, 2.5, True, None, ["x"]]


def test_numbers_with_a_unit_are_numbers() -> None:
    """A size or a time of the configuration is a figure in a manifest too."""
    assert encode_json({"subbuf": Bytes(512), "age": Nanoseconds(7)}) == b'{"subbuf":512,"age":7}'


# A process whose threads decode types that nobody has decoded before, again and again.
THREADS = """
import sys, threading
import msgspec
from collectord.text.foreign import convert, decode_json

sys.setswitchinterval(1e-6)
for number in range(100):
    inner = msgspec.defstruct("Inner", [("a", int), ("b", dict[str, int])])
    outer = msgspec.defstruct("Outer", [*((f"f{n}", inner | None, None) for n in range(20))])
    barrier = threading.Barrier(4)

    def decode(kind):
        barrier.wait()
        decode_json(b'{"a": 1, "b": {}, "f1": {"a": 1, "b": {}}}', kind)
        convert({"a": 1, "b": {}, "f1": {"a": 1, "b": {}}}, kind)

    threads = [threading.Thread(target=decode, args=(kind,)) for kind in (inner, outer) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_decode_a_type_at_once() -> None:
    """The first use of a type, of which msgspec prepares a part that they share, is no crash."""
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")

# SPDX-License-Identifier: Apache-2.0
"""Each kind of ring is known to its own modules of the core alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

_NATIVE: Final = Path(__file__).resolve().parents[3] / "collectord" / "_native"
# The modules of a kind begin with its name; whoever is not of one sees a ring through its ops.
_KINDS: Final = ("aux_", "bpf_", "page_", "perf_ring", "record_", "relay_", "slot_", "window")
_COMMON: Final = sorted(
    path.name
    for path in _NATIVE.iterdir()
    if path.suffix in {".c", ".h"} and not path.name.startswith(_KINDS)
)
# Members that kinds have of their own, as fields of the common ring would be named.
_FIELD: Final = re.compile(
    r"\b(?:ring|each|front|behind|self|(?:\w+->)?rings\[\w+\])(?:->|\.)(?:pages|relay|aux|window|perf)\b"
)
_DOWNCAST: Final = re.compile(r"\b(?:(?:aux|bpf|page|perf|relay|slot)_ring|window)__\w+")
_INCLUDE: Final = re.compile(
    r'#include "(?:(?:aux|bpf|perf|slot)_ring|page_\w+|record_stream|relay_\w+|window)\.h"'
)


@pytest.mark.parametrize("name", _COMMON)
def test_common_modules_know_no_kind(name: str) -> None:
    """Passes, shards, writer, streams and what they share ask no ring which kind it is."""
    text = (_NATIVE / name).read_text()
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found = [each for kind in (_FIELD, _DOWNCAST, _INCLUDE) for each in kind.findall(code)]
    assert found == []


def test_no_ring_has_a_part_for_one_kind() -> None:
    """No field of another kind is tested anywhere, in its modules or in the binding either."""
    for path in sorted(_NATIVE.iterdir()):
        if path.suffix in {".c", ".h", ".pyx", ".pxi"}:
            assert _FIELD.findall(path.read_text()) == [], path.name

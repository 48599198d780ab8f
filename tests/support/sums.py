# SPDX-License-Identifier: Apache-2.0
"""Checksums of written data, checked without the program's own code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable

    from collectord._native._core import Sum


def assert_sums(data: bytes, sums: Iterable[Sum]) -> None:
    """Assert that they are those of these bytes, part by part, and cover all of them."""
    at = 0
    for size, digest in sums:
        assert xxhash.xxh3_64_intdigest(data[at : at + size]) == digest
        assert size
        at += size
    assert at == len(data)

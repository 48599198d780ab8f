# SPDX-License-Identifier: Apache-2.0
"""Sealed segments that somebody changes behind the sink's back, and the findings of a check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from collectord.reader.verify import verify
from collectord.sink.manifest import Manifest, decode

if TYPE_CHECKING:
    from pathlib import Path

    from collectord.sink.base import SegmentInfo
    from collectord.sink.stored_file import Check


def manifest_path(path: Path) -> Path:
    """Return where the manifest of a sealed segment is."""
    return path.with_name(path.name + ".json")


def manifest_of(path: Path) -> Manifest:
    """Return the manifest of a sealed segment."""
    manifest = decode(manifest_path(path).read_bytes(), Manifest)
    assert manifest is not None
    return manifest


def change_manifest(info: SegmentInfo, **changes: Any) -> None:  # noqa: ANN401 - JSON
    """Give members of the manifest other values."""
    path = manifest_path(info.path)
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | changes))


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Write over a part of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def finding(directory: Path) -> tuple[Check, str]:
    """Return what a check finds of the one segment of a folder, which is told in one line."""
    (verdict,) = verify([directory])
    assert verdict.finding is not None
    assert "\n" not in verdict.finding.detail
    return verdict.finding.check, verdict.finding.detail

# SPDX-License-Identifier: Apache-2.0
"""Compiled programs of the tests, which a guest gets by running this module.

An emulated processor takes a minute and a half for the core that loses a record alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support import aux_words, generator, mutant

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

IN_GUEST: Final = "COLLECTORD_GUEST" in os.environ  # of `make test-vm`
_COMPILED: Final = Path(__file__).resolve().parents[2] / "build" / "programs"
_BUILDS: Final[dict[str, Callable[[Path], object]]] = {
    "aux_words": aux_words.build,
    "generator": generator.build,
    "mutant": mutant.build,
}


def folder(name: str, temporary: pytest.TempPathFactory) -> Path:
    """Return the folder to build a program in: a new one, or a guest's that has it already."""
    if not IN_GUEST:
        return temporary.mktemp(name)
    assert name in _BUILDS
    return _COMPILED / name


def main() -> None:
    """Compile all for a guest of this tree."""
    for name, build in _BUILDS.items():
        place = _COMPILED / name
        place.mkdir(parents=True)
        build(place)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Damage of bytes: what disks, crashes and attackers make of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from random import Random

# At and beside the sizes and limits that parsers compare with.
EDGES: Final = tuple(
    sorted({base + near for base in (0, 8, 104, 4096, 1 << 16, 1 << 31, 1 << 32, 1 << 62, 1 << 63)
            for near in (-1, 0, 1)} | {(1 << 64) - 1})
)  # fmt: skip


class Odd(NamedTuple):
    """Damaged data: what was done to them, and the first place that differs at the earliest."""

    data: bytes
    at: int
    what: str


def odd_bytes(choice: Random, data: bytes) -> Odd:
    """Return the data with a damage of one kind at one place."""
    made = bytearray(data)
    # Heads and record headers stand at the beginning.
    at = choice.randrange(min(len(made), choice.choice((128, 1024, 8192, 1 << 30))) or 1)
    kind = choice.choice(("flip", "number", "number", "cut", "grow", "copy", "drop", "noise"))
    match kind:
        case "flip" if made:
            made[at] ^= 1 << choice.randrange(8)
        case "number":
            size = choice.choice((1, 2, 4, 8))
            at -= at % size
            value = choice.choice((*EDGES, choice.getrandbits(64)))
            made[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        case "cut":
            del made[at:]
        case "grow":
            at = len(made)
            more = choice.choice((1, 7, 8, 4096, 70_000))
            made += choice.choice((bytes(more), b"\xff" * more, choice.randbytes(more)))
        case "copy":
            size = choice.choice((8, 64, 4096))
            made[at:at] = made[choice.randrange(len(made) or 1) :][:size]
        case "drop":
            del made[at : at + choice.choice((1, 8, 64, 4096))]
        case "noise":
            size = choice.choice((2, 16, 256))
            made[at : at + size] = choice.randbytes(size)
    return Odd(bytes(made), at, f"{kind} at {at}")

# SPDX-License-Identifier: Apache-2.0
"""A user who swaps the names in a folder of theirs for links, FIFOs and folders, without rest."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import signal
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

USER: Final = 65534
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_LOOK_EVERY: Final = 50
_BACK: Final = 0.7  # of the swaps are undone: else nothing of the tool's is ever complete
_DECOYS: Final = ".decoys"
_COUNT_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack in progress."""

    shared: mmap.mmap

    @property
    def swaps(self) -> int:
        """The number of exchanged names so far."""
        return int.from_bytes(self.shared[:_COUNT_BYTES], "little")


def make_home(path: Path) -> Path:
    """Return a folder of the user's own."""
    path.mkdir()
    os.chown(path, USER, USER)
    path.chmod(0o755)
    return path


@contextmanager
def attacking(home: Path, outside: Path, names: tuple[str, ...]) -> Iterator[Attack]:
    """Have the user swap names for the length of a block.

    Args:
        home: the user's folder, made by `make_home`.
        outside: a folder of root's: every file of it and the folder get links to them.
        names: that are planted where nothing is; those that are there are swapped anyway.
    """
    targets = [outside, outside / "absent", *outside.rglob("*")]
    with mmap.mmap(-1, mmap.PAGESIZE) as shared:
        pid = os.fork()
        if not pid:
            try:
                os.chdir(home)  # what is above it may be root's alone
                _become_user()
                _swap(_decoys(targets), names, shared)
            finally:
                os._exit(1)
        try:
            yield Attack(shared)
        finally:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            assert os.WIFSIGNALED(status), "the attacker failed"


def fingerprint(outside: Path) -> dict[str, tuple[int, ...] | bytes]:
    """Return all that must not change: names, identities, permissions, times and contents."""
    found: dict[str, tuple[int, ...] | bytes] = {}
    for path in [outside, *outside.rglob("*")]:
        status = path.lstat()
        found[str(path)] = (
            *(status.st_ino, status.st_mode, status.st_uid, status.st_gid),
            *(status.st_nlink, status.st_size, status.st_mtime_ns, status.st_ctime_ns),
        )
        if stat.S_ISREG(status.st_mode):
            found[f"{path}: contents"] = path.read_bytes()
    return found


def _become_user() -> None:
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)


def _decoys(targets: Sequence[Path]) -> list[Path]:
    """Return the decoys that names are swapped with, in a folder that no tool visits."""
    place = Path(_DECOYS)
    place.mkdir()
    for number, target in enumerate(targets):
        (place / f"link{number}").symlink_to(target)
    (place / "zero").symlink_to("/dev/zero")
    os.mkfifo(place / "fifo")
    (place / "folder").mkdir()
    (place / "file").write_bytes(b"the user's own")
    with (place / "giant").open("wb") as giant:
        giant.truncate(1 << 30)
    return [*place.iterdir()]


def _swap(decoys: Sequence[Path], names: Sequence[str], shared: mmap.mmap) -> None:
    renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    dice = random.Random(0)  # noqa: S311  # no secret
    swaps = 0
    while True:
        found = [name for name in os.listdir() if name != _DECOYS]  # noqa: PTH208  # names
        for _ in range(_LOOK_EVERY):
            name = dice.choice(found or names).encode()
            decoy = bytes(dice.choice(decoys))
            back = dice.random() < _BACK
            for _ in range(1 + back):
                if not renameat2(_AT_FDCWD, name, _AT_FDCWD, decoy, _RENAME_EXCHANGE):
                    swaps += 1
        shared[:_COUNT_BYTES] = swaps.to_bytes(_COUNT_BYTES, "little")
        with suppress(OSError):
            Path(dice.choice(names)).symlink_to(dice.choice(decoys).readlink())
        with suppress(OSError):  # what was left in a name's place
            Path(dice.choice(names)).unlink()

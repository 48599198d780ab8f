# SPDX-License-Identifier: Apache-2.0
"""The catalogue of BPF programs: pairs NAME.bpf.c and NAME.toml, shipped ones and a host's own.

A program runs in the kernel, so whoever could put one here would own the host. A directory of the
host's own counts only if it, all above it and both files belong to root and nobody else can write
to them. It is entered step by step from the root, by descriptors and without following links, so
that what is read is what was looked at.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from collectord.config.bpf_check import NAME, NAME_WORDS
from collectord.config.bpf_program import load_manifest
from collectord.config.problems import raise_first
from collectord.errors import ConfigError, UsageError
from collectord.plan.bpf_program import HEADER, BpfProgram, problems
from collectord.plan.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOCAL: Final = Path("/etc/collectord/bpf")
SOURCE: Final = ".bpf.c"
MANIFEST: Final = ".toml"
SOURCE_MAX_BYTES: Final = 256 << 10
MANIFEST_MAX_BYTES: Final = 64 << 10
FILES_MAX: Final = 2000

_PACKAGE: Final = Path(__file__).resolve().parent.parent
_PLACES: Final = (_PACKAGE / "bpf", _PACKAGE.parent / "bpf")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO in the place of a file is refused, not waited for.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_ROOT: Final = 0

Origin = Literal["shipped", "local"]


@dataclass(frozen=True, slots=True)
class BpfProblem:
    """Files that make no program.

    Attributes:
        name: of the program, "" if a whole directory is refused.
        path: of the file or directory.
        reason: one line; what is wrong and what to do.
    """

    name: str
    path: str
    reason: str


def shipped_place() -> Path:
    """The folder of the shipped programs and their header: of the package, or of a checkout."""
    return next((place for place in _PLACES if (place / HEADER).is_file()), _PLACES[0])


def list_programs(local: Path = LOCAL, *, owner: int = _ROOT) -> list[BpfProgram | BpfProblem]:
    """All programs by name, and what should be one and is not.

    Args:
        local: the host's own directory; it need not exist.
        owner: who must own it, beside root.
    """
    catalogue = _Catalogue(local, owner)
    found: list[BpfProgram | BpfProblem] = list(catalogue.refused)
    for name in sorted(catalogue.names()):
        try:
            found.append(catalogue.load(name))
        except ConfigError as error:
            found.append(BpfProblem(name, error.path or str(local), str(error)))
    return found


def load(name: str, local: Path = LOCAL, *, owner: int = _ROOT) -> BpfProgram:
    """One program.

    Args:
        name: which.
        local: the host's own directory; it need not exist.
        owner: who must own it, beside root.

    Raises:
        UsageError: there is none of that name; the hint names the nearest.
        ConfigError: its files make no program, or are refused.
    """
    catalogue = _Catalogue(local, owner)
    known = catalogue.names()
    if name in known:
        return catalogue.load(name)
    for problem in catalogue.refused:
        # It may be in there: what is wrong with the directory comes first.
        raise ConfigError(f"there is no shipped program {name!r}, and {problem.reason}")
    hint = did_you_mean(name, known) or "`collectord bpf list` shows all"
    raise UsageError(f"there is no BPF program {name!r}", text=name, hint=hint)


class _Catalogue:
    """File names of both directories, and their pairs once they are asked for."""

    def __init__(self, local: Path, owner: int) -> None:
        self._owner = owner
        self._folders: dict[Origin, tuple[Path, Mapping[str, frozenset[str]]]] = {}
        self.refused: tuple[BpfProblem, ...] = ()
        self._look("shipped", shipped_place())
        self._look("local", Path(os.path.abspath(local)))  # noqa: PTH100 - links stay

    def _look(self, origin: Origin, folder: Path) -> None:
        try:
            with ExitStack() as stack:
                names = os.listdir(self._enter(origin, folder, stack))  # noqa: PTH208 - by fd
        except FileNotFoundError:
            return
        except OSError as error:
            self.refused += (BpfProblem("", str(folder), f"{folder}: {error.strerror}"),)
        except ConfigError as error:
            self.refused += (BpfProblem("", str(folder), str(error)),)
        else:
            if len(names) > FILES_MAX:
                reason = f"{folder}: has more than {FILES_MAX} files"
                self.refused += (BpfProblem("", str(folder), reason),)
                return
            self._folders[origin] = (folder, _pairs(names))

    def _enter(self, origin: Origin, folder: Path, stack: ExitStack) -> int:
        if origin == "shipped":
            return _enter_shipped(folder, stack)
        return _enter(folder, self._owner, stack)

    def names(self) -> frozenset[str]:
        """Of all programs, also of those that are none."""
        return frozenset(name for _, pairs in self._folders.values() for name in pairs)

    def load(self, name: str) -> BpfProgram:
        """One of `names`. Raises ConfigError."""
        origins = [origin for origin, (_, pairs) in self._folders.items() if name in pairs]
        origin = origins[-1]
        folder, pairs = self._folders[origin]
        source, manifest = folder / f"{name}{SOURCE}", folder / f"{name}{MANIFEST}"
        if len(origins) > 1:
            raise ConfigError(
                "a shipped program has this name", path=str(source), hint="rename both files"
            )
        if NAME.fullmatch(name) is None:
            raise ConfigError(
                f"{name!r} is no program's name", path=str(manifest), hint=NAME_WORDS
            )
        for path in (source, manifest):
            if path.name not in pairs[name]:
                raise ConfigError("is missing beside its other half", path=str(path))
        with ExitStack() as stack:
            try:
                fd = self._enter(origin, folder, stack)
            except OSError as error:
                raise ConfigError(f"{error.strerror}", path=str(folder)) from error
            owner = self._owner if origin == "local" else None
            text = _read(fd, folder, source.name, SOURCE_MAX_BYTES, owner)
            config = load_manifest(
                _read(fd, folder, manifest.name, MANIFEST_MAX_BYTES, owner), str(manifest)
            )
        program = BpfProgram(name, str(source), _text(text, source), config, origin)
        raise_first(problems(program), str(manifest))
        return program


def _pairs(names: Iterable[str]) -> dict[str, frozenset[str]]:
    """File names by what they have before their endings; other files are nobody's business."""
    found: dict[str, frozenset[str]] = {}
    for name in names:
        match = re.fullmatch(rf"([^.].*?)({re.escape(SOURCE)}|{re.escape(MANIFEST)})", name)
        if match:
            found[match[1]] = found.get(match[1], frozenset()) | {name}
    return found


def _enter_shipped(folder: Path, stack: ExitStack) -> int:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    return fd


def _enter(folder: Path, owner: int, stack: ExitStack) -> int:
    """A descriptor of a directory that only root can change.

    Raises:
        FileNotFoundError: it is not there.
        OSError: it cannot be opened.
        ConfigError: it, or one above it, is a link, no directory or somebody else's.
    """
    fd = os.open("/", _DIRECTORY)
    stack.callback(os.close, fd)
    path = Path("/")
    for part in folder.parts[1:]:
        path /= part
        try:
            fd = os.open(part, _DIRECTORY, dir_fd=fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise ConfigError("is a link, or no directory", path=str(path)) from error
            raise
        stack.callback(os.close, fd)
        status = os.fstat(fd)
        # In a sticky directory nobody can move what root owns.
        sticky = status.st_mode & stat.S_ISVTX and path != folder
        _check_owner(status, path, owner, writable=bool(sticky))
    return fd


def _check_owner(status: os.stat_result, path: Path, owner: int, *, writable: bool) -> None:
    """Raises ConfigError if anybody but the owner and root could have changed it."""
    if status.st_uid not in (_ROOT, owner):
        raise ConfigError(
            f"belongs to user {status.st_uid}", path=str(path), hint="chown it to root"
        )
    if status.st_mode & _OTHERS_WRITE and not writable:
        raise ConfigError("others can write to it", path=str(path), hint="chmod go-w")


def _read(fd: int, folder: Path, name: str, limit: int, owner: int | None = None) -> bytes:
    """A plain file in an open directory.

    Args:
        fd: of the directory.
        folder: the directory.
        name: of the file.
        limit: bytes that it may have.
        owner: who must own it beside root, None for anybody.

    Raises:
        ConfigError: it cannot be read or is refused.
    """
    path = folder / name
    try:
        with ExitStack() as stack:
            file_fd = os.open(name, _FILE, dir_fd=fd)
            stack.callback(os.close, file_fd)
            status = os.fstat(file_fd)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError("is no plain file", path=str(path))
            if owner is not None:
                _check_owner(status, path, owner, writable=False)
            with os.fdopen(file_fd, "rb", closefd=False) as file:
                data = file.read(limit + 1)
    except OSError as error:
        reason = "is a link" if error.errno == errno.ELOOP else f"{error.strerror}"
        raise ConfigError(reason, path=str(path)) from error
    if len(data) > limit:
        raise ConfigError(f"has more than {limit} bytes", path=str(path))
    return data


def _text(data: bytes, path: Path) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"is no UTF-8: {error.reason}", path=str(path)) from error
    if "\0" in text:
        raise ConfigError("has a NUL", path=str(path))
    return text

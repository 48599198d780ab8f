# SPDX-License-Identifier: Apache-2.0
"""The catalogue of BPF programs: pairs NAME.bpf.c and NAME.toml, shipped ones and a host's own.

A program runs in the kernel, so whoever could add one would own the host. A host's own directory
counts only if root owns it, every directory above it and both files, and nobody else can write to
them. It is entered step by step from the root, by descriptors and without following links, so that
what is read is what was checked.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from collectord.config.problems import NAME, NAME_WORDS, raise_first
from collectord.errors import ConfigError, UnsafePath, UsageError
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.kernel.values.facts_wanted import LOCAL
from collectord.programs.bpf_program import HEADER, BpfProgram, problems
from collectord.programs.manifest_text import load_manifest
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from collectord.folders.folder import Folder

SOURCE: Final = ".bpf.c"
MANIFEST: Final = ".toml"
SOURCE_MAX_BYTES: Final = 256 << 10
MANIFEST_MAX_BYTES: Final = 64 << 10
FILES_MAX: Final = 2000

_PACKAGE: Final = Path(__file__).resolve().parents[2]
_PLACES: Final = (_PACKAGE / "bpf", _PACKAGE.parent / "bpf")
_ROOT: Final = 0

Origin = Literal["shipped", "local"]


@dataclass(frozen=True, slots=True)
class BpfProblem:
    """Files that do not make a program.

    Attributes:
        name: the program's name, "" if a whole directory is refused.
        path: the file or directory.
        reason: one line that says what is wrong and what to do.
    """

    name: str
    path: str
    reason: str


def library_text() -> str:
    """Return collectord.h, which is beside the shipped programs."""
    return (_shipped_place() / HEADER).read_text()


def _shipped_place() -> Path:
    """Return the folder of the shipped programs and their header, in the package or a checkout."""
    return next((place for place in _PLACES if (place / HEADER).is_file()), _PLACES[0])


def list_programs(local: Path = LOCAL, *, owner: int = _ROOT) -> list[BpfProgram | BpfProblem]:
    """Return all programs by name, with a problem for each pair that makes none.

    Args:
        local: the host's own directory; it need not exist.
        owner: user who must own it, beside root.
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
    """Load one program.

    Args:
        name: its name.
        local: the host's own directory; it need not exist.
        owner: user who must own it, beside root.

    Raises:
        UsageError: there is no such program; the hint names the nearest.
        ConfigError: its files make no program, or are refused.
    """
    catalogue = _Catalogue(local, owner)
    known = catalogue.names()
    if name in known:
        return catalogue.load(name)
    for problem in catalogue.refused:
        # The program may be in there: what is wrong with the directory comes first.
        raise ConfigError(f"there is no shipped program {name!r}, and {problem.reason}")
    hint = did_you_mean(name, known) or "`collectord bpf list` shows all"
    raise UsageError(f"there is no BPF program {name!r}", hint=hint)


class _Catalogue:
    """File names of both directories, and their pairs when they are asked for."""

    def __init__(self, local: Path, owner: int) -> None:
        self._owner = owner
        self._folders: dict[Origin, tuple[Path, Mapping[str, frozenset[str]]]] = {}
        self.refused: tuple[BpfProblem, ...] = ()
        self._look("shipped", _shipped_place())
        self._look("local", Path(os.path.abspath(local)))  # noqa: PTH100 - links stay

    def _look(self, origin: Origin, folder: Path) -> None:
        try:
            with self._enter(origin, folder) as opened:
                names = [entry.name for entry in opened.entries()]
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

    def _enter(self, origin: Origin, folder: Path) -> Folder:
        """Open a directory, a local one only if root alone can change it.

        Raises:
            OSError: it cannot be opened.
            ConfigError: others can change it.
        """
        if origin == "shipped":
            return open_folder(folder)
        try:
            return open_folder(folder, Trust.ROOTED, owners=[self._owner])
        except UnsafePath as error:
            raise _refused(error) from error

    def names(self) -> frozenset[str]:
        """Return the names of all pairs, those that make no program included."""
        return frozenset(name for _, pairs in self._folders.values() for name in pairs)

    def load(self, name: str) -> BpfProgram:
        """Load one of `names`. Raises ConfigError."""
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
                f"{name!r} is not a valid program name", path=str(manifest), hint=NAME_WORDS
            )
        for path in (source, manifest):
            if path.name not in pairs[name]:
                raise ConfigError(
                    "is missing, but the other file of the pair exists", path=str(path)
                )
        try:
            opened = self._enter(origin, folder)
        except OSError as error:
            raise ConfigError(f"{error.strerror}", path=str(folder)) from error
        with opened:
            text = _read(opened, source, SOURCE_MAX_BYTES)
            config = load_manifest(_read(opened, manifest, MANIFEST_MAX_BYTES), str(manifest))
        program = BpfProgram(name, str(source), _text(text, source), config, origin)
        raise_first(problems(program), str(manifest))
        return program


def _pairs(names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Group file names by what precedes their endings; other files are ignored."""
    found: dict[str, frozenset[str]] = {}
    for name in names:
        match = re.fullmatch(rf"([^.].*?)({re.escape(SOURCE)}|{re.escape(MANIFEST)})", name)
        if match:
            found[match[1]] = found.get(match[1], frozenset()) | {name}
    return found


def _read(folder: Folder, path: Path, limit_bytes: int) -> bytes:
    """Read a plain file in an open directory. Raises ConfigError."""
    try:
        return folder.read(path.name, limit_bytes)
    except UnsafePath as error:
        raise _refused(error) from error
    except OSError as error:
        raise ConfigError(f"{error.strerror}", path=str(path)) from error


def _refused(error: UnsafePath) -> ConfigError:
    return ConfigError(error.reason, path=error.path, hint=error.hint)


def _text(data: bytes, path: Path) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8: {error.reason}", path=str(path)) from error
    if "\0" in text:
        raise ConfigError("contains a NUL byte", path=str(path))
    return text

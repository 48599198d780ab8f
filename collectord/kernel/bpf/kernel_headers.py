# SPDX-License-Identifier: Apache-2.0
"""Kernel headers for BCC: finding a usable tree, and making one where there is none.

BCC takes one tree with both halves: the source's headers (`include/linux`) and what a build adds
(`include/generated`). A build directory and the kernel's own archive, kheaders, have both; Debian
splits them into two packages, neither of which is enough alone. Such a pair is merged into a tree
of symbolic links: a directory that only one half has is one link.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tarfile
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, Literal

from collectord.errors import MissingFeature, SinkError, UnsafePath
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.folders.folder import Folder

HeadersKind = Literal["build", "kheaders", "merged"]

# Files that tell the two halves apart; BCC includes both.
_SOURCE_MARK: Final = "include/linux/kconfig.h"
_BUILD_MARK: Final = "include/generated/autoconf.h"
_MERGED: Final = ("include", "arch")
_PREFIX: Final = "linux-headers-"
# Names of arch/ by `uname -m`, where they differ.
_ARCH: Final = {
    "x86_64": "x86",
    "aarch64": "arm64",
    "riscv64": "riscv",
    "loongarch64": "loongarch",
}
_MADE_OF: Final = ".made-of"
_MAKING: Final = ".making-"
_MADE_OF_MAX_BYTES: Final = 1 << 20
_HELD: Final = re.compile(r"\A/proc/self/fd/\d+")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_FAILURES: tuple[type[Exception], ...] = (OSError, EOFError, tarfile.TarError)
with suppress(ImportError):  # Python may be built without it; tarfile says so when it unpacks
    from lzma import LZMAError

    _FAILURES += (LZMAError,)


@dataclass(frozen=True, slots=True)
class HeaderTree:
    """Kernel headers that were found.

    Attributes:
        kind: a kernel's build directory, its archive of headers, or packages in /usr/src.
        path: the directory or archive with the files that a build adds.
        parts: directories to merge, a later one winning; a single whole tree is used in place.
        release: the kernel that they belong to.
        matches: whether that is the running kernel.
    """

    kind: HeadersKind
    path: Path
    parts: tuple[Path, ...]
    release: str
    matches: bool


def is_complete(tree: Path) -> bool:
    """Whether a directory has both halves."""
    return (tree / _SOURCE_MARK).is_file() and (tree / _BUILD_MARK).is_file()


def find_headers(
    release: str,
    *,
    sources: Path = Path("/usr/src"),
    modules: Path = Path("/lib/modules"),
    kheaders: Path = Path("/sys/kernel/kheaders.tar.xz"),
) -> HeaderTree | None:
    """Return the best headers that this host has, without changing anything.

    Args:
        release: release of the running kernel, `uname -r`.
        sources: directory where packages put headers.
        modules: root of the kernels' module directories.
        kheaders: the archive that the kernel itself offers, with CONFIG_IKHEADERS.
    """
    build = modules / release / "build"
    if is_complete(build):
        whole = build.resolve()
        return HeaderTree("build", whole, (whole,), release, matches=True)
    source = modules / release / "source"
    if (build / _BUILD_MARK).is_file() and (source / _SOURCE_MARK).is_file():
        parts = (source.resolve(), build.resolve())
        return HeaderTree("build", parts[1], parts, release, matches=True)
    if kheaders.is_file():
        return HeaderTree("kheaders", kheaders, (kheaders,), release, matches=True)
    packages = [
        HeaderTree("merged", parts[-1], parts, name, matches=name == release)
        for name, parts in _packages(sources)
    ]
    return min(packages, key=lambda tree: _distance(tree.release, release), default=None)


def _packages(sources: Path) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """Yield releases in /usr/src whose headers are whole, with the directories to merge."""
    machine = os.uname().machine
    found = sorted(path for path in sources.glob(f"{_PREFIX}*") if path.is_dir())
    common = [path for path in found if (path / _SOURCE_MARK).is_file()]
    for build in found:
        name = build.name.removeprefix(_PREFIX)
        arch = build / "arch" / _ARCH.get(machine, machine)
        if not (build / _BUILD_MARK).is_file() or not arch.is_dir():
            continue
        if build in common:
            yield name, (build.resolve(),)
            continue
        pair = [path for path in common if _belongs(name, path.name.removeprefix(_PREFIX))]
        if pair:
            # 6.1.0-9-rt-amd64 has 6.1.0-9-common-rt, longer than the 6.1.0-9-common of others.
            yield name, (max(pair, key=lambda path: len(path.name)).resolve(), build.resolve())


def _belongs(name: str, common: str) -> bool:
    """Whether a tree is built from a common one: Debian's 6.1.0-9-amd64 from 6.1.0-9-common."""
    version, found, variant = common.partition("-common")
    return bool(found) and name.startswith(f"{version}{variant}-")


def _distance(name: str, release: str) -> tuple[object, ...]:
    """Return a sort key for how far a release is from another: by version, then the newest."""
    theirs, ours = (_numbers(text) for text in (name, release))
    apart = [abs(a - b) for a, b in zip(theirs[:3], ours[:3], strict=False)]
    return name != release, apart, [-number for number in theirs[3:]]


def _numbers(release: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", release)]


def missing(release: str) -> MissingFeature:
    """Return the error where a kernel has no headers at all.

    Args:
        release: release of the running kernel.
    """
    return MissingFeature(
        f"no kernel headers for {release}, nor for a kernel near it",
        feature="kernel headers",
        hint=f"install the package linux-headers-{release} or kernel-devel-{release}, or another "
        "kernel's, or load the module kheaders",
    )


def make_headers(tree: HeaderTree, folder: Path) -> Path:
    """Return the directory to give BCC, made in `folder` unless the tree is usable in place.

    A directory that was made before is used again while its parts have not changed.

    Args:
        tree: the result of `find_headers`.
        folder: this program's own folder, for trees that are made.

    Raises:
        SinkError: the tree cannot be made, or others may write to where it would be.
    """
    if tree.kind != "kheaders" and len(tree.parts) == 1:
        return tree.parts[0]
    name = f"{tree.kind}-{tree.release}"
    target = folder / name
    try:
        made_of = _identity(tree)
        with _locked(folder) as opened:
            if not _usable(opened, name, made_of):
                _make(tree, opened, name, made_of)
    except _FAILURES as error:
        code, path = 0, str(target)
        if isinstance(error, OSError):
            code, path = error.errno or 0, _HELD.sub(str(folder), str(error.filename or target))
        reason = "" if code else f" ({str(error) or type(error).__name__})"
        message = f"kernel headers cannot be put together{reason}"
        raise SinkError(message, path=path, errno=code) from error
    return target


def _identity(tree: HeaderTree) -> str:
    """Return text that names a tree's parts and differs when they change."""
    facts: list[object] = [tree.release]
    for part in tree.parts:
        looked = [part, *(part / name for name in _MERGED)] if part.is_dir() else [part]
        facts += [[str(path), *_stamp(path)] for path in looked]
    if tree.kind == "kheaders":
        # Files are not forced to the disk: a power cut may leave some empty.
        facts.append(_BOOT_ID.read_text().strip())
    return json.dumps(facts)


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns


@contextmanager
def _locked(path: Path) -> Iterator[Folder]:
    """Hold the folder of trees, this program's alone, for one process at a time."""
    with open_folder(path, Trust.OWN, make_mode=0o755) as folder:
        fcntl.flock(folder.fd, fcntl.LOCK_EX)
        for entry in folder.entries():
            if entry.name.startswith(_MAKING):  # left by a process that was killed
                shutil.rmtree(folder.place / entry.name, ignore_errors=True)
        yield folder


def _usable(folder: Folder, name: str, made_of: str) -> bool:
    try:
        with folder.enter(name) as target:
            recorded = target.read(_MADE_OF, _MADE_OF_MAX_BYTES)
            return recorded == made_of.encode() and is_complete(target.place)
    except (OSError, UnsafePath):
        return False


def _make(tree: HeaderTree, folder: Folder, name: str, made_of: str) -> None:
    """Build the tree under a temporary name, and rename it when it is whole."""
    with ExitStack() as stack:
        aside = Path(tempfile.mkdtemp(prefix=_MAKING, dir=folder.place))
        stack.callback(shutil.rmtree, aside, ignore_errors=True)
        fresh = aside / "fresh"
        fresh.mkdir(mode=0o755)
        if tree.kind == "kheaders":
            _unpack(tree.path, fresh)
        else:
            for half in _MERGED:
                both = [part / half for part in tree.parts]
                _merge([path for path in both if path.is_dir()], fresh / half)
        if not is_complete(fresh):
            raise SinkError("the kernel headers are incomplete", path=str(tree.path))
        (fresh / _MADE_OF).write_text(made_of)
        if folder.stat(name) is not None:
            (folder.place / name).rename(aside / "stale")
        fresh.rename(folder.place / name)


def _merge(parts: Sequence[Path], target: Path) -> None:
    """Link what the directories have; a name that several have becomes a directory."""
    target.mkdir(mode=0o755)
    found: dict[str, list[Path]] = {}
    for part in parts:
        for entry in part.iterdir():
            found.setdefault(entry.name, []).append(entry)
    for name, entries in found.items():
        if len(entries) > 1 and all(entry.is_dir() for entry in entries):
            _merge(entries, target / name)
        else:
            (target / name).symlink_to(entries[-1])


def _unpack(archive: Path, target: Path) -> None:
    """Extract plain files and directories of the archive; links, which it lacks, are left out."""
    with tarfile.open(archive, "r:xz") as tar:
        for member in tar:
            words = PurePosixPath(member.name).parts
            if member.name.startswith("/") or ".." in words:
                raise tarfile.ReadError(f"{member.name} lies outside")
            path = target.joinpath(*words)
            content = tar.extractfile(member) if member.isreg() else None
            if member.isdir():
                path.mkdir(mode=0o755, parents=True, exist_ok=True)
            elif content is not None:
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                with content, path.open("xb") as file:
                    shutil.copyfileobj(content, file)

# SPDX-License-Identifier: Apache-2.0
"""A guest's disks, built in layers that are cached outside the tree.

base          Debian with kernel, compiler and tools: a folder, and a disk made of it
dependencies  packages that pip installs for the checkout
product       the checkout without its tests, `make setup` and `make install`
package       its Debian packages
modules       the test kernel modules
tests         the checkout's tests, compiled, and the guest's start script
project       all but base, as a disk

Each is named by a hash of its inputs, so an unchanged layer is built once and then reused. An
entry is locked exclusively while it is built and shared while it is used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from collectord.text import cpu_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent.parent
KEPT_OF_A_KIND: Final = 4
KEPT_BASES: Final = 3  # of 2 GiB each
# With those that are offline for a moment, as in a soak.
_PRESENT_CPUS: Final = Path("/sys/devices/system/cpu/present")
# Debian's releases: that with the newest kernel has the test kernel modules.
SUITES: Final = ("trixie", "bookworm")
# Whatever ends a build, its mounts and processes end with these.
_APART: Final = (
    *("unshare", "--mount", "--propagation", "private"),
    *("--pid", "--fork", "--kill-child", "--"),
)
# The programs that build a layer.
_SCRIPTS: Final = ("layer.sh", "pip.sh", "pip_settings.py")
# Packages of the guest itself. Those that the project needs are read from the Makefile.
_PACKAGES: Final = (
    *("systemd", "systemd-sysv", "udev", "kmod", "procps", "iproute2", "util-linux", "e2fsprogs"),
    *("linux-image-cloud-amd64", "linux-headers-cloud-amd64"),
    *("make", "ccache", "curl", "blktrace", "strace", "dmsetup"),
    *("prometheus", "prometheus-alertmanager"),
)


class BuildFailed(Exception):
    """A layer could not be built.

    Attributes:
        kind: of the layer.
        log: what the build printed.
    """

    def __init__(self, kind: str, log: Path) -> None:
        self.kind = kind
        self.log = log
        super().__init__(f"the guest's layer {kind} could not be built; see {log}")


def cache_folder() -> Path:
    """Return the cache folder of layers, packages and wheels."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home) / "collectord" / "vm"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a checkout at one moment.

    Attributes:
        folder: a copy of them.
        digests: SHA-256 by path in the checkout.
    """

    folder: Path
    digests: dict[str, str]

    @staticmethod
    def take(folder: Path) -> Snapshot:
        """Copy files that git tracks, or would not ignore, into `folder`."""
        words = ("git", "-c", f"safe.directory={ROOT}", "ls-files", "-coz", "--exclude-standard")
        listed = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        digests = {}
        for name in sorted({os.fsdecode(word) for word in listed.split(b"\0") if word}):
            source = ROOT / name
            if source.is_symlink() or not source.is_file():  # deleted and not committed
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
            mode = "x" if os.access(target, os.X_OK) else "-"
            digests[name] = mode + hashlib.sha256(target.read_bytes()).hexdigest()
        return Snapshot(folder, digests)

    def key(self, *prefixes: str, beside: str = "") -> str:
        """Return a hash of the files under `prefixes`, without those under `beside`."""
        lines = (
            f"{digest} {name}\n"
            for name, digest in self.digests.items()
            if name.startswith(prefixes) and not (beside and name.startswith(beside))
        )
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def packages(self) -> tuple[str, ...]:
        """Return the Debian packages that the Makefile installs."""
        text = (self.folder / "Makefile").read_text()
        lists = re.findall(r"^PACKAGES_(?:RUN|TEST|BPF|DEB) := (.*)$", text, re.MULTILINE)
        return tuple(word for line in lists for word in line.split())


@dataclass(frozen=True, slots=True)
class Disks:
    """The disks that a guest boots from; valid inside of the context that returned it."""

    kernel: Path
    initrd: Path
    base: Path
    project: Path


class Layers:
    """The layers of one snapshot. Entries stay locked until `close`."""

    def __init__(
        self, snapshot: Snapshot, suite: str, held: ExitStack, tell: Callable[[str], None]
    ) -> None:
        self._snapshot = snapshot
        self._suite = suite
        self._held = held
        self._tell = tell
        self._cache = cache_folder()
        self._cache.mkdir(parents=True, exist_ok=True)

    def disks(self) -> Disks:
        """Build the missing layers."""
        base = self._base()
        dependencies = self._dependencies(base)
        product = self._product(base, dependencies)
        package = self._package(base, dependencies, product)
        modules = [self._modules(base)] if self._suite == SUITES[0] else []
        tests = self._tests(base, dependencies, product)
        project = self._project(tests, *modules, package, product, dependencies)
        return Disks(base / "vmlinuz", base / "initrd", base / "base.ext4", project / "disk")

    def _base(self) -> Path:
        apt = (self._suite, *sorted({*_PACKAGES, *self._snapshot.packages()}))
        packed = self._cache / "packages"

        def build(folder: Path, log: Path) -> None:
            packed.mkdir(exist_ok=True)
            _logged((*_APART, "bash", self._here("base.sh"), folder, packed, *apt), log)

        made_of = (platform.machine(), self._here("base.sh").read_text(), *apt)
        return self._entry("base", made_of, build)

    def _dependencies(self, base: Path) -> Path:
        files = ("pyproject.toml", "constraints.txt", "Makefile")
        made_of = (base.name, *map(self._digest, files))
        return self._layer("dependencies", made_of, (base / "tree",), self._cache, self._source())

    def _product(self, base: Path, dependencies: Path) -> Path:
        made_of = (dependencies.name, self._snapshot.key("", beside="tests/"))
        below = (dependencies, base / "tree")
        return self._layer("product", made_of, below, self._cache, self._source())

    def _package(self, base: Path, dependencies: Path, product: Path) -> Path:
        below = (product, dependencies, base / "tree")
        return self._layer("package", (product.name,), below, self._cache)

    def _modules(self, base: Path) -> Path:
        prefix = "tests/vm/modules/"
        # A base that is built again has the archive's kernel of that day.
        kernels = sorted(path.name for path in (base / "tree/lib/modules").glob("*"))
        made_of = (base.name, *kernels, self._snapshot.key(prefix))
        return self._layer("modules", made_of, (base / "tree",), self._source() / prefix)

    def _tests(self, base: Path, dependencies: Path, product: Path) -> Path:
        made_of = (product.name, self._snapshot.key("tests/", beside="tests/vm/modules/"))
        below = (product, dependencies, base / "tree")
        return self._layer("tests", made_of, below, self._cache, self._source())

    def _project(self, *below: Path) -> Path:
        def build(folder: Path, log: Path) -> None:
            folder.mkdir()
            _logged((*self._script("image", folder, below), folder / "disk"), log)

        return self._entry("project", tuple(layer.name for layer in below), build)

    def _source(self) -> Path:
        return self._snapshot.folder

    def _here(self, name: str) -> Path:
        """Return a file of this folder, from the snapshot: the checkout's may be edited now."""
        return self._source() / "tests/vm" / name

    def _digest(self, name: str) -> str:
        return self._snapshot.digests[name]

    def _script(self, verb: str, folder: Path, below: Sequence[Path]) -> tuple[str | Path, ...]:
        return (*_APART, "bash", self._here("layer.sh"), verb, folder, *below, "--")

    def _layer(
        self, kind: str, made_of: Sequence[str], below: Sequence[Path], *arguments: str | Path
    ) -> Path:
        def build(folder: Path, log: Path) -> None:
            _logged((*self._script(kind, folder, below), *arguments), log)

        scripts = (self._here(name).read_text() for name in _SCRIPTS)
        return self._entry(kind, (*made_of, *scripts), build)

    def _entry(
        self, kind: str, made_of: Sequence[str], build: Callable[[Path, Path], None]
    ) -> Path:
        """Return the entry of `kind` that is made of `made_of`, built if there is none."""
        name = f"{kind}-{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:16]}"
        entry = self._cache / name
        lock = self._held.enter_context(_opened(self._cache / f"{name}.lock"))
        while True:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if entry.exists():
                os.utime(entry)
                return entry
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not entry.exists():
                self._build(kind, entry, build)

    def _build(self, kind: str, entry: Path, build: Callable[[Path, Path], None]) -> None:
        self._tell(f"vm: building {kind}")
        began = time.monotonic()
        for rest in self._cache.glob(f"{entry.name}.partial*"):  # of a build that was killed
            _remove(rest)
        partial = entry.with_name(f"{entry.name}.partial")
        log = entry.with_name(f"{entry.name}.log")
        try:
            build(partial, log)
        except subprocess.CalledProcessError as error:
            raise BuildFailed(kind, log) from error
        finally:
            self._tell_of(log)
        partial.rename(entry)
        self._tell(f"vm: built {kind} in {time.monotonic() - began:.0f} s")
        self._prune(kind)

    def _tell_of(self, log: Path) -> None:
        """Show a script's output to the user who started the build."""
        if log.exists():
            for line in log.read_text(errors="replace").splitlines():
                if line.startswith("vm: "):
                    self._tell(line)

    def _prune(self, kind: str) -> None:
        """Delete the least recently used entries of a kind that are not in use."""
        pattern = re.compile(rf"{kind}-[0-9a-f]{{16}}")
        entries = [path for path in self._cache.iterdir() if pattern.fullmatch(path.name)]
        entries.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for entry in entries[KEPT_BASES if kind == "base" else KEPT_OF_A_KIND :]:
            with _opened(entry.with_name(f"{entry.name}.lock")) as lock:
                if _taken(lock):
                    _remove(entry)


@contextmanager
def place_for_a_guest(tell: Callable[[str], None]) -> Iterator[None]:
    """Wait until fewer guests run than this machine has CPUs: more would not end sooner."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        locks = [
            stack.enter_context(_opened(cache_folder() / f"guest-{number}.lock"))
            for number in range(len(cpu_list.parse(_PRESENT_CPUS.read_text())))
        ]
        if not any(map(_taken, locks)):
            tell("vm: waits for the guests that run")
            while not any(map(_taken, locks)):
                time.sleep(1)
        yield


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _logged(words: Sequence[str | Path], log: Path) -> None:
    with log.open("wb") as output:
        subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHON": sys.executable},
            check=True,
        )

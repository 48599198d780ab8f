# SPDX-License-Identifier: Apache-2.0
"""Kernel headers: which tree is taken, and what is made where there is none as a whole."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from collectord.errors import SinkError
from collectord.kernel.bpf import kernel_headers
from collectord.kernel.bpf.kernel_headers import (
    HeaderTree,
    find_headers,
    is_complete,
    make_headers,
)
from tests.support.daemons import wait_for

pytestmark = pytest.mark.slow

RELEASE: Final = "6.18.4-1-amd64"
ARCH: Final = kernel_headers._ARCH.get(os.uname().machine, os.uname().machine)
SOURCE: Final = (
    "include/linux/kconfig.h",
    "include/linux/sched.h",
    f"arch/{ARCH}/include/asm/a.h",
)
BUILD: Final = (
    "include/generated/autoconf.h",
    "include/config/auto.conf",
    f"arch/{ARCH}/include/generated/b.h",
)


def tree(path: Path, *names: str) -> Path:
    """Make files that contain the name of their tree."""
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(path.name)
    return path


def archive(path: Path, *names: str, bulk_bytes: int = 0) -> Path:
    """Return an archive as the kernel offers it; a name with an arrow is a symbolic link."""
    with tarfile.open(path, "w:xz") as tar:
        bulk = tarfile.TarInfo("bulk")
        bulk.size = bulk_bytes
        tar.addfile(bulk, io.BytesIO(os.urandom(bulk_bytes)))
        for name in names:
            member, arrow, target = name.partition("->")
            info = tarfile.TarInfo(member)
            if arrow:
                info.type, info.linkname = tarfile.SYMTYPE, target
            info.size = 0 if arrow else len(name)
            tar.addfile(info, io.BytesIO(name.encode()))
    return path


class Host:
    """Directories that headers are looked for in."""

    def __init__(self, root: Path) -> None:
        self.sources = root / "src"
        self.modules = root / "modules"
        self.kheaders = root / "kheaders.tar.xz"
        self.cache = root / "state" / "headers"
        self.sources.mkdir()
        (self.modules / RELEASE).mkdir(parents=True)

    def package(self, name: str, *names: str) -> Path:
        """Return an installed package of headers."""
        return tree(self.sources / f"linux-headers-{name}", *names)

    def pair(self, version: str = "6.1.0-9") -> tuple[Path, Path]:
        """Install Debian's two packages."""
        common = self.package(f"{version}-common", *SOURCE)
        return common, self.package(f"{version}-amd64", *BUILD)

    def find(self) -> HeaderTree | None:
        """Look for headers of RELEASE."""
        return find_headers(
            RELEASE, sources=self.sources, modules=self.modules, kheaders=self.kheaders
        )

    def make(self) -> Path:
        """Find and make them."""
        found = self.find()
        assert found
        return make_headers(found, self.cache)

    def left(self) -> list[str]:
        """Return the contents of the cache."""
        return sorted(path.name for path in self.cache.iterdir())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host without kernel headers."""
    return Host(tmp_path)


def test_nothing_is_found_where_nothing_is(host: Host) -> None:
    """Neither half alone is a tree, and the error names the package to install."""
    assert host.find() is None
    host.package("6.1.0-9-common", *SOURCE)
    host.package("6.2.0-9-amd64", *BUILD)
    assert host.find() is None
    error = kernel_headers.missing(RELEASE)
    assert f"linux-headers-{RELEASE}" in error.hint
    assert error.exit_code == 5


def test_a_build_directory_is_used_in_place(host: Host) -> None:
    """The running kernel's own comes first, whatever else there is."""
    host.pair()
    archive(host.kheaders, *SOURCE, *BUILD)
    build = tree(host.sources / "linux", *SOURCE, *BUILD)
    (host.modules / RELEASE / "build").symlink_to(build)
    assert host.find() == HeaderTree("build", build, (build,), RELEASE, matches=True)
    assert host.make() == build
    assert not host.cache.exists()


def test_a_split_build_directory_is_merged(host: Host) -> None:
    """Debian's build link leads to one half, its source link to the other."""
    common, build = host.pair("6.18.4-1")
    (host.modules / RELEASE / "build").symlink_to(build)
    (host.modules / RELEASE / "source").symlink_to(common)
    assert host.find() == HeaderTree("build", build, (common, build), RELEASE, matches=True)
    assert is_complete(host.make())


def test_a_build_link_without_headers_does_not_count(host: Host) -> None:
    """Without the source's half the next kind is looked for."""
    common, build = host.pair()
    (host.modules / RELEASE / "build").symlink_to(host.package("6.18.4-1-amd64", *BUILD))
    found = host.find()
    assert found
    assert (found.kind, found.parts, found.matches) == ("merged", (common, build), False)


@pytest.mark.parametrize(
    ("installed", "chosen"),
    [
        (("5.10.0-2", "6.1.0-9"), "6.1.0-9"),
        (("6.1.0-9", "6.17.0-1", "7.1.0-1"), "6.17.0-1"),
        (("6.17.0-1", "6.17.0-12", "6.17.0-3"), "6.17.0-12"),
        (("6.18.4-1", "6.18.4-2"), "6.18.4-1"),
    ],
)
def test_the_nearest_release_is_taken(host: Host, installed: tuple[str, ...], chosen: str) -> None:
    """The same release is preferred, then the nearest version, then the newest package of it."""
    for version in installed:
        host.pair(version)
    found = host.find()
    assert found
    assert found.release == f"{chosen}-amd64"
    assert found.matches == (found.release == RELEASE)


def test_halves_belong_together(host: Host) -> None:
    """A realtime kernel's build is merged with the source of that, not of the plain one."""
    host.package("6.1.0-9-common", *SOURCE)
    common = host.package("6.1.0-9-common-rt", *SOURCE)
    build = host.package("6.1.0-9-rt-amd64", *BUILD)
    found = host.find()
    assert found
    assert found.parts == (common, build)
    _, plain = host.pair("6.2.0-1")
    host.package("6.2.0-1-common-rt", *SOURCE)
    found = host.find()
    assert found
    assert found.parts == (host.sources / "linux-headers-6.2.0-1-common", plain)


def test_other_machines_are_left_out(host: Host) -> None:
    """Headers of another architecture are of no use."""
    host.package("6.1.0-9-common", *SOURCE)
    host.package("6.1.0-9-other", BUILD[0], "arch/other/include/generated/b.h")
    assert host.find() is None


def test_a_whole_package_is_used_in_place(host: Host) -> None:
    """If a package has both halves, no tree is made."""
    whole = host.package("6.17.0-5-generic", *SOURCE, *BUILD)
    assert host.make() == whole


def test_merging_links_what_both_halves_have(host: Host) -> None:
    """A directory that both have has the files of both; any other is one link."""
    common, build = host.pair()
    made = host.make()
    assert made.parent == host.cache
    assert is_complete(made)
    for part, names in ((common, SOURCE), (build, BUILD)):
        assert {(made / name).read_text() for name in names} == {part.name}
    assert (made / "include/linux").readlink() == common / "include/linux"
    assert not (made / "include").is_symlink()


def test_a_made_tree_is_used_again_until_its_parts_change(host: Host) -> None:
    """No work is done twice, but an upgraded package is merged again."""
    _, build = host.pair()
    first = host.make()
    status = first.stat()
    assert host.make().stat() == status
    tree(build, "include/new/a.h")
    assert host.make() == first
    assert (first / "include/new/a.h").exists()
    assert host.left() == [first.name]


def test_a_tree_that_lost_its_parts_is_made_anew(host: Host) -> None:
    """Links that lead nowhere are no headers, though the record of the parts is right."""
    host.pair()
    made = host.make()
    (made / "include/linux").unlink()
    assert not is_complete(made)
    assert is_complete(host.make())


def test_others_may_not_write_to_the_folder(host: Host) -> None:
    """Headers end up in the kernel's programs: who may write them must be trusted."""
    host.pair()
    host.cache.mkdir(parents=True)
    host.cache.chmod(0o777)
    with pytest.raises(SinkError, match="others can write"):
        host.make()
    assert host.left() == []


def test_others_may_not_write_to_the_tree(host: Host) -> None:
    """A tree that others could have changed is made anew."""
    host.pair()
    made = host.make()
    (made / "include/evil").write_text("")
    made.chmod(0o777)
    assert not (host.make() / "include/evil").exists()


def test_links_in_the_way_are_not_followed(host: Host, tmp_path: Path) -> None:
    """A tree may not lead elsewhere: there nothing is written."""
    host.pair()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    made = host.cache / "merged-6.1.0-9-amd64"
    host.cache.mkdir(parents=True)
    for place in (elsewhere, tmp_path / "nowhere"):
        made.symlink_to(place)
        assert host.make() == made
        assert not made.is_symlink()
        shutil.rmtree(made)
    assert list(elsewhere.iterdir()) == []


def test_what_a_killed_process_left_is_removed(host: Host) -> None:
    """A tree that was never finished does not stay."""
    host.pair()
    tree(host.cache / ".making-x", "fresh/include/a.h")
    assert host.left() == [".making-x"]
    made = host.make()
    assert is_complete(made)
    assert host.left() == [made.name]


def waiting(folder: Path) -> int:
    """Return how many processes wait for the lock of a folder."""
    status = folder.stat()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    locks = Path("/proc/locks").read_text().splitlines()
    return sum("->" in line and f"{device}:{status.st_ino} " in line for line in locks)


def test_two_at_once_make_one(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """All who ask at the same time get the same whole tree, which one of them makes."""
    host.pair()
    makes = []
    make = kernel_headers._make

    def when_all_wait(*args: Any) -> None:  # noqa: ANN401 - as they are
        makes.append(args)
        wait_for(lambda: waiting(host.cache) == 7, "the others")
        make(*args)

    monkeypatch.setattr(kernel_headers, "_make", when_all_wait)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: is_complete(host.make()), range(8)))
    assert all(made)
    assert len(makes) == 1
    assert len(host.left()) == 1


def test_the_kernels_archive_is_unpacked(host: Host) -> None:
    """It comes before packages of other kernels; links in it are left out."""
    host.pair()
    archive(host.kheaders, *(f"./{name}" for name in (*SOURCE, *BUILD)), "./etc->/etc")
    made = host.make()
    assert made.name == f"kheaders-{RELEASE}"
    assert (made / SOURCE[1]).read_text() == f"./{SOURCE[1]}"
    assert not (made / "etc").is_symlink()
    status = made.stat()
    assert host.make().stat() == status
    archive(host.kheaders, *SOURCE, *BUILD)
    assert (host.make() / SOURCE[1]).read_text() == SOURCE[1]


@pytest.mark.parametrize("name", ["../../outside", "/outside", "a/../../outside"])
def test_an_archive_stays_inside(host: Host, name: str) -> None:
    """A member that would be written elsewhere ends it, and nothing is left."""
    archive(host.kheaders, *SOURCE, *BUILD, name)
    with pytest.raises(SinkError, match="outside"):
        host.make()
    assert host.left() == []
    assert not list(host.cache.parent.glob("outside"))


@pytest.mark.parametrize("part", [0, 0.1, 0.9, 0.999])
@pytest.mark.parametrize("rest", [b"", b"\xff" * 4096])
def test_a_damaged_archive_is_no_tree(host: Host, part: float, rest: bytes) -> None:
    """A truncated or overwritten archive is reported as such, and no files are left."""
    whole = archive(host.kheaders, *SOURCE, *BUILD, bulk_bytes=1 << 20).read_bytes()
    host.kheaders.write_bytes(whole[: int(len(whole) * part)] + rest)
    with pytest.raises(SinkError, match="cannot be put together"):
        host.make()
    assert host.left() == []


def test_an_archive_without_a_half_is_no_tree(host: Host) -> None:
    """BCC would fail on it with less to say."""
    archive(host.kheaders, *SOURCE)
    with pytest.raises(SinkError, match="are incomplete"):
        host.make()
    assert host.left() == []


def test_parts_that_went_away_are_named(host: Host) -> None:
    """Headers may be uninstalled between their discovery and their use."""
    _, build = host.pair()
    found = host.find()
    assert found
    build.rename(build.with_name("gone"))
    with pytest.raises(SinkError, match=build.name):
        make_headers(found, host.cache)

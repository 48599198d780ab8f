# SPDX-License-Identifier: Apache-2.0
"""The catalogue of BPF programs: what is in it, and whose files are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord.errors import ConfigError, UsageError
from collectord.kernel.bpf import catalogue
from collectord.kernel.bpf.catalogue import BpfProblem
from collectord.programs.bpf_program import BpfProgram
from tests.support.bpf_pairs import MANIFEST, SOURCE, write

if TYPE_CHECKING:
    from collections.abc import Callable

SHIPPED: Final = sorted(
    path.name.removesuffix(".bpf.c")
    for path in (Path(__file__).resolve().parents[4] / "bpf").glob("*.bpf.c")
)
ME: Final = os.getuid()
NOBODY: Final = 65_534


def listed(folder: Path) -> dict[str, BpfProgram | BpfProblem]:
    """Return the programs that are not shipped, by name."""
    found = catalogue.list_programs(folder, owner=ME)
    return {one.name: one for one in found if one.name not in SHIPPED}


def problem(folder: Path, name: str = "switches") -> str:
    """Why a program is none: the same when it is listed as when it is asked for."""
    one = listed(folder)[name]
    assert isinstance(one, BpfProblem)
    with pytest.raises(ConfigError) as caught:
        catalogue.load(name, folder, owner=ME)
    assert str(caught.value) == one.reason
    assert one.path in one.reason
    return one.reason


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_programs_load(name: str, tmp_path: Path) -> None:
    """Each pair reads and agrees with itself."""
    program = catalogue.load(name, tmp_path / "none")
    assert (program.name, program.origin) == (name, "shipped")
    assert Path(program.path).read_text() == program.source


def test_shipped_programs_are_listed(tmp_path: Path) -> None:
    """The local directory need not exist."""
    found = catalogue.list_programs(tmp_path / "none")
    assert [one.name for one in found] == SHIPPED
    assert SHIPPED


def test_a_pair_of_files_is_a_program(tmp_path: Path) -> None:
    """It is found by its name; other files beside it are nobody's business."""
    folder = write(tmp_path / "p")
    (folder / "README").write_text("x")
    (folder / ".hidden.toml").write_text("x")
    program = catalogue.load("switches", folder, owner=ME)
    assert (program.source, program.origin) == (SOURCE, "local")
    assert program.path == str(folder / "switches.bpf.c")
    assert program.manifest.summary == "switches to a process"
    assert listed(folder) == {"switches": program}


def test_a_relative_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--program-dir p` is below the working directory."""
    write(tmp_path / "p")
    monkeypatch.chdir(tmp_path)
    path = catalogue.load("switches", Path("p"), owner=ME).path
    assert path == str(tmp_path / "p/switches.bpf.c")


def test_unknown_names_have_the_nearest(tmp_path: Path) -> None:
    """The nearest name is taken from shipped and local programs."""
    folder = write(tmp_path / "p")
    with pytest.raises(UsageError, match='did you mean "switches"'):
        catalogue.load("swiches", folder, owner=ME)
    with pytest.raises(UsageError, match='did you mean "execsnoop"'):
        catalogue.load("execsnop", folder, owner=ME)
    with pytest.raises(UsageError, match="bpf list"):
        catalogue.load("../../etc/shadow", folder, owner=ME)


def _missing_half(folder: Path) -> None:
    (folder / "switches.toml").unlink()


def _wrong_manifest(folder: Path) -> None:
    (folder / "switches.toml").write_text(MANIFEST.replace("license", "licence"))


def _contradiction(folder: Path) -> None:
    (folder / "switches.toml").write_text(MANIFEST.replace("sched:sched_switch", "a:b"))


def _no_text(folder: Path) -> None:
    (folder / "switches.bpf.c").write_bytes(b"\xff")


def _nul(folder: Path) -> None:
    (folder / "switches.bpf.c").write_bytes(b"int x;\0")


def _too_long(folder: Path) -> None:
    (folder / "switches.bpf.c").write_bytes(b" " * (catalogue.SOURCE_MAX_BYTES + 1))


def _manifest_too_long(folder: Path) -> None:
    (folder / "switches.toml").write_bytes(b"#" * (catalogue.MANIFEST_MAX_BYTES + 1))


def _others_write_source(folder: Path) -> None:
    (folder / "switches.bpf.c").chmod(0o646)


def _group_writes_manifest(folder: Path) -> None:
    (folder / "switches.toml").chmod(0o664)


def _link(folder: Path) -> None:
    real = folder.parent / "real"
    (folder / "switches.bpf.c").rename(real)
    (folder / "switches.bpf.c").symlink_to(real)


def _fifo(folder: Path) -> None:
    (folder / "switches.bpf.c").unlink()
    os.mkfifo(folder / "switches.bpf.c", 0o644)


def _directory(folder: Path) -> None:
    (folder / "switches.bpf.c").unlink()
    (folder / "switches.bpf.c").mkdir(0o755)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_missing_half, "is missing, but"),
        (_wrong_manifest, 'did you mean "license"'),
        (_contradiction, "attaches to sched:sched_switch"),
        (_no_text, "is not UTF-8"),
        (_nul, "contains a NUL byte"),
        (_too_long, "more than 262144 bytes"),
        (_manifest_too_long, "more than 65536 bytes"),
        (_others_write_source, "others can write to it; chmod go-w"),
        (_group_writes_manifest, "others can write to it"),
        (_link, "is a link"),
        (_fifo, "is not a regular file"),
        (_directory, "is not a regular file"),
    ],
)
def test_files_that_are_refused(spoil: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    """The error is one line with the path; nothing blocks and no link is followed."""
    folder = write(tmp_path / "p")
    spoil(folder)
    assert words in problem(folder)


@pytest.mark.parametrize("name", ["Upper", "a-b", "1st", "a b"])
def test_names_that_are_refused(name: str, tmp_path: Path) -> None:
    """A name is part of metrics and files."""
    assert "not a valid program name" in problem(write(tmp_path / "p", name=name), name)


def test_a_shipped_name_is_refused(tmp_path: Path) -> None:
    """It would not be clear which one runs."""
    folder = write(tmp_path / "p", name=SHIPPED[0])
    found = {one.name: one for one in catalogue.list_programs(folder, owner=ME)}
    one = found[SHIPPED[0]]
    assert isinstance(one, BpfProblem)
    assert "a shipped program has this name; rename both" in one.reason
    assert one.path == str(folder / f"{SHIPPED[0]}.bpf.c")


def _writable(folder: Path) -> None:
    folder.chmod(0o775)


def _writable_above(folder: Path) -> None:
    folder.parent.chmod(0o777)


def _linked(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


def _linked_above(folder: Path) -> None:
    above = folder.parent
    above.rename(above.with_name("elsewhere"))
    above.symlink_to(above.with_name("elsewhere"))


def _file(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("x")


def _full(folder: Path) -> None:
    for index in range(catalogue.FILES_MAX):
        (folder / f"{index}").touch()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_writable, "others can write to it"),
        (_writable_above, "others can write to it"),
        (_linked, "is a link, or not a directory"),
        (_linked_above, "is a link, or not a directory"),
        (_file, "is a link, or not a directory"),
        (_full, "has more than"),
    ],
)
def test_directories_that_are_refused(
    spoil: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    """Their programs are ignored; shipped programs are not."""
    (tmp_path / "above").mkdir(mode=0o755)
    folder = write(tmp_path / "above/p")
    spoil(folder)
    (one,) = listed(folder).values()
    assert isinstance(one, BpfProblem)
    assert (one.name, words in one.reason) == ("", True)
    with pytest.raises(ConfigError, match="no shipped program 'switches', and") as caught:
        catalogue.load("switches", folder, owner=ME)
    assert one.reason in str(caught.value)
    assert catalogue.load("syscall_stream", folder, owner=ME).origin == "shipped"


def test_a_sticky_directory_above(tmp_path: Path) -> None:
    """Nobody can move there what is another's, as in /tmp."""
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(0o1777)
    folder = write(tmp_path / "above/p")
    assert isinstance(listed(folder)["switches"], BpfProgram)
    folder.chmod(0o1777)
    assert isinstance(listed(folder)[""], BpfProblem)


@pytest.mark.parametrize("name", ["switches.bpf.c", "switches.toml", ""])
def test_files_of_somebody_else(name: str, tmp_path: Path) -> None:
    """Only root's count; whoever owns a file or its directory decides what the kernel runs."""
    folder = write(tmp_path / "p")
    if ME == 0:
        os.chown(folder / name, NOBODY, -1)
        (one,) = listed(folder).values()
    else:
        found = catalogue.list_programs(folder, owner=NOBODY)
        (one,) = (one for one in found if one.name not in SHIPPED)
    assert isinstance(one, BpfProblem)
    assert "belongs to user" in one.reason
    assert "chown it to root" in one.reason


def test_the_library_is_found() -> None:
    """It is found in a checkout as in an installed package."""
    assert "collectord_submit" in catalogue.library_text()

# SPDX-License-Identifier: Apache-2.0
"""Lists of the functions of modules and BPF programs, beside each segment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.reader.symbols.kernel_symbols import KernelFunction, KernelSymbols
from collectord.sink import symbol_list
from collectord.sink.sidecar_files import remove_lone
from collectord.sink.symbol_list import ModuleLists, kept_modules

if TYPE_CHECKING:
    from pathlib import Path

CORE: Final = b"""\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _text
ffffffff81000100 t work
ffffffff81000200 T more
"""
EXT4: Final = b"ffffffffc0000000 t ext4_read\t[ext4]\nffffffffc0000100 d data\t[ext4]\n"
BPF: Final = b"ffffffffc0001000 t bpf_prog_1234_count\t[bpf]\n"
HIDDEN: Final = b"0000000000000000 T _text\n0000000000000000 t ext4_read\t[ext4]\n"
OTHER: Final = b"ffffffffc0000000 t other_read\t[other]\n"
LOADED: Final = "ext4 1000 {} jbd2,mbcache, Live 0xffffffffc0000000\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with a module and a BPF program."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/kallsyms").write_bytes(CORE + EXT4 + BPF)
    (tmp_path / "proc/modules").write_text(LOADED.format(1))
    return tmp_path / "proc"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The folder of a session."""
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def _keep(lists: ModuleLists, state: Path, segment: str) -> bytes:
    (state / segment).touch()
    with open_folder(state, Trust.WRITE) as folder:
        lists.keep(folder, segment)
    return kept_modules(state / segment)


def _file(state: Path, segment: str) -> Path:
    return state / f"{segment}.modules.gz"


def test_a_segment_has_the_functions_of_its_time(proc: Path, state: Path) -> None:
    """The list is read again when other modules are loaded, and only then."""
    lists = ModuleLists(proc)
    functions = EXT4.splitlines(keepends=True)[0] + BPF
    assert _keep(lists, state, "first") == functions
    (proc / "kallsyms").unlink()
    (proc / "modules").write_text(LOADED.format(22))  # in use by others
    assert _keep(lists, state, "second") == functions
    assert _file(state, "first").samefile(_file(state, "second"))
    (proc / "kallsyms").write_bytes(CORE + OTHER + BPF)
    (proc / "modules").write_text("other 1000 0 - Live 0xffffffffc0000000\n")
    assert _keep(lists, state, "third") == OTHER + BPF
    assert kept_modules(state / "second") == functions
    # Another module that is loaded again at another place is another list, too.
    (proc / "kallsyms").write_bytes(CORE + BPF)
    (proc / "modules").write_text("other 1000 0 - Live 0xffffffffc0009000\n")
    assert _keep(lists, state, "fourth") == BPF


def test_bpf_programs_are_found_after_some_time(
    proc: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come without a sign; what has not changed is kept once all the same."""
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    lists = ModuleLists(proc)
    before = _keep(lists, state, "first")
    more = b"ffffffffc0001800 t bpf_prog_99_more\t[bpf]\n"
    (proc / "kallsyms").write_bytes(CORE + EXT4 + BPF + more)
    assert _keep(lists, state, "second") == before
    now_ns += symbol_list._LASTS_NS
    assert _keep(lists, state, "third") == before + more
    now_ns += symbol_list._LASTS_NS
    assert _keep(lists, state, "fourth") == before + more
    assert _file(state, "third").samefile(_file(state, "fourth"))
    assert not _file(state, "first").samefile(_file(state, "third"))


def test_a_list_is_kept_again_when_the_one_before_is_gone(proc: Path, state: Path) -> None:
    """Its segment was deleted."""
    lists = ModuleLists(proc)
    functions = _keep(lists, state, "first")
    (state / "first").unlink()
    with open_folder(state, Trust.WRITE) as folder:
        remove_lone(folder)
    assert not _file(state, "first").exists()
    assert _keep(lists, state, "second") == functions


@pytest.mark.parametrize("text", [CORE, HIDDEN, None])
def test_without_modules_or_privilege_there_is_no_list(
    proc: Path, state: Path, text: bytes | None
) -> None:
    """And none is looked for at each seal."""
    (proc / "kallsyms").unlink()
    if text is not None:
        (proc / "kallsyms").write_bytes(text)
    (proc / "modules").unlink()
    lists = ModuleLists(proc)
    assert _keep(lists, state, "first") == b""
    (proc / "kallsyms").write_bytes(CORE + BPF)
    assert _keep(lists, state, "second") == b""
    assert {path.name for path in state.iterdir()} == {"first", "second"}


def test_the_list_of_a_segment_takes_the_place_of_another() -> None:
    """Only the kernel's own functions stay where they are."""
    kernel = KernelSymbols(CORE + EXT4 + BPF + b"ffffffffc0002000 t end\t[bpf]\n")
    listed = KernelSymbols(OTHER + b"ffffffffc0000800 t other_end\t[other]\n")
    found = kernel.with_modules(listed)
    assert len(found) == len(kernel)
    told = {
        0xFFFFFFFF81000110: KernelFunction("work", "", 0xFFFFFFFF81000100),
        0xFFFFFFFFC0000010: KernelFunction("other_read", "other", 0xFFFFFFFFC0000000),
        0xFFFFFFFFC0001000: None,
        0x1000: None,
    }
    assert {address: found.find(address) for address in told} == told
    before = kernel.find(0xFFFFFFFFC0000010)
    assert before is not None
    assert before.name == "ext4_read"
    alone = KernelSymbols().with_modules(listed)
    assert alone.find(0xFFFFFFFFC0000010) == told[0xFFFFFFFFC0000010]

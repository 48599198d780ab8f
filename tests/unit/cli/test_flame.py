# SPDX-License-Identifier: Apache-2.0
"""`collectord flame`: samples as stacks of functions."""

from __future__ import annotations

import builtins
import os
import pwd
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.cli import flame
from collectord.codec.perf_features import BuildId, ClockData, Features
from collectord.errors import CollectordError, SinkError, UsageError
from collectord.reader.flame import profile
from collectord.reader.symbols import kernel_lists, symbolic_names
from tests.support import bpf_segments
from tests.support.profiles import (
    CGROUP_ATTR,
    KERNEL,
    USER,
    cgroup,
    comm,
    fork,
    mapped,
    sample,
    write,
)
from tests.support.programs import compile_busy, offset_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AT: Final = 0x5000_0000_0000
UTC_NS: Final = 1_764_000_000_000_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for what is read of symbols."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/collectord/symbols"


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of known functions."""
    return compile_busy(tmp_path_factory.mktemp("busy"), "-g")


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Forgets the kernel's functions before and behind the test."""
    remembered = (kernel_lists._running, kernel_lists._moved, kernel_lists._kept)
    for one in remembered:
        one.cache_clear()
    yield
    for one in remembered:
        one.cache_clear()


def _lines(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[str]:
    flame.run([*map(str, words)])
    return capsys.readouterr().out.splitlines()


def _program(busy: Path, pid: int, time_ns: int) -> bytes:
    return mapped(time_ns, pid, busy, addr=AT, length=1 << 20, inode=busy.stat().st_ino)


def test_stacks_of_functions_are_counted(
    tmp_path: Path, busy: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A return address is of the call before it: behind a call at a function's end is another."""
    inner, outer, main = (AT + offset_of(busy, name) for name in ("inner", "outer", "main"))
    chain = (USER, inner + 2, main, 0x10, 0x20, 0x30)  # `outer` ends before `main` begins
    path = write(
        tmp_path / "perf.data",
        comm(1, 50, b"a;\x1bb"),
        _program(busy, 50, 2),
        sample(3, 50, *chain),
        sample(4, 50, *chain, cpu=1),
        sample(5, 50, USER, outer),
        sample(6, 51, USER, outer),
    )
    lines = _lines(capsys, path)
    assert "a:\\x1bb;[unknown];outer;inner 2" in lines
    assert "a:\\x1bb;outer 1" in lines
    assert "[unknown];[unknown] 1" in lines
    assert len(lines) == 3
    assert [*cache.iterdir()]
    assert "CPU 1;[unknown];outer;inner 1" in _lines(capsys, path, "--by", "cpu")
    assert "a:\\x1bb-50;outer 1" in _lines(capsys, path, "--by", "pid")


def test_cgroups_are_outermost_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the paths that the file tells, wherever it does; an id without one has no name."""
    path = write(
        tmp_path / "perf.data",
        *(sample(at, 50, USER, 0x10, attr=CGROUP_ATTR, cgroup=70) for at in (3, 4)),
        sample(5, 50, USER, 0x10, attr=CGROUP_ATTR, cgroup=1),
        sample(6, 50, USER, 0x10, attr=CGROUP_ATTR, cgroup=(1 << 64) - 1),
        cgroup(0, 1, b"/"),
        cgroup(1, 70, b"/a.slice/b;\xff"),
        attr=CGROUP_ATTR,
    )
    expected = ["/;[unknown] 1", "/a.slice/b:\\xff;[unknown] 2", "[unknown];[unknown] 1"]
    assert sorted(_lines(capsys, path, "--by", "cgroup")) == expected
    assert _lines(capsys, path) == ["[unknown];[unknown] 4"]
    without = write(tmp_path / "other.data", sample(1, 50, USER, 0x10))
    assert flame.run([str(path), str(without), "--by", "cgroup"]) == 0
    assert "1 files, such as" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no file has the cgroups") as refused:
        flame.run([str(without), "--by", "cgroup"])
    assert "--all-cgroups" in refused.value.hint
    assert "`cgroups = true`" in refused.value.hint


def test_an_address_is_what_it_was_at_that_time(
    tmp_path: Path, busy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a child as in its parent, and nothing of it in the next program."""
    inner = AT + offset_of(busy, "inner")
    path = write(
        tmp_path / "perf.data",
        comm(1, 50, b"sh"),
        _program(busy, 50, 2),
        fork(10, 50, 60),
        sample(11, 60, USER, inner),
        comm(20, 60, b"new", execs=True),
        mapped(21, 60, "/nowhere/lib.so", addr=AT, length=1 << 20, pgoff=0x1000),
        sample(22, 60, USER, inner),
        sample(23, 60, USER, inner),
    )
    place = inner - AT + 0x1000
    assert _lines(capsys, path) == [f"new;[lib.so+{place:#x}] 2", "sh;inner 1"]


@pytest.mark.usefixtures("forgetful")
def test_kernel_frames_are_named_by_the_list_of_their_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel of the same build elsewhere has its own code at the same distance."""
    first, work = 0xFFFF_FFFF_8100_0000, 0xFFFF_FFFF_8100_0100
    text = (
        b"ffffffff81000000 T _text\nffffffff81000100 T do_work\nffffffff81000200 T more\n"
        b"ffffffffc0000000 t of_module\t[mod]\nffffffffc0001000 t end\t[mod]\n"
    )
    monkeypatch.setattr(kernel_lists, "_text", lambda: text)
    monkeypatch.setattr(kernel_lists, "_running_build_id", lambda: b"12345678")
    moved = 0x100_0000
    features = Features(build_ids=(BuildId("[kernel.kallsyms]", b"12345678", -1, 1),))
    kernel = mapped(0, -1, "[kernel.kallsyms]_text", addr=first, pgoff=first + moved)
    chains = [sample(3, 50, KERNEL, one + moved) for one in (work + 4, 0xFFFF_FFFF_C000_0004)]
    path = write(tmp_path / "perf.data", kernel, *chains, features=features)
    assert _lines(capsys, path) == [
        "[unknown];[kernel+0xffffffffc1000004]_[k] 1",
        "[unknown];do_work_[k] 1",
    ]
    path = write(tmp_path / "other.data", kernel, *chains)
    flame.run([str(path)])
    assert "functions of the kernel have no names in 1 file" in capsys.readouterr().err


def test_there_are_not_more_stacks_than_memory_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are counted together; a user without a home has no cache."""
    monkeypatch.setattr(profile, "_STACKS_MAX", 1)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    samples = [sample(at, 50, KERNEL, (1 << 64) - (at << 20)) for at in (1, 2, 3)]
    lines = _lines(capsys, write(tmp_path / "perf.data", *samples, *samples[:1]))
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == 4
    assert any(line.startswith("[unknown];[other stacks] ") for line in lines)
    assert len(lines) == 2


def test_windows_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With another time of the same file, with another file, and with stacks that were written."""
    clock = Features(clock_data=ClockData(1, UTC_NS, 1_000_000_000))
    one_s = 1_000_000_000
    records = [sample(one_s * at, 50, USER, 0x10) for at in (1, 2, 3, 9)]
    path = write(tmp_path / "perf.data", comm(0, 50, b"a"), *records, features=clock)

    def utc(seconds: int) -> str:
        return f"2025-11-24T16:00:{seconds - 1:02}Z"

    words = (path, "--since", utc(9), "--against", f"{utc(1)}..{utc(3)}")
    assert _lines(capsys, *words) == ["a;[unknown] 3 1"]
    stored = tmp_path / "before.folded"
    assert _lines(capsys, path, "-o", stored) == [f"wrote 4 samples to {stored}"]
    assert _lines(capsys, stored) == ["a;[unknown] 4"]
    assert _lines(capsys, path, "--against", stored) == ["a;[unknown] 4 4"]
    with pytest.raises(UsageError, match="no comparison"):
        flame.run([str(path), "--against", str(stored), "-o", str(tmp_path / "x.pprof")])
    with pytest.raises(UsageError, match="stand alone"):
        flame.run([str(stored), str(path)])
    with pytest.raises(SinkError):
        flame.run([str(tmp_path / "none.folded")])


def test_one_event_must_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their samples are no sum of anything; a file without samples of a profile has none."""
    first = write(tmp_path / "one.data", sample(1, 50, USER, 0x10), event="cycles")
    other = write(tmp_path / "two.data", sample(1, 50, USER, 0x10))
    with pytest.raises(UsageError, match="cpu-clock, cycles"):
        flame.run([str(first), str(other)])
    assert _lines(capsys, first, other, "-e", "cyc*") == ["[unknown];[unknown] 1"]
    assert _lines(capsys, first, other, "-e", "cycles,cpu-clock") == ["[unknown];[unknown] 2"]
    with pytest.raises(UsageError, match="nothing"):
        flame.run([str(first), "-e", "nothing"])
    events = bpf_segments.write(tmp_path, bpf_segments.chunk(bpf_segments.comm(1, 2, b"x")))
    with pytest.raises(UsageError, match="samples of a profile"):
        flame.run([str(events)])


def test_a_file_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is one written whose name does not say the form."""
    path = write(tmp_path / "perf.data", sample(1, 50, USER, 0x10))
    assert _lines(capsys, path, "-o", tmp_path / "a.svg") == [
        f"wrote 1 samples to {tmp_path}/a.svg"
    ]
    for name in ("a.svg", "a.png"):
        with pytest.raises(UsageError):
            flame.run([str(path), "-o", str(tmp_path / name)])
    assert not (tmp_path / "a.png").exists()
    with pytest.raises(SinkError, match="cannot write"):
        flame.run([str(path), "-o", str(tmp_path / "no/a.svg")])


def test_without_symbolic_files_have_no_names(
    tmp_path: Path, busy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Frames are places in files, and stderr says what to install; DuckDB must be there."""
    real = builtins.__import__
    missing = ["symbolic"]

    def without(name: str, *args: Any, **others: Any) -> Any:  # noqa: ANN401  # of __import__
        if name in missing:
            raise ImportError(name)
        return real(name, *args, **others)

    inner = offset_of(busy, "inner")
    path = write(tmp_path / "perf.data", _program(busy, 50, 2), sample(3, 50, USER, AT + inner))
    symbolic_names._symbolic.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(builtins, "__import__", without)
        assert flame.run([str(path)]) == 0
        told = capsys.readouterr()
        assert told.out == f"[unknown];[busy+{inner:#x}] 1\n"
        assert "collectord[symbols]" in told.err
        missing.append("duckdb")
        with pytest.raises(CollectordError, match=r"collectord\[query\]"):
            flame.run([str(path)])
    symbolic_names._symbolic.cache_clear()
    assert _lines(capsys, path) == ["[unknown];inner 1"]


def test_what_is_lost_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what is damaged changes the exit status."""
    path = write(tmp_path / "perf.data", sample(1, 50, USER, 0x10), b"\xff" * 64)
    assert flame.run([str(path)]) == 1
    told = capsys.readouterr()
    assert "1 damaged place was skipped" in told.err
    assert told.out == "[unknown];[unknown] 1\n"
    assert os.fspath(path) in told.err

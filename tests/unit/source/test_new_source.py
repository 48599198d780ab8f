# SPDX-License-Identifier: Apache-2.0
"""A source is added by the files that the manual names: a toy is, to a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from collectord._native import _core
from tests.support.daemons import manifest, running, sealed, wait_for, write_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.perf_tools import Perf

pytestmark = pytest.mark.slow

_ROOT: Final = Path(__file__).resolve().parents[3]
_TOY: Final = _ROOT / "tests" / "support" / "toy"
_ARCHITECTURE: Final = _ROOT / "docs" / "architecture.md"
_STORED: Final = 300
_LOST: Final = 7

_MODULES: Final = {
    "collectord/plan/toy_source.py": _TOY / "plan.py",
    "collectord/source/toy.py": _TOY / "source.py",
}
_KEYS: Final = '''
class ToySourceConfig(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="toy"):
    """Keys of the toy."""

    kind: ClassVar[Literal["toy"]] = "toy"
    records: int
    lost: int = 0
    when: When = "always"


'''
_LOSSES: Final = """
    "toy": (
        (Stage.KERNEL_RING, Reason.RING_FULL),
        (Stage.STAGING, Reason.QUARANTINED),
        (Stage.SINK, Reason.DISK_FULL),
        (Stage.SINK, Reason.DROPPED),
    ),
"""
_IMPORTS: Final = r"^from __future__ import annotations\n"
# For each file a pattern that it has once, and the text in its place: \g<0> is the old text.
_EDITS: Final = (
    (
        "collectord/config/schema_session.py",
        r"^SourceConfig = ",
        _KEYS + r"\g<0>ToySourceConfig | ",
    ),
    ("collectord/model.py", r"^LOSS_PAIRS\b.* = \{$", r"\g<0>" + _LOSSES),
    (
        "collectord/plan/session_draft.py",
        _IMPORTS,
        r"\g<0>from collectord.config.schema_session import ToySourceConfig" + "\n"
        "from collectord.plan import toy_source\n",
    ),
    (
        "collectord/plan/session_draft.py",
        r"^_PLANNERS\b.* = \{$",
        r"\g<0>" + "\n    ToySourceConfig: toy_source.draft,",
    ),
    ("collectord/source/__init__.py", _IMPORTS, r"\g<0>from collectord.source import toy" + "\n"),
    (
        "collectord/source/__init__.py",
        r"^SOURCES\b.* = \{$",
        r"\g<0>" + '\n    "toy": toy.open_session,',
    ),
)
_SESSION: Final = f"""
[[session]]
name = "play"

[[session.source]]
kind = "toy"
records = {_STORED}
lost = {_LOST}
"""
# -S leaves the editable installation out, which would be found before the copy.
_START: Final = """
import sys
sys.path[:0] = sys.argv[1:3]
del sys.argv[1:3]
from collectord.__main__ import main
sys.exit(main())
"""


def _named() -> set[str]:
    """Return the files and folders that the manual names for a new source."""
    text = _ARCHITECTURE.read_text()
    _, _, section = text.partition("\n### A new source\n")
    section, _, _ = section.partition("\n### ")
    return set(re.findall(r"`((?:collectord|config|docs)/[^`]*)`", section))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package that has the toy."""
    folder = tmp_path / "copy"
    ignored = shutil.ignore_patterns("__pycache__", "*.c", "*.h")
    shutil.copytree(_ROOT / "collectord", folder / "collectord", ignore=ignored)
    for library in Path(_core.__file__).parent.glob("*.so"):
        shutil.copy(library, folder / "collectord" / "_native")
    for path, pattern, text in _EDITS:
        file = folder / path
        edited, count = re.subn(pattern, text, file.read_text(), flags=re.MULTILINE)
        assert count == 1, f"{path} has no {pattern}"
        file.write_text(edited)
    for path, source in _MODULES.items():
        module = source.read_text().replace("tests.support.toy.plan", "collectord.plan.toy_source")
        (folder / path).write_text(module)
    return folder


@pytest.fixture
def start_copy(tmp_path: Path, package: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `collectord WORDS...` of the copy; it is killed with the test."""
    processes = []
    site = Path(pytest.__file__).parents[1]

    def start(
        *words: str | Path, env: dict[str, str], prefix: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*prefix, sys.executable, "-S", "-c", _START, package, site, *words],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1", **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_the_manual_names_its_files() -> None:
    """Each file that the toy adds or edits is named, or lies in a folder that is."""
    touched = {*_MODULES, *(path for path, _, _ in _EDITS)}
    named = _named()
    folders = tuple(one for one in named if one.endswith("/"))
    assert [path for path in touched if path not in named and not path.startswith(folders)] == []


@pytest.mark.usefixtures("tracefs_of_root")
def test_it_records_and_its_ledger_balances(
    start_copy: Callable[..., subprocess.Popen[str]], perf: Perf, tmp_path: Path
) -> None:
    """Ledger, metrics, status, manifest and stock perf take the toy's ring as any other."""
    config = write_sessions(tmp_path, _SESSION)
    with running(start_copy, config) as daemon:
        wait_for(lambda: daemon.session("play")["stored"] == _STORED, "the toy's records")
        labels = 'session="play",source="toy"'
        assert daemon.metric(f"collectord_stored_records_total{{{labels}}}") == _STORED
        ended = daemon.stop()
    assert ended.status == 0
    assert ended.complaints() == []
    (segment,) = sealed(tmp_path / "state")
    ledger = manifest(segment)["ledger"]
    assert ledger["basis"] == "exact"
    assert ledger["produced"] == _STORED + _LOST
    assert (ledger["stored"], ledger["unaccounted"]) == (_STORED, 0)
    assert {name: n for name, n in ledger["lost"].items() if n} == {"kernel_ring/ring_full": _LOST}
    assert len(perf.script(segment)) == _STORED

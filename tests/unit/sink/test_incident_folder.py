# SPDX-License-Identifier: Apache-2.0
"""The folder of incidents: what is in it, how it stays within limits, and what is not followed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest

from collectord.errors import SinkError, UnsafePath, UsageError
from collectord.folders.folder import opened
from collectord.plan.sink_plan import RetentionPlan
from collectord.sink.eviction import evict
from collectord.sink.incident_folder import LAST, SUMMARY, IncidentFolder
from tests.support.commands import incident_note
from tests.support.segments import make_sink, write_segment

if TYPE_CHECKING:
    from pathlib import Path

SECOND = 10**9
FIRED = 1_767_323_045 * SECOND
NAME = "20260102T030405Z-io"


def make(folder: IncidentFolder, fired_ns: int = FIRED, *, bytes_kept: int = 0) -> str:
    """Make a finished incident."""
    name = folder.begin(fired_ns, "io")
    if bytes_kept:
        with opened(folder.create(name, "answers/x.txt")) as fd:
            os.write(fd, b"x" * bytes_kept)
    folder.put(msgspec.structs.replace(incident_note(name=name), fired_ns=fired_ns))
    return name


def test_names(tmp_path: Path) -> None:
    """A name has time and trigger; a second incident of the second has a number."""
    folder = IncidentFolder(tmp_path)
    assert folder.kept() == []
    names = [make(folder), make(folder), make(folder, FIRED + SECOND)]
    assert names == [NAME, f"{NAME}.2", "20260102T030406Z-io"]
    assert [one.id for one in folder.kept()] == names
    assert oct((tmp_path / "incidents" / NAME).stat().st_mode)[-3:] == "750"
    assert folder.find(LAST).id == names[-1]
    assert folder.find(NAME).id == NAME


@pytest.mark.parametrize("name", ["absent", "..", "../x", "", NAME + "/"])
def test_no_incident_of_that_name(name: str, tmp_path: Path) -> None:
    """A name is compared with those that there are: no path leads anywhere."""
    folder = IncidentFolder(tmp_path)
    with pytest.raises(UsageError, match="there is no incident in"):
        folder.find(LAST)
    make(folder)
    with pytest.raises(UsageError, match="no incident"):
        folder.find(name)


def test_a_snapshot_has_two_names(tmp_path: Path) -> None:
    """The incident has segment and manifest, also once retention has deleted the session's."""
    info = write_segment(make_sink(tmp_path / "exec"), samples=250)
    folder = IncidentFolder(tmp_path)
    name = folder.begin(FIRED, "io")
    linked = folder.link(name, "exec", [str(info.path)])
    assert linked.problems == ()
    assert linked.files == (f"exec/{info.path.name}", f"exec/{info.path.name}.json")
    own = folder.path / name / linked.files[0]
    assert own.samefile(info.path)
    data = own.read_bytes()
    assert evict(tmp_path, RetentionPlan(age_ns=1), 1 << 62)
    assert not info.path.exists()
    assert own.read_bytes() == data


def test_a_segment_that_is_gone(tmp_path: Path) -> None:
    """The incident says what it lacks, and has the rest."""
    folder = IncidentFolder(tmp_path)
    name = folder.begin(FIRED, "io")
    linked = folder.link(name, "exec", [str(tmp_path / "exec/1.perf.data")])
    assert linked.files == ()
    assert "1.perf.data" in linked.problems[0]


def test_the_oldest_go(tmp_path: Path) -> None:
    """By number, space and age; the newest stays whatever the limits say."""
    folder = IncidentFolder(tmp_path)
    names = [make(folder, FIRED + n * SECOND, bytes_kept=100_000) for n in range(6)]
    now_ns = FIRED + 100 * SECOND
    assert folder.evict(keep=5, most_bytes=0, age_ns=0, now_ns=now_ns)[0] == names[:1]
    size = folder.kept()[0].bytes
    assert size >= 100_000
    assert folder.evict(keep=9, most_bytes=4 * size, age_ns=0, now_ns=now_ns)[0] == names[1:2]
    assert folder.evict(keep=9, most_bytes=0, age_ns=97 * SECOND, now_ns=now_ns)[0] == names[2:3]
    assert folder.evict(keep=9, most_bytes=0, age_ns=0, now_ns=now_ns, short=True)[0] == names[3:4]
    assert folder.evict(keep=1, most_bytes=1, age_ns=1, now_ns=now_ns)[0] == names[4:5]
    assert folder.evict(keep=1, most_bytes=1, age_ns=1, now_ns=now_ns, short=True)[0] == []
    assert [one.id for one in folder.kept()] == names[5:]


def test_an_unfinished_incident(tmp_path: Path) -> None:
    """One that a killed daemon has left is listed, is never the last, and goes in its turn."""
    folder = IncidentFolder(tmp_path)
    left = folder.begin(FIRED, "io")
    with pytest.raises(UsageError, match="there is no incident in"):
        folder.find(LAST)
    assert folder.find(left).note is None
    whole = make(folder, FIRED + SECOND)
    (folder.path / left / "incident.json").write_bytes(b'{"id": 7')
    assert folder.find(left).note is None
    assert folder.evict(keep=1, most_bytes=0, age_ns=0, now_ns=FIRED)[0] == [left]
    assert [one.id for one in folder.kept()] == [whole]


def test_links_are_not_followed(tmp_path: Path) -> None:
    """Neither to write an answer, nor to delete an incident."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "secret").write_text("not yours")
    folder = IncidentFolder(tmp_path)
    name = make(folder)
    make(folder, FIRED + SECOND)
    (folder.path / name / "answers").symlink_to(victim)
    with pytest.raises(SinkError):
        folder.create(name, "answers/secret")
    (folder.path / name / SUMMARY).symlink_to(victim / "secret")
    with pytest.raises(UnsafePath):
        folder.create(name, SUMMARY)
    assert folder.evict(keep=1, most_bytes=0, age_ns=0, now_ns=FIRED)[0] == [name]
    assert (victim / "secret").read_text() == "not yours"


def test_what_others_put_there_is_left(tmp_path: Path) -> None:
    """Only folders with the name of an incident are incidents."""
    folder = IncidentFolder(tmp_path)
    make(folder)
    (folder.path / "mine").mkdir()
    (folder.path / "20260102T030405Z-..").mkdir()
    assert [one.id for one in folder.kept()] == [NAME]


def test_counts(tmp_path: Path) -> None:
    """The last ones are read, and none at first."""
    folder = IncidentFolder(tmp_path)
    assert folder.read_counts() == b""
    folder.put_counts(b"1")
    folder.put_counts(b"2")
    assert folder.read_counts() == b"2"
    assert folder.kept() == []

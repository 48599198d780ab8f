# SPDX-License-Identifier: Apache-2.0
"""pip builds the guest's layers in a chroot: what its settings name is carried there."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from tests.vm import layers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

pytestmark = pytest.mark.slow

SCRIPT: Final = layers.ROOT / "tests/vm/pip.sh"
# The tools of this machine stand in the chroot; mounts end with the namespace.
CARRY: Final = """\
set -euo pipefail
. "$1"
root=$2 work=$3
shift 3
mkdir -p "$root/usr" "$root/etc/full" "$work"
: >"$root/etc/full/kept"
for name in bin lib lib64; do ln -sfn "usr/$name" "$root/$name"; done
mount --rbind /usr "$root/usr"
carry_pip "$root" "$work" >&2
printf '%s\\n' "${#pip[@]}" "${pip[@]}"
for path; do
    echo "$path: $(chroot "$root" cat -- "$path" 2>/dev/null || echo missing)"
done
"""


@dataclass(frozen=True, slots=True)
class Carried:
    """Pip's settings in the chroot: its environment, and the requested files' text."""

    settings: dict[str, str]
    files: dict[str, str]
    told: str


@pytest.fixture
def carry(tmp_path: Path) -> Callable[..., Carried]:
    """Carry the settings of a pip.conf and of the environment into a chroot."""

    def run(configured: str, asked: Sequence[object], **environment: str) -> Carried:
        config = tmp_path / "pip.conf"
        config.write_text(configured)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        apart = ["unshare", "--mount", "--propagation", "private"]
        if os.geteuid() != 0:
            apart.append("--map-root-user")
        words = (SCRIPT, tmp_path / "root", tmp_path / "work", *asked)
        done = subprocess.run(
            [*apart, "bash", "-c", CARRY, "bash", *map(str, words)],
            env={
                **kept,
                **environment,
                "HOME": str(tmp_path),
                "PYTHON": sys.executable,
                "PIP_CONFIG_FILE": str(config),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        count, *lines = done.stdout.splitlines()
        settings = dict(line.split("=", 1) for line in lines[: int(count)])
        files = dict(line.split(": ", 1) for line in lines[int(count) :])
        return Carried(settings, files, done.stderr)

    return run


def _file(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or f"of {path.name}")
    return path


def test_lists_are_carried_with_what_they_include(
    carry: Callable[..., Carried], tmp_path: Path
) -> None:
    """Constraints and requirements, and the files that these name beside themselves."""
    lists = tmp_path / "lists"
    constraint = _file(lists / "constraint.txt", "-c more/other.txt")
    other = _file(lists / "more/other.txt", "--requirement  last.txt")
    last = _file(lists / "more/last.txt")
    wanted = _file(lists / "wanted.txt")
    asked = (constraint, other, last, wanted)
    carried = carry(
        f"[global]\nconstraint =\n    {constraint}\n    https://example.org/c.txt\n"
        "[install]\nrequirement = lists/wanted.txt\n",
        asked,
    )
    assert carried.settings["PIP_CONSTRAINT"] == f"{constraint} https://example.org/c.txt"
    assert carried.settings["PIP_REQUIREMENT"] == str(wanted)
    assert carried.files == {str(path): path.read_text() for path in asked}


def test_certificates_are_carried(carry: Callable[..., Carried], tmp_path: Path) -> None:
    """Names with spaces and quotes too."""
    cert = _file(tmp_path / 'its own\'s folder/the "cert".pem')
    client = _file(tmp_path / "client.pem")
    carried = carry(f"[global]\ncert = {cert}\n", (cert, client), PIP_CLIENT_CERT=str(client))
    assert carried.settings["PIP_CERT"] == str(cert)
    assert carried.settings["PIP_CLIENT_CERT"] == str(client)
    assert carried.files == {str(cert): cert.read_text(), str(client): client.read_text()}


def test_packages_of_this_machine_are_carried(
    carry: Callable[..., Carried], tmp_path: Path
) -> None:
    """An index with what lies beside it, folders and single files with packages."""
    page = _file(tmp_path / "an index/simple/name/index.html")
    wheel = _file(tmp_path / "an index/files/name.whl")
    linked = _file(tmp_path / "links/linked.whl")
    listed = _file(tmp_path / "listed/page.html")
    asked = (page, wheel, linked, listed)
    index = f"file://{tmp_path}/an%20index/simple"
    carried = carry(f"[global]\nindex-url = {index}\nfind-links = links file://{listed}\n", asked)
    assert carried.settings["PIP_INDEX_URL"] == index
    assert carried.settings["PIP_FIND_LINKS"] == f"{linked.parent} file://{listed}"
    assert carried.files == {str(path): path.read_text() for path in asked}


def test_a_missing_file_is_left_out_and_said(
    carry: Callable[..., Carried], tmp_path: Path
) -> None:
    """The rest of its setting stays."""
    there = _file(tmp_path / "there/name.whl")
    gone = tmp_path / "gone"
    carried = carry(
        f"[global]\ncert = {gone}/no cert.pem\nfind-links = {gone} {there.parent}\n"
        f"constraint = {gone}/constraint.txt\nextra-index-url = file://{gone}/simple\n",
        (there,),
    )
    assert not {"PIP_CERT", "PIP_CONSTRAINT", "PIP_EXTRA_INDEX_URL"} & set(carried.settings)
    assert carried.settings["PIP_FIND_LINKS"] == str(there.parent)
    for option, word in (
        ("cert", f"{gone}/no cert.pem"),
        ("find-links", gone),
        ("constraint", f"{gone}/constraint.txt"),
        ("extra-index-url", f"file://{gone}/simple"),
    ):
        assert f"vm: pip's {option} {word} is left out: there is no {gone}" in carried.told


def test_the_environment_overrides_files(carry: Callable[..., Carried], tmp_path: Path) -> None:
    """And places that pip writes to, other commands' settings, and the file itself stay here."""
    first, second = _file(tmp_path / "first.txt"), _file(tmp_path / "second.txt")
    carried = carry(
        f"[global]\nconstraint = {first}\nlog = {tmp_path}/log\ntimeout = 7\n"
        "[install]\ntimeout = 8\n[download]\ndest = elsewhere\n",
        (first, second),
        PIP_CONSTRAINT=str(second),
        PIP_CACHE_DIR=str(tmp_path),
    )
    assert carried.settings["PIP_CONSTRAINT"] == str(second)
    assert carried.settings["PIP_TIMEOUT"] == "8"
    assert not {"PIP_LOG", "PIP_CACHE_DIR", "PIP_CONFIG_FILE", "PIP_DEST"} & set(carried.settings)
    assert carried.files == {str(first): "missing", str(second): second.read_text()}


def test_nothing_of_the_chroot_is_hidden(carry: Callable[..., Carried], tmp_path: Path) -> None:
    """A folder that stands in both keeps what is in the chroot's, and gets what it lacks."""
    links = _file(tmp_path / "links/name.whl")
    kept = _file(tmp_path / "root" / str(links.parent).lstrip("/") / "kept.whl")
    carried = carry(
        f"[global]\nfind-links = {links.parent}\n",
        (links, links.with_name(kept.name)),
    )
    assert carried.files == {
        str(links): links.read_text(),
        str(links.with_name(kept.name)): kept.read_text(),
    }

# SPDX-License-Identifier: Apache-2.0
"""Segments and manifests with any damage: nothing dies, hangs, grows, or touches what is sealed.

COLLECTORD_DAMAGED sets the number of cases, COLLECTORD_DAMAGE_SEED which ones: without it the
commit does, so that a commit's run can be had again. One case alone: `python -m
tests.support.damage SEED NUMBER`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.damage import make_templates
from tests.support.examples import examples

CASES: Final = int(os.environ.get("COLLECTORD_DAMAGED", examples(4_000)))
WORKERS: Final = min(len(os.sched_getaffinity(0)), 8)
ROOT: Final = Path(__file__).resolve().parents[3]
TOLD_MAX: Final = 5


def _seed() -> int:
    words = ("git", "-c", "safe.directory=*", "rev-parse", "--short=7", "HEAD")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    commit = int(done.stdout[:7], 16) if done.returncode == 0 else 1
    return int(os.environ.get("COLLECTORD_DAMAGE_SEED", commit))


@pytest.mark.timeout(1800)
def test_damage(tmp_path: Path) -> None:
    """Each file fails alone; limits of time and memory hold for each case."""
    seed = _seed()
    print(f"COLLECTORD_DAMAGE_SEED={seed}")  # noqa: T201  # pytest shows it of a failure
    templates = tmp_path / "templates"
    make_templates(templates)
    workers = []
    for first in range(WORKERS):
        words = [templates, seed, first, WORKERS, CASES]
        with (
            (tmp_path / f"{first}.out").open("w") as out,
            (tmp_path / f"{first}.err").open("w") as err,
        ):
            command = [sys.executable, "-m", "tests.support.damage", *map(str, words)]
            workers.append(subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT))
    try:
        statuses = [worker.wait() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    lines = [line for path in tmp_path.glob("*.out") for line in path.read_text().splitlines()]
    failures = [json.loads(line) for line in lines]
    told = "\n".join(f"{one['case']}: {one['told']}\n{one['what']}" for one in failures[:TOLD_MAX])
    assert not failures, f"seed {seed}, {len(failures)} cases\n{told}"
    for number, status in enumerate(statuses):
        last = (tmp_path / f"{number}.err").read_text(errors="replace").splitlines()[-60:]
        assert status == 0, f"seed {seed}, a worker died in its last case\n" + "\n".join(last)
        assert last[-1].startswith("done "), last

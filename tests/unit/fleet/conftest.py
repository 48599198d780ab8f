# SPDX-License-Identifier: Apache-2.0
"""Fixtures that tests of the fleet share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import object_stores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.object_stores import S3Server


@pytest.fixture(scope="session", autouse=True)
def _runtime() -> None:
    object_stores.start_runtime()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Run an S3 server for all tests of a process."""
    yield from object_stores.serve()

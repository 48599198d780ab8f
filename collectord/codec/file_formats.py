# SPDX-License-Identifier: Apache-2.0
"""Names of the formats of files, with which their own names end."""

from __future__ import annotations

from typing import Final

PERF_DATA: Final = "perf.data"
TRACE_DAT: Final = "trace.dat"
# Formats of sets of files, one for each CPU: its number follows.
BLKTRACE: Final = "blktrace"
RELAY: Final = "relay"

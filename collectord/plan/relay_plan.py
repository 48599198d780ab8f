# SPDX-License-Identifier: Apache-2.0
"""The plan of a relay source: the trace to set up or the channel to read, printable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from collectord.codec.blktrace import ALL_ACTIONS, action_names
from collectord.plan.session_plan import Payload
from collectord.text.foreign import plain
from collectord.text.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class RelayPlan(Payload):
    """One device to trace, or one channel to read.

    Attributes:
        device: path of the block device, "" for a channel.
        channel: path of the channel without the CPU's number, or of its only file.
        actions: mask of the actions that blktrace records, 0 for a channel.
        start_lba, end_lba: sectors of the device; 0 and 0 for all.
        pid: process whose requests are traced, 0 for all.
        subbuf_bytes, subbufs: size and number of each CPU's sub-buffers; for a channel as its
            client made them, 0 where unknown.
    """

    device: str = ""
    channel: str = ""
    actions: int = 0
    start_lba: int = 0
    end_lba: int = 0
    pid: int = 0
    subbuf_bytes: int = 0
    subbufs: int = 0

    fails_alone: ClassVar[bool] = True
    leaves_with_cpu: ClassVar[bool] = False

    @property
    def watches_cpus(self) -> bool:
        """See `Payload`: a channel has the files that its client made."""
        return self.is_blktrace

    @property
    def is_blktrace(self) -> bool:
        """Whether its records are known, and counted; otherwise there are only bytes."""
        return bool(self.device)

    @property
    def name(self) -> str:
        """The device, or the channel."""
        return self.device or self.channel

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one CPU's buffer, 0 where unknown."""
        return self.subbuf_bytes * self.subbufs

    def describe(self) -> Iterator[str]:
        """Yield the lines that `check` prints."""
        if not self.is_blktrace:
            yield f"channel {self.channel}, bytes as its client wrote them"
            return
        words = "all" if self.actions == ALL_ACTIONS else ",".join(action_names(self.actions))
        limits = f", sectors {self.start_lba} to {self.end_lba}" if self.end_lba else ""
        limits += f", pid {self.pid}" if self.pid else ""
        yield f"blktrace {self.device}, actions {words}{limits}"
        yield f"buffers {self.subbufs} x {show_bytes(self.subbuf_bytes)} a CPU"

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for `check --json`."""
        return {"relay": {**plain(self), "actions": list(action_names(self.actions))}}

# SPDX-License-Identifier: Apache-2.0
"""The choice of the transport of an ftrace ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectord.errors import MissingFeature
from collectord.facts.kernel_facts import FtraceFacts
from collectord.model import Transport
from collectord.plan.transport import DEFAULT_NS, choose

if TYPE_CHECKING:
    from collectord.config.schema_session import TransportName

COSTS = {"read": 10.0, "mmap": 20.0, "splice": 30.0}


@pytest.mark.parametrize(
    ("facts", "chosen"),
    [
        (FtraceFacts(transport_ns=COSTS), Transport.READ),
        (FtraceFacts(transport_ns=COSTS | {"mmap": 9.0}), Transport.MMAP),
        (FtraceFacts(transport_ns=COSTS | {"splice": 9.0}), Transport.SPLICE),
        (FtraceFacts(transport_ns=COSTS | {"mmap": 10.0, "splice": 10.0}), Transport.READ),
        (FtraceFacts(transport_ns=COSTS | {"mmap": 9.0}, mmap=False), Transport.READ),
        (FtraceFacts(transport_ns=COSTS | {"splice": 9.0}, splice=False), Transport.READ),
        (FtraceFacts(transport_ns={"read": 9.0}, mmap=False, splice=False), Transport.READ),
        (FtraceFacts(transport_ns={"read": 9.0, "splice": 1.0}, mmap=False), Transport.SPLICE),
    ],
)
def test_auto_takes_the_cheapest_that_the_kernel_has(
    facts: FtraceFacts, chosen: Transport
) -> None:
    """The choice follows the measured costs, and what cannot be had is not chosen."""
    choice = choose(facts, "auto")
    assert choice.transport is chosen
    assert "(measured)" in choice.reason


def test_the_reason_has_the_figures_and_what_is_missing() -> None:
    """The plan's line says what each transport costs and why others were left out."""
    facts = FtraceFacts(transport_ns={"read": 12.4, "splice": 31.0}, mmap=False)
    assert choose(facts, "auto").reason == (
        "cheapest, ns an event: read 12, splice 31 (measured); no mmap in this kernel"
    )


def test_without_measurement_a_table_decides() -> None:
    """Costs that were measured for some transports only are no comparison."""
    cheapest = min(DEFAULT_NS, key=lambda transport: DEFAULT_NS[transport])
    for costs in ({}, {"mmap": 0.1}):
        choice = choose(FtraceFacts(transport_ns=costs), "auto")
        assert choice.transport is cheapest
        assert "not measured on this host" in choice.reason


def test_rings_that_change_their_size_are_not_mapped() -> None:
    """The kernel refuses to resize a mapped ring, so a flight recorder's is not, unless asked."""
    facts = FtraceFacts(transport_ns=COSTS | {"mmap": 1.0})
    assert choose(facts, "auto").transport is Transport.MMAP
    choice = choose(facts, "auto", resized=True)
    assert choice.transport is Transport.READ
    assert "mapped rings cannot be resized" in choice.reason
    assert choose(facts, "mmap", resized=True).transport is Transport.MMAP


@pytest.mark.parametrize("wanted", ["read", "mmap", "splice"])
def test_what_is_asked_for_is_taken(wanted: TransportName) -> None:
    """A requested transport is taken whatever it costs."""
    facts = FtraceFacts(transport_ns=COSTS | {wanted: 1000.0})
    choice = choose(facts, wanted)
    assert (choice.transport, choice.reason) == (Transport(wanted), "as configured")


@pytest.mark.parametrize(
    ("wanted", "facts", "hint"),
    [
        ("mmap", FtraceFacts(mmap=False), "Linux 6.10"),
        ("splice", FtraceFacts(splice=False), "trace_pipe_raw"),
    ],
)
def test_what_the_kernel_lacks_is_an_error(
    wanted: TransportName, facts: FtraceFacts, hint: str
) -> None:
    """Asked for by name it is missing, not replaced; the hint says what works."""
    with pytest.raises(MissingFeature, match=f"transport {wanted}") as caught:
        choose(facts, wanted)
    assert hint in caught.value.hint
    assert '"read" work everywhere' in caught.value.hint

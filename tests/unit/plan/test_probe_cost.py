# SPDX-License-Identifier: Apache-2.0
"""A plan's estimate of the cost of recording to the traced threads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import pytest

from collectord.codec.tracepoint import Tracepoint
from collectord.config.schema import Config
from collectord.config.schema_session import RelaySourceConfig, SessionConfig, SourceConfig
from collectord.facts.kernel_facts import RelayFacts
from collectord.plan.build import build
from tests.support.configs import perf_source, tracefs_source
from tests.support.hosts import host

if TYPE_CHECKING:
    from collectord.plan.session_plan import SessionPlan

COSTS: Final = Path(__file__).parents[3] / "docs/ftrace.md"
Mode = Literal["stream", "flight-recorder"]
CHANNEL = "/debug/dir/chan"
DISK = RelaySourceConfig(device=("/dev/vda",))
CALL = "raw_syscalls:sys_enter"
SWITCH = "sched:sched_switch"


def planned(source: SourceConfig, mode: Mode = "stream") -> SessionPlan:
    """Return the only session of a plan, of a host where a switch names another task."""
    session = SessionConfig(name="s", source=(source,), mode=mode)
    relay = RelayFacts(
        debugfs="/debug", blktrace=True, devices=("/dev/vda",), channels={CHANNEL: (0,)}
    )
    facts = host(task_tracepoints=frozenset({Tracepoint.parse(SWITCH)}), relay=relay)
    (found,) = build(Config(session=(session,)), facts).sessions
    return found


@pytest.mark.parametrize(
    ("source", "mode", "options"),
    [
        (tracefs_source(CALL), "stream", {"filter"}),
        (tracefs_source(CALL), "flight-recorder", set()),
        (tracefs_source(CALL, include_self=True), "stream", set()),
        (tracefs_source(SWITCH), "stream", set()),
        (tracefs_source(SWITCH, filter="prev_pid > 1"), "stream", {"filter"}),
        (perf_source(CALL), "stream", {"filter"}),
        (perf_source(SWITCH), "stream", set()),
        (perf_source("cs", call_graph="fp"), "stream", {"call chain"}),
        (perf_source("cs", call_graph="dwarf"), "stream", {"call chain"}),
        (DISK, "stream", set()),
    ],
)
def test_options_cost_beside_the_record(
    source: SourceConfig, mode: Mode, options: set[str]
) -> None:
    """The costs of filters and call chains are listed separately and added up."""
    cost = planned(source, mode).to_dict()["imposed"]
    assert set(cost["parts"]) == {"record", *options}
    assert cost["event_ns"] == sum(cost["parts"].values())
    (line,) = [line for line in planned(source, mode).describe() if line.startswith("  cost")]
    assert f"some {cost['event_ns']} ns" in line


def test_ftrace_is_the_cheaper_way_to_record_a_tracepoint() -> None:
    """The measured cost of each decides."""
    costs = [
        planned(source).to_dict()["imposed"]["event_ns"]
        for source in (tracefs_source(CALL), perf_source(CALL))
    ]
    assert costs == sorted(costs)


def test_the_manual_has_these_figures() -> None:
    """docs/ftrace.md tells what `check` is to expect."""
    chain = perf_source("cs", call_graph="fp")
    sources = (tracefs_source(CALL), perf_source(CALL), chain, DISK)
    ftrace, perf, chained, block = (
        planned(source).to_dict()["imposed"]["parts"] for source in sources
    )
    text = COSTS.read_text()
    assert f"| An ftrace event | {ftrace['record']} ns |" in text
    assert f"| An event of blktrace | {block['record']} ns |" in text
    assert f"| A perf sample | {perf['record']} ns |" in text
    assert f"| A call chain, in addition to the sample | {chained['call chain']} ns |" in text


def test_the_cost_of_a_channel_is_its_clients() -> None:
    """The plan does not guess it."""
    plan = planned(RelaySourceConfig(path=(CHANNEL,)))
    assert plan.to_dict()["imposed"] is None
    assert not [line for line in plan.describe() if line.startswith("  cost")]

# SPDX-License-Identifier: Apache-2.0
"""Records of each event that a shipped answer reads, as SELECTs for `tests.support.fleets`.

Their columns have the types that segments have. No two records of a thread, a CPU or a place are
of one instant, and no two of a group are alike in what an answer chooses by, so each answer has
one result. Fields that no answer reads are left out.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from collectord.codec.syscall_names import syscall_names
from tests.support.fleets import COMPLETE, ISSUE, SCHED, requests, switched_after, switches

if TYPE_CHECKING:
    from collections.abc import Mapping

# The software events whose samples `samples` has, under an alias and with a modifier too.
SAMPLED: Final = ("faults:u", "minor-faults", "major-faults")
_SWITCHES: Final = 300
_REQUESTS: Final = 40
_CALLS: Final = {name: number for number, name in syscall_names(os.uname().machine).items()}
_OPENAT: Final = _CALLS["openat"]
_GETPPID: Final = _CALLS["getppid"]
_TASK: Final = (
    "({cpu})::INTEGER AS cpu, ({pid})::INTEGER AS pid, ({tid})::INTEGER AS tid, {comm} AS comm"
)
# Addresses of the kernel are no signed numbers of 64 bits.
_KERNEL: Final = "18446612682070000000::UBIGINT"


def of_all_answers(number: int) -> Mapping[str, str]:
    """Return SELECTs of records by SYSTEM:NAME; those of different numbers differ."""
    return {
        f"sched:{SCHED}": switches(number, _SWITCHES),
        **_wakeups(number),
        **_chains(number),
        **_processes(number),
        **_block(number),
        **_interrupts(number),
        **_memory(number),
        **_calls(number),
        **_connections(number),
        "samples": _samples(number),
    }


def _select(columns: str, count: int, after: str, where: str = "true") -> str:
    return f"SELECT i AS n, {columns}, {after} AS after FROM range({count}) r(i) WHERE {where}"  # noqa: S608


def _task(cpu: str = "i % 2", pid: str = "NULL", tid: str = "900", comm: str = "'task'") -> str:
    """Return the columns of the task that a record is of, as expressions of `i`."""
    return _TASK.format(cpu=cpu, pid=pid, tid=tid, comm=comm)


def _wakeups(number: int) -> dict[str, str]:
    """Return wakeups of the task that sleeps, by the one that runs, and one that runs never."""
    waker = _task(
        "0",
        "NULL",
        f"CASE WHEN i % 2 = 0 THEN 200 ELSE 100 END + {number}",
        "CASE WHEN i % 2 = 0 THEN 'odd' ELSE 'even' END",
    )
    woken = (
        f"(CASE WHEN i % 2 = 0 THEN 100 ELSE 200 END + {number})::INTEGER AS event_pid, "
        "CASE WHEN i % 2 = 0 THEN 'even' ELSE 'odd' END AS event_comm, 0::INTEGER AS target_cpu"
    )
    after = f"i * 1000000 + 500000 + (i * i * (613 + {number})) % 99991"
    never = (
        f"{300 + number}::INTEGER AS event_pid, 'never' AS event_comm, 0::INTEGER AS target_cpu"
    )
    asleep = "i % 3 != 0"
    return {
        "sched:sched_waking": _select(f"{waker}, {woken}", _SWITCHES, f"{after} - 700", asleep),
        "sched:sched_wakeup": _select(f"{waker}, {woken}", _SWITCHES, after, asleep),
        "sched:sched_wakeup_new": _select(f"{waker}, {never}", 1, f"{number} * 1000 + 10000000"),
    }


def _chains(number: int) -> dict[str, str]:
    """Return the call chains of most switches, of two functions each."""
    event = f"'sched:{SCHED}' AS event"
    stack = "(18446744073709551000 + i % 3)::UBIGINT AS stack_id"
    frames = (
        f"SELECT 2 * i + p AS n, 0::INTEGER AS cpu, {event}, p::UINTEGER AS position, {stack}, "  # noqa: S608
        f"'f' || p AS \"function\", {switched_after(number)} AS after "
        f"FROM range({_SWITCHES}) r(i), range(2) s(p) WHERE i % 7 != 0"
    )
    text = "['main;read', 'main;write', 'main;it''s \\ \"x\"'][i + 1]"
    return {
        "frames": frames,
        "stacks": _select(f"{event}, {stack}, 9::BIGINT AS count, {text} AS stack", 3, "i"),
    }


def _processes(number: int) -> dict[str, str]:
    """Return lives of twenty process numbers that come again, ten a second."""
    pid = f"(5000 + {number} + i % 20)"
    step = 100_000_000
    ended = f"i * {step} + 700000 + (i * 7919 + {number} * 31) % 100000"
    parent = "CASE WHEN i % 4 = 0 THEN 'make' ELSE 'sh' END AS parent_comm"
    program = "['/bin/true', '/usr/bin/cc', '/bin/ls'][1 + i % 3]"
    forks = f"{parent}, (1 + i % 3)::INTEGER AS parent_pid, {pid}::INTEGER AS child_pid"
    # Each seventh is executed by a thread that is not the first.
    old = f"({pid} + CASE WHEN i % 7 = 6 THEN 1 ELSE 0 END)::INTEGER AS old_pid"
    execs = f"{pid}::INTEGER AS event_pid, {old}, {program} AS filename"
    snooped = (
        f"{pid}::UINTEGER AS event_pid, 'snooped' AS event_comm, 1::UINTEGER AS parent, "
        f"({ended} - i * {step})::UBIGINT AS lifetime_ns, (i % 3)::UINTEGER AS code, "
        "CASE WHEN i % 5 = 0 THEN 9 ELSE 0 END::UINTEGER AS signal"
    )
    told = {
        "sched:sched_process_fork": (forks, f"i * {step}", "i % 5 != 4"),
        "sched:sched_process_exec": (execs, f"i * {step} + 200000", "i % 11 != 3"),
        "sched:sched_process_exit": (f"{pid}::INTEGER AS event_pid", ended, "i % 6 != 5"),
        "bpf:exitsnoop": (snooped, f"{ended} + 1000", "i % 2 = 0"),
    }
    return {
        event: _select(f"{_task()}, {columns}", 60, after, where)
        for event, (columns, after, where) in told.items()
    }


def _block(number: int) -> dict[str, str]:
    """Return block requests, half of which wait in a queue, and others that a program tells."""
    place = "(8388608 + i % 2)::UINTEGER AS dev, (i * 64)::UBIGINT AS sector"
    rwbs = "CASE WHEN i % 4 = 0 THEN 'W' ELSE 'R' END AS rwbs"
    queued = f"{place}, {rwbs}, 'queued' AS event_comm, 4096::UINTEGER AS bytes"
    took = f"(50000 + (i * 6007 + {number} * 113) % 3000000)::UBIGINT"
    snooped = (
        f"'snooped' AS event_comm, {800 + number}::UINTEGER AS event_tid, "
        f"271581185::UINTEGER AS dev, {rwbs}, (512 * i)::UINTEGER AS bytes, "
        f"(i * 1003)::UBIGINT AS queue_ns, {took} AS latency_ns"
    )
    tid = f"{700 + number}"
    return {
        "block:block_rq_insert": _select(
            f"{_task(tid=tid)}, {queued}",
            _REQUESTS,
            f"i * 10000000 - 50000 - i * 977 - {number}",
            "i % 2 = 1",
        ),
        f"block:{ISSUE}": requests(number, _REQUESTS, step=1),
        f"block:{COMPLETE}": requests(number, _REQUESTS, step=2),
        "bpf:biosnoop": _select(f"{_task()}, {snooped}", _REQUESTS, f"i * 10000000 + {number}"),
    }


def _interrupts(number: int) -> dict[str, str]:
    """Return softirqs, one of which has no name, and interrupts within their time."""
    vec = "((i // 2) % 11)::UINTEGER AS vec"
    irq = "(24 + (i // 2) % 3)::INTEGER AS irq"
    name = "'nvme0q' || ((i // 2) % 3) AS name"
    took = f"1000 + (i * i * (31 + {number})) % 400009"
    of_irq = f"100 + (i * i * (37 + {number})) % 40009"
    told = {
        "irq:softirq_entry": (vec, "0"),
        "irq:softirq_exit": (vec, took),
        "irq:irq_handler_entry": (f"{irq}, {name}", "500"),
        "irq:irq_handler_exit": (f"{irq}, 1::INTEGER AS ret", f"500 + {of_irq}"),
    }
    return {
        event: _select(f"{_task()}, {columns}", 200, f"i * 1000000 + {after}")
        for event, (columns, after) in told.items()
    }


def _memory(number: int) -> dict[str, str]:
    """Return page faults, reclaim and OOM kills."""
    who = f"{600 + number} + i % 3"
    task = _task(pid=f"CASE WHEN i % 4 = 0 THEN NULL ELSE {who} END", tid=who, comm="'m' || i % 2")
    address = "(140737000000000 + (i % 17) * 4096 + i)::UBIGINT"
    code = "(i % 8)::UBIGINT AS error_code"
    user = f"{address} AS address, {_ip('4198400')} AS ip, {code}"
    kernel = f"({_KERNEL} + i * 4096)::UBIGINT AS address, {_ip(_KERNEL)} AS ip, {code}"
    faults = {
        "exceptions:page_fault_user": _select(f"{task}, {user}", 90, "i * 1000"),
        "exceptions:page_fault_kernel": _select(f"{task}, {kernel}", 30, "i * 1000 + 500"),
    }
    reclaim = {}
    for first, kind in enumerate(("direct", "memcg")):
        freeing = _task(tid=f"{500 + number + 10 * first} + i % 2", comm="'free-' || i % 5")
        ended = f"i * 10000000 + 1000 + (i * i * (41 + {number + first})) % 900007"
        pages = f"{freeing}, (i * 3)::UBIGINT AS nr_reclaimed"
        name = f"vmscan:mm_vmscan_{kind}_reclaim"
        reclaim[f"{name}_begin"] = _select(freeing, 50, "i * 10000000")
        reclaim[f"{name}_end"] = _select(pages, 50, ended)
    told = (
        "(400 + i)::UINTEGER AS event_pid, 'victim' AS event_comm, 7::UINTEGER AS trigger_pid, "
        "'trigger' AS trigger_comm"
    )
    return {
        **faults,
        **reclaim,
        "bpf:oomkill": _select(f"{_task()}, {told}", 3, f"i * 1000000 + {number}"),
        "oom:mark_victim": _select(
            f"{_task()}, (400 + i)::INTEGER AS event_pid", 4, f"i * 2000000 + {number}"
        ),
    }


def _ip(address: str) -> str:
    """Return an address of code that most records have."""
    return f"({address} + CASE WHEN i % 5 = 1 THEN i ELSE 0 END)::UBIGINT"


def _samples(number: int) -> str:
    """Return samples of software events, in the kernel and not, and of others."""
    event = "['cycles', 'faults:u', 'minor-faults', 'major-faults', 'x:y'][1 + i % 5] AS event"
    turn = "(i // 5)"
    task = _task(tid=f"{650 + number} + {turn} % 3", comm=f"'s' || {turn} % 2")
    ip = (
        f"CASE WHEN {turn} % 7 = 3 THEN {_KERNEL} + i * 4096 WHEN {turn} % 5 = 1 THEN i "
        "ELSE 4198400 END::UBIGINT AS ip"
    )
    address = "CASE WHEN i % 3 != 0 THEN 140737000000000 + (i % 13) * 4096 END::UBIGINT AS addr"
    period = "CASE WHEN i % 7 != 0 THEN 1 + i % 4 END::UBIGINT AS period"
    return _select(f"{event}, {task}, {address}, {ip}, {period}", 200, "i * 1000")


def _calls(number: int) -> dict[str, str]:
    """Return system calls, some of which fail, one without a name, and opens with their paths."""
    tid = f"(200 + {number} + i % 2)"
    task = _task(pid=f"CASE WHEN i % 6 = 0 THEN NULL ELSE {tid} END", tid=tid, comm="'c' || i % 2")
    call = f"CASE WHEN i % 9 = 8 THEN 99999 WHEN i % 3 = 0 THEN {_OPENAT} ELSE {_GETPPID} END"
    failed = "CASE WHEN i % 20 = 3 THEN -13 WHEN i % 5 = 3 THEN -2 WHEN i % 50 = 9 THEN -515"
    told = f"{call}::BIGINT AS id"
    exits = f"{told}, ({failed} ELSE i END)::BIGINT AS ret"
    path = "CASE WHEN i % 4 = 1 THEN NULL ELSE '/etc/p' || i % 4 END AS path"
    took = f"900 + (i * i * (53 + {number})) % 700001"
    return {
        # The first call has only its end recorded, and some have only their beginning.
        "raw_syscalls:sys_enter": _select(f"{task}, {told}", 240, "i * 1000000", "i > 0"),
        "raw_syscalls:sys_exit": _select(
            f"{task}, {exits}", 240, f"i * 1000000 + {took}", "i % 31 != 30"
        ),
        "bpf:opensnoop": _select(
            f"{task}, {path}, ({failed} ELSE 3 END)::INTEGER AS result", 200, "i * 1000"
        ),
    }


# Before an address of IPv4 in one of IPv6, as digits.
_MAPPED: Final = f"{'0' * 20}FFFF"
# The states of connections: kind, step, the states before and behind it.
_STATES: Final = """
(VALUES (0, 0, 7, 2), (0, 1, 2, 1), (0, 2, 1, 4), (0, 3, 4, 7), (1, 0, 7, 2), (1, 1, 2, 7),
(2, 0, 3, 1), (2, 1, 1, 8), (2, 2, 8, 9), (2, 3, 9, 7)) s(kind, step, before, behind)"""


def _connections(number: int) -> dict[str, str]:
    """Return TCP connections that go out, fail, and come in, of both families."""
    of_six = "(i // 3) % 2 = 1"
    family = f"CASE WHEN {of_six} THEN 10 ELSE 2 END::USMALLINT AS family"
    four = f"'0A00{number:02X}' || printf('%02X', 1 + i % 4)"
    six = (
        f"CASE WHEN {of_six} THEN '20010DB8000000000000000000000A0' || i % 4 "
        f"ELSE '{_MAPPED}' || {four} END"
    )
    away = (
        f"unhex(CASE WHEN {of_six} THEN '00000000' ELSE {four} END) AS daddr, "
        f"unhex({six}) AS daddr_v6"
    )
    ports = (
        "CASE WHEN i % 3 = 2 THEN 80 {bound} ELSE 40000 + i END::USMALLINT AS sport, "
        "CASE WHEN i % 3 = 2 THEN 50000 + i ELSE 443 END::USMALLINT AS dport"
    )
    took = f"i * 20000000 + step * 1000000 + (i * i * (59 + {number}) + step * 7) % 900001"
    # The socket has its local port behind the first step.
    sockets = (
        f"SELECT 4 * i + step AS n, {_task()}, "  # noqa: S608
        f"({_KERNEL} + (i % 5) * 4096)::UBIGINT AS skaddr, before::INTEGER AS oldstate, "
        f"behind::INTEGER AS newstate, {ports.format(bound='WHEN step = 0 THEN 0')}, {family}, "
        f"6::USMALLINT AS protocol, {away}, {took} AS after "
        f"FROM range(30) r(i) JOIN {_STATES} ON kind = i % 3"
    )
    snooped = (
        "'curl' AS event_comm, CASE WHEN i % 3 = 2 THEN 'in' ELSE 'out' END AS direction, "
        f"unhex({six}) AS remote_address, (40000 + i)::USMALLINT AS local_port, "
        f"443::USMALLINT AS remote_port, {family}, "
        f"(CASE WHEN i % 3 = 1 THEN 0 ELSE 1000 + i * 977 + {number} END)::UBIGINT AS connect_ns, "
        "(i * 10007)::UBIGINT AS duration_ns, "
        "CASE WHEN i % 3 = 1 THEN 2 ELSE 7 END::USMALLINT AS last_state"
    )
    resent = f"{ports.format(bound='')}, {family}, {away}"
    return {
        "sock:inet_sock_set_state": sockets,
        "bpf:tcplife": _select(f"{_task()}, {snooped}", 30, f"i * 1000000 + {number}"),
        "tcp:tcp_retransmit_skb": _select(f"{_task()}, {resent}", 30, "i * 1000", "i % 4 != 1"),
    }

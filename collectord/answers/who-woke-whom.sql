-- # SPDX-License-Identifier: Apache-2.0
-- summary = "which threads woke which, and how often"
-- # Of a wakeup in an interrupt the thread that it interrupted is the waker.
-- needs = [["sched:sched_waking"], ["sched:sched_wakeup"]]
--
-- [columns."sched:sched_waking"]
-- tid = "INTEGER"
-- comm = "VARCHAR"
-- event_pid = "INTEGER"
-- event_comm = "VARCHAR"
--
-- [columns."sched:sched_wakeup"]
-- tid = "INTEGER"
-- comm = "VARCHAR"
-- event_pid = "INTEGER"
-- event_comm = "VARCHAR"
--
-- [parameter.limit]
-- type = "int"
-- default = 20
-- min = 1
-- help = "the most rows"
--
-- [compare]
-- keys = ["waker", "woken"]
--
-- [compare.measures]
-- wakeups = "sum"

WITH wakings AS (
    SELECT tid, comm, event_pid, event_comm FROM sched_waking
    UNION ALL
    SELECT tid, comm, event_pid, event_comm FROM sched_wakeup
)
SELECT
    comm AS waker,
    tid AS waker_tid,
    event_comm AS woken,
    event_pid AS woken_tid,
    count(*) AS wakeups
FROM wakings
GROUP BY ALL
ORDER BY wakeups DESC
LIMIT $limit

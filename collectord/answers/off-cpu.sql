-- # SPDX-License-Identifier: Apache-2.0
-- summary = "time off the CPU: asleep, blocked or waiting for it"
-- needs = [["sched:sched_switch"]]
--
-- [parameter.comm]
-- type = "string"
-- default = "*"
-- help = "only threads of this name, with * and ? for others"
--
-- [parameter.order]
-- type = "string"
-- default = "off"
-- help = "first the most off (any reason), longest (a single time), blocked or runnable"
--
-- [parameter.limit]
-- type = "int"
-- default = 20
-- min = 1
-- help = "the most rows"
--
-- [compare]
-- keys = ["comm"]
--
-- [compare.measures]
-- off_ms = "sum"
-- times = "sum"
-- longest_ms = "max"
-- blocked_ms = "sum"
-- runnable_ms = "sum"

WITH switches AS MATERIALIZED (
    SELECT
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))) AS stamp,
        TRY_CAST(mono_ns AS BIGINT) AS ns,
        cpu, prev_pid, prev_comm, prev_state, next_pid, next_comm
    FROM sched_switch
),
bounds AS (
    SELECT
        min(stamp) AS first_stamp,
        arg_min(ns, stamp) AS first_ns,
        max(stamp) AS last_stamp,
        arg_max(ns, stamp) AS last_ns
    FROM switches
),
moves AS (
    SELECT next_pid AS tid, next_comm AS comm, stamp, ns, -1 AS state FROM switches
    UNION ALL
    SELECT prev_pid, prev_comm, stamp, ns, prev_state & 255 FROM switches
),
steps AS (
    SELECT
        tid, comm, stamp, ns, state,
        lead(state) OVER by_tid AS state_then,
        lead(stamp) OVER by_tid AS stamp_then,
        lead(ns) OVER by_tid AS ns_then
    FROM moves
    WHERE tid != 0
    WINDOW by_tid AS (PARTITION BY tid ORDER BY stamp)
),
-- One that is still off when the records end has been so until then, unless it is dead (16, 32).
away AS (
    SELECT
        tid, comm, state, stamp AS since, coalesce(stamp_then, last_stamp) AS until,
        coalesce(ns_then, last_ns) - ns AS took
    FROM steps, bounds
    WHERE state >= 0 AND state & 48 = 0 AND coalesce(state_then, -1) = -1 AND comm GLOB $comm
),
sums AS (
    SELECT
        tid,
        arg_max(comm, since) AS last_comm,
        count(*) AS times,
        sum(took) AS total,
        max(took) AS longest,
        arg_max(since, took) AS longest_since,
        sum(took) FILTER (state = 2) AS blocked,
        sum(took) FILTER (state = 0) AS runnable
    FROM away
    WHERE NOT EXISTS (SELECT 1 FROM gaps WHERE gaps.since >= away.since AND gaps.until <= away.until)
    GROUP BY tid
)
SELECT
    last_comm AS comm,
    tid,
    times,
    round(total / 1e6, 3) AS off_ms,
    round(longest / 1e6, 3) AS longest_ms,
    round(coalesce(blocked, 0) / 1e6, 3) AS blocked_ms,
    round(coalesce(runnable, 0) / 1e6, 3) AS runnable_ms,
    longest_since AS time
FROM sums
ORDER BY
    CASE $order
        WHEN 'off' THEN total
        WHEN 'longest' THEN longest
        WHEN 'blocked' THEN coalesce(blocked, 0)
        WHEN 'runnable' THEN coalesce(runnable, 0)
        ELSE error('order is off, longest, blocked or runnable')
    END DESC
LIMIT $limit

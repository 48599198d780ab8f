-- # SPDX-License-Identifier: Apache-2.0
-- summary = "who waited longest for a CPU, and who ran instead"
-- needs = [["sched:sched_switch", "sched:sched_wakeup"]]
-- optional = ["sched:sched_wakeup_new"]
--
-- [columns."sched:sched_wakeup_new"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- event_pid = "INTEGER"
-- event_comm = "VARCHAR"
-- target_cpu = "INTEGER"
--
-- [parameter.order]
-- type = "string"
-- default = "longest"
-- help = "first the longest wait, or the largest total"
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
-- total_ms = "sum"
-- waits = "sum"
-- longest_ms = "max"

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
wakeups AS (
    SELECT time, mono_ns, event_pid, event_comm, target_cpu FROM sched_wakeup
    UNION ALL
    SELECT time, mono_ns, event_pid, event_comm, target_cpu FROM sched_wakeup_new
),
moves AS (
    SELECT next_pid AS tid, next_comm AS comm, cpu, stamp, ns, 'runs' AS what FROM switches
    UNION ALL
    -- In state 0, or 256 since Linux 4.14, it would run on.
    SELECT
        prev_pid, prev_comm, cpu, stamp, ns,
        CASE WHEN prev_state & 255 = 0 THEN 'preempted' ELSE 'sleeps' END
    FROM switches
    UNION ALL
    SELECT
        event_pid, event_comm, target_cpu,
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))),
        TRY_CAST(mono_ns AS BIGINT),
        'woken'
    FROM wakeups
),
told AS (
    SELECT tid, comm, cpu, stamp, ns, what, lag(what) OVER by_tid AS what_before
    FROM moves
    WHERE tid != 0
    WINDOW by_tid AS (PARTITION BY tid ORDER BY stamp)
),
-- A thread that runs or waits may be woken once more: that changes nothing.
steps AS (
    SELECT
        tid, comm, cpu, stamp, ns, what,
        lead(what) OVER by_tid AS what_then,
        lead(stamp) OVER by_tid AS stamp_then,
        lead(ns) OVER by_tid AS ns_then,
        lead(cpu) OVER by_tid AS cpu_then
    FROM told
    WHERE what != 'woken' OR what_before IS NULL OR what_before = 'sleeps'
    WINDOW by_tid AS (PARTITION BY tid ORDER BY stamp)
),
-- One that still waits when the records end has waited until then.
waiting AS MATERIALIZED (
    SELECT
        tid, comm, coalesce(cpu_then, cpu) AS on_cpu, stamp AS since,
        coalesce(stamp_then, last_stamp) AS until,
        coalesce(ns_then, last_ns) - ns AS waited
    FROM steps, bounds
    WHERE what != 'runs' AND what != 'sleeps' AND coalesce(what_then, 'runs') = 'runs'
),
threads AS MATERIALIZED (
    SELECT
        tid,
        arg_max(comm, since) AS last_comm,
        count(*) AS times,
        sum(waited) AS total,
        max(waited) AS longest,
        arg_max(on_cpu, waited) AS on_cpu,
        arg_max(since, waited) AS since,
        arg_max(until, waited) AS until
    FROM waiting
    WHERE NOT EXISTS (
        SELECT 1 FROM gaps WHERE gaps.since >= waiting.since AND gaps.until <= waiting.until
    )
    GROUP BY tid
    ORDER BY
        CASE $order
            WHEN 'longest' THEN max(waited)
            WHEN 'total' THEN sum(waited)
            ELSE error('order is longest or total')
        END DESC
    LIMIT $limit
),
turns AS (
    SELECT
        cpu, next_pid AS tid, next_comm AS comm, stamp AS since,
        coalesce(lead(stamp) OVER (PARTITION BY cpu ORDER BY stamp), last_stamp) AS until
    FROM switches, bounds
),
-- Who had the CPU during the longest wait for it.
others AS (
    SELECT
        threads.tid, turns.comm,
        sum(
            epoch_ns(least(turns.until, threads.until))
            - epoch_ns(greatest(turns.since, threads.since))
        ) AS ran
    FROM threads
    JOIN turns ON turns.cpu = threads.on_cpu
        AND turns.since < threads.until
        AND turns.until > threads.since
        AND turns.tid != threads.tid
    GROUP BY threads.tid, turns.comm
),
most AS (SELECT tid, arg_max(comm, ran) AS instead FROM others GROUP BY tid)
SELECT
    last_comm AS comm,
    tid,
    times AS waits,
    round(total / 1e6, 3) AS total_ms,
    round(longest / 1e6, 3) AS longest_ms,
    on_cpu AS cpu,
    instead AS ran_instead,
    since AS time
FROM threads
LEFT JOIN most USING (tid)
ORDER BY CASE $order WHEN 'total' THEN total ELSE longest END DESC

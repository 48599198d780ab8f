-- # SPDX-License-Identifier: Apache-2.0
-- summary = "the threads that had the CPUs, and their share of them"
-- needs = [["sched:sched_switch"]]
--
-- [parameter.by]
-- type = "string"
-- default = "thread"
-- help = "a row for each thread, or for each name"
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
-- run_ms = "sum"
-- percent_of_all = "sum"
-- turns = "sum"
-- mean_ms = "mean by turns"

WITH switches AS MATERIALIZED (
    SELECT
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))) AS stamp,
        TRY_CAST(mono_ns AS BIGINT) AS ns,
        cpu, prev_pid, prev_comm, next_pid, next_comm
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
-- From one switch on a CPU to the next; the first and the last turn are cut where records begin and end.
turns AS (
    SELECT
        cpu, next_pid AS tid, next_comm AS comm, stamp AS since, ns AS since_ns,
        lead(stamp) OVER by_cpu AS next_stamp,
        lead(ns) OVER by_cpu AS next_ns
    FROM switches
    WINDOW by_cpu AS (PARTITION BY cpu ORDER BY stamp)
),
first_turns AS (
    SELECT
        cpu, arg_min(prev_pid, stamp) AS tid, arg_min(prev_comm, stamp) AS comm,
        min(stamp) AS next_stamp, arg_min(ns, stamp) AS next_ns
    FROM switches
    GROUP BY cpu
),
runs AS (
    SELECT
        cpu, tid, comm, since, coalesce(next_stamp, last_stamp) AS until,
        coalesce(next_ns, last_ns) - since_ns AS ns
    FROM turns, bounds
    UNION ALL
    SELECT cpu, tid, comm, first_stamp, next_stamp, next_ns - first_ns
    FROM first_turns, bounds
),
seen AS (
    SELECT
        CASE $by
            WHEN 'thread' THEN tid::VARCHAR
            WHEN 'name' THEN comm
            ELSE error('by is thread or name')
        END AS who,
        tid, comm, since, ns
    FROM runs
    WHERE NOT EXISTS (SELECT 1 FROM gaps WHERE gaps.since >= runs.since AND gaps.until <= runs.until)
),
sums AS (
    SELECT
        who,
        any_value(tid) AS one_tid,
        arg_max(comm, since) AS last_comm,
        count(*) AS times,
        sum(ns) AS total
    FROM seen
    GROUP BY who
),
whole AS (
    SELECT sum(ns) AS of_all FROM seen
)
SELECT
    last_comm AS comm,
    CASE WHEN $by = 'thread' THEN one_tid END AS tid,
    round(total / 1e6, 3) AS run_ms,
    round(100 * total / of_all, 1) AS percent_of_all,
    times AS turns,
    round(total / times / 1e6, 3) AS mean_ms
FROM sums, whole
WHERE one_tid != 0
ORDER BY total DESC
LIMIT $limit

-- # SPDX-License-Identifier: Apache-2.0
-- summary = "programs that were started most often, and by whom"
-- needs = [["sched:sched_process_exec"]]
-- optional = ["sched:sched_process_fork"]
--
-- [columns."sched:sched_process_fork"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- parent_comm = "VARCHAR"
-- parent_pid = "INTEGER"
-- child_pid = "INTEGER"
--
-- [parameter.limit]
-- type = "int"
-- default = 20
-- min = 1
-- help = "the most rows"
--
-- [compare]
-- keys = ["program", "started_by"]
--
-- [compare.measures]
-- starts = "sum"
-- most_in_a_second = "max"

WITH execs AS (
    SELECT
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))) AS stamp,
        event_pid AS tid,
        filename
    FROM sched_process_exec
),
forks AS (
    SELECT
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))) AS stamp,
        child_pid, parent_pid, parent_comm
    FROM sched_process_fork
),
marks AS (
    SELECT stamp, tid, 1 AS is_exec, filename, NULL AS parent_comm, NULL AS parent_pid FROM execs
    UNION ALL
    SELECT stamp, child_pid, 0, NULL, parent_comm, parent_pid FROM forks
),
-- Numbers are used again: a process is the last one that was made with its number.
numbered AS (
    SELECT
        stamp, tid, is_exec, filename, parent_comm, parent_pid,
        sum(1 - is_exec) OVER (PARTITION BY tid ORDER BY stamp, is_exec) AS life
    FROM marks
),
-- The parent is the one that made the process; null if that was before the records.
told AS (
    SELECT started.stamp, started.filename, made.parent_comm, made.parent_pid
    FROM numbered AS started
    LEFT JOIN numbered AS made
        ON made.tid = started.tid AND made.life = started.life AND made.is_exec = 0
    WHERE started.is_exec = 1
),
by_second AS (
    SELECT filename, parent_comm, count(*) AS times
    FROM told
    GROUP BY filename, parent_comm, date_trunc('second', stamp)
),
peaks AS (
    SELECT filename, parent_comm, max(times) AS peak FROM by_second GROUP BY filename, parent_comm
),
sums AS (
    SELECT filename, parent_comm, count(*) AS times, count(DISTINCT parent_pid) AS parents
    FROM told
    GROUP BY filename, parent_comm
)
SELECT
    sums.filename AS program,
    sums.parent_comm AS started_by,
    times AS starts,
    peak AS most_in_a_second,
    parents
FROM sums
JOIN peaks ON sums.filename IS NOT DISTINCT FROM peaks.filename
    AND sums.parent_comm IS NOT DISTINCT FROM peaks.parent_comm
ORDER BY times DESC
LIMIT $limit

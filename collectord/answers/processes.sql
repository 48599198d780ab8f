-- # SPDX-License-Identifier: Apache-2.0
-- summary = "processes: parent, lifetime, and how they ended"
-- # No tracepoint has the code that a process ends with: the program exitsnoop does.
-- needs = [["sched:sched_process_exec"], ["bpf:exitsnoop"]]
-- optional = ["sched:sched_process_fork", "sched:sched_process_exit", "bpf:exitsnoop"]
--
-- [columns."sched:sched_process_exec"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- event_pid = "INTEGER"
-- old_pid = "INTEGER"
-- filename = "VARCHAR"
--
-- [columns."sched:sched_process_fork"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- parent_comm = "VARCHAR"
-- parent_pid = "INTEGER"
-- child_pid = "INTEGER"
--
-- [columns."sched:sched_process_exit"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- event_pid = "INTEGER"
--
-- [columns."bpf:exitsnoop"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- event_pid = "UINTEGER"
-- event_comm = "VARCHAR"
-- parent = "UINTEGER"
-- lifetime_ns = "UBIGINT"
-- code = "UINTEGER"
-- signal = "UINTEGER"
--
-- [parameter.order]
-- type = "string"
-- default = "newest"
-- help = "first those that began last (newest), or lived longest (lifetime)"
--
-- [parameter.failed]
-- type = "bool"
-- default = false
-- help = "only those that ended with another code than 0, or by a signal"
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
-- processes = "rows"
-- lifetime_ms = "max"

-- A process is made (0), executes programs (1), and ends (2; 3 tells its code).
WITH marks AS (
    SELECT
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))) AS stamp,
        child_pid::BIGINT AS pid, 0 AS step,
        parent_comm AS name, parent_pid::BIGINT AS parent,
        0 AS is_thread, NULL::BIGINT AS lived, NULL::BIGINT AS code, NULL::BIGINT AS signal
    FROM sched_process_fork
    UNION ALL
    SELECT
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))),
        event_pid, 1, filename, NULL,
        CASE WHEN old_pid = event_pid THEN 0 ELSE 1 END, NULL, NULL, NULL
    FROM sched_process_exec
    UNION ALL
    SELECT
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))),
        event_pid, 2, NULL, NULL, 0, NULL, NULL, NULL
    FROM sched_process_exit
    UNION ALL
    SELECT
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))),
        event_pid, 3, event_comm, parent, 0, TRY_CAST(lifetime_ns AS BIGINT), code, signal
    FROM exitsnoop
),
followed AS (
    SELECT
        stamp, pid, step, name, parent, is_thread, lived, code, signal,
        lag(stamp) OVER by_pid AS stamp_before,
        lag(step) OVER by_pid AS step_before
    FROM marks
    WINDOW by_pid AS (PARTITION BY pid ORDER BY stamp, step)
),
-- Numbers are used again. Where a thread that is not the first executes a program, the first ends.
begun AS (
    SELECT
        stamp, pid, step, name, parent, lived, code, signal,
        CASE
            WHEN step = 0 OR (step = 1 AND step_before >= 2 AND is_thread = 0) THEN 1
            WHEN EXISTS (
                SELECT 1 FROM gaps
                WHERE gaps.since >= followed.stamp_before AND gaps.until <= followed.stamp
            ) THEN 1
            ELSE 0
        END AS is_new
    FROM followed
),
numbered AS (
    SELECT
        stamp, pid, step, name, parent, lived, code, signal,
        sum(is_new) OVER (PARTITION BY pid ORDER BY stamp, step) AS life
    FROM begun
),
-- What has neither executed a program nor is told by exitsnoop may be a thread.
lives AS (
    SELECT
        pid, life,
        min(stamp) FILTER (step = 0) AS made,
        max(stamp) FILTER (step = 1) AS executed,
        max(stamp) FILTER (step >= 2) AS last_end,
        max(name) FILTER (step = 0) AS made_by,
        max(name) FILTER (step = 3) AS comm,
        coalesce(max(parent) FILTER (step = 0), max(parent)) AS parent,
        max(lived) AS lived,
        max(code) AS code,
        max(signal) AS signal
    FROM numbered
    GROUP BY pid, life
    HAVING count(*) FILTER (step IN (1, 3)) > 0
),
told AS (
    SELECT
        coalesce(numbered.name, lives.comm) AS program,
        lives.pid, lives.made_by, lives.parent, lives.made, lives.executed,
        lives.lived, lives.code, lives.signal,
        CASE
            WHEN lives.executed IS NULL OR lives.last_end >= lives.executed THEN lives.last_end
        END AS ended
    FROM lives
    LEFT JOIN numbered
        ON numbered.pid = lives.pid AND numbered.life = lives.life
        AND numbered.step = 1 AND numbered.stamp = lives.executed
),
timed AS (
    SELECT
        program, pid, made_by, parent, code, signal,
        coalesce(made, make_timestamp_ns(epoch_ns(ended) - lived), executed) AS began,
        coalesce(lived, epoch_ns(ended) - epoch_ns(made)) AS took
    FROM told
)
SELECT
    program,
    pid,
    made_by AS started_by,
    parent,
    round(took / 1e6, 3) AS lifetime_ms,
    code,
    signal,
    began AS time
FROM timed
WHERE $failed = 0 OR code > 0 OR signal > 0
ORDER BY
    CASE $order
        WHEN 'newest' THEN epoch_ns(began)
        WHEN 'lifetime' THEN coalesce(took, -1)
        ELSE error('order is newest or lifetime')
    END DESC, pid
LIMIT $limit

-- # SPDX-License-Identifier: Apache-2.0
-- summary = "system calls by process: count, errors and time"
-- needs = [["raw_syscalls:sys_enter", "raw_syscalls:sys_exit"]]
--
-- [parameter.order]
-- type = "string"
-- default = "calls"
-- help = "first the most calls, errors, or time"
--
-- [parameter.comm]
-- type = "string"
-- default = "*"
-- help = "only threads of this name, with * and ? for others"
--
-- [parameter.limit]
-- type = "int"
-- default = 20
-- min = 1
-- help = "the most rows"
--
-- [compare]
-- keys = ["comm", "syscall"]
--
-- [compare.measures]
-- calls = "sum"
-- errors = "sum"
-- total_ms = "sum"
-- longest_ms = "max"

-- A record without a result is the entry of a call.
WITH marks AS (
    SELECT time, mono_ns, pid, tid, comm, id, NULL AS result FROM sys_enter
    UNION ALL
    SELECT time, mono_ns, pid, tid, comm, id, ret FROM sys_exit
),
stamped AS (
    SELECT
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))) AS stamp,
        TRY_CAST(mono_ns AS BIGINT) AS ns,
        pid, tid, comm, id, result
    FROM marks
),
pairs AS (
    SELECT
        pid, tid, comm, id, result, stamp AS until, ns,
        lag(CASE WHEN result IS NULL THEN id END) OVER by_tid AS id_before,
        lag(ns) OVER by_tid AS ns_before,
        lag(stamp) OVER by_tid AS since
    FROM stamped
    WINDOW by_tid AS (PARTITION BY tid ORDER BY stamp)
),
ended AS (
    SELECT
        comm, coalesce(pid, tid) AS process, id, result,
        -- Of a call whose beginning was not recorded the time is not known.
        CASE
            WHEN id_before = id
                AND NOT EXISTS (
                    SELECT 1 FROM gaps WHERE gaps.since >= pairs.since AND gaps.until <= pairs.until
                )
                THEN ns - ns_before
        END AS took
    FROM pairs
    WHERE result IS NOT NULL AND coalesce(comm, '') GLOB $comm
),
sums AS (
    SELECT
        comm, process, id,
        count(*) AS times,
        count(*) FILTER (result BETWEEN -4095 AND -1) AS errors,
        sum(took) AS total,
        max(took) AS longest
    FROM ended
    GROUP BY comm, process, id
)
SELECT
    comm,
    process,
    coalesce(name, sums.id::VARCHAR) AS syscall,
    times AS calls,
    errors,
    round(total / 1e6, 3) AS total_ms,
    round(longest / 1e6, 3) AS longest_ms
FROM sums
LEFT JOIN syscall_names ON syscall_names.id = sums.id
ORDER BY
    CASE $order
        WHEN 'calls' THEN times
        WHEN 'errors' THEN errors
        WHEN 'time' THEN coalesce(total, 0)
        ELSE error('order is calls, errors or time')
    END DESC,
    times DESC
LIMIT $limit

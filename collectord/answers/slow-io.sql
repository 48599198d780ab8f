-- # SPDX-License-Identifier: Apache-2.0
-- summary = "slowest requests of block devices, and whose they were"
-- # Of data that is written back later the process is a thread of the kernel.
-- needs = [["block:block_rq_issue", "block:block_rq_complete"], ["bpf:biosnoop"]]
-- optional = ["block:block_rq_insert"]
--
-- [columns."block:block_rq_insert"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- dev = "UINTEGER"
-- sector = "UBIGINT"
-- rwbs = "VARCHAR"
-- tid = "INTEGER"
-- event_comm = "VARCHAR"
-- bytes = "UINTEGER"
--
-- [columns."block:block_rq_issue"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- dev = "UINTEGER"
-- sector = "UBIGINT"
-- rwbs = "VARCHAR"
-- tid = "INTEGER"
-- event_comm = "VARCHAR"
-- bytes = "UINTEGER"
--
-- [columns."block:block_rq_complete"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- dev = "UINTEGER"
-- sector = "UBIGINT"
-- rwbs = "VARCHAR"
--
-- [columns."bpf:biosnoop"]
-- time = "TIMESTAMP_NS"
-- event_comm = "VARCHAR"
-- event_tid = "UINTEGER"
-- dev = "UINTEGER"
-- rwbs = "VARCHAR"
-- bytes = "UINTEGER"
-- queue_ns = "UBIGINT"
-- latency_ns = "UBIGINT"
--
-- [parameter.least]
-- type = "duration"
-- default = "0ns"
-- help = "only requests that took so long, in the queue and in the device"
--
-- [parameter.limit]
-- type = "int"
-- default = 20
-- min = 1
-- help = "the most rows"
--
-- [compare]
-- keys = ["device", "kind"]
--
-- [compare.measures]
-- device_ms = "max"
-- queue_ms = "max"
-- requests = "rows"
-- bytes = "sum"

WITH marks AS (
    SELECT time, mono_ns, dev, sector, tid, event_comm, rwbs, bytes, 0 AS step FROM block_rq_insert
    UNION ALL
    SELECT time, mono_ns, dev, sector, tid, event_comm, rwbs, bytes, 1 FROM block_rq_issue
    UNION ALL
    SELECT time, mono_ns, dev, sector, NULL, NULL, rwbs, NULL, 2 FROM block_rq_complete
),
steps AS (
    SELECT
        dev, rwbs, step, TRY_CAST(mono_ns AS BIGINT) AS ns,
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))) AS until,
        lag(step) OVER by_place AS step_1,
        lag(step, 2) OVER by_place AS step_2,
        lag(TRY_CAST(mono_ns AS BIGINT)) OVER by_place AS ns_1,
        lag(TRY_CAST(mono_ns AS BIGINT), 2) OVER by_place AS ns_2,
        lag(coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT)))) OVER by_place AS since,
        lag(tid) OVER by_place AS tid_1,
        lag(tid, 2) OVER by_place AS tid_2,
        lag(event_comm) OVER by_place AS comm_1,
        lag(event_comm, 2) OVER by_place AS comm_2,
        lag(bytes) OVER by_place AS bytes_1
    FROM marks
    WINDOW by_place AS (
        PARTITION BY dev, sector
        ORDER BY coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT)))
    )
),
requests AS (
    SELECT
        CASE WHEN step_2 = 0 THEN comm_2 ELSE comm_1 END AS who,
        CASE WHEN step_2 = 0 THEN tid_2 ELSE tid_1 END AS who_tid,
        dev, rwbs AS kind, bytes_1 AS size,
        CASE WHEN step_2 = 0 THEN ns_1 - ns_2 ELSE 0 END AS queued,
        ns - ns_1 AS took,
        until AS ended
    FROM steps
    WHERE step = 2 AND step_1 = 1
        AND NOT EXISTS (
            SELECT 1 FROM gaps WHERE gaps.since >= steps.since AND gaps.until <= steps.until
        )
    UNION ALL
    SELECT event_comm, event_tid, dev, rwbs, bytes, queue_ns::BIGINT, latency_ns::BIGINT, time
    FROM biosnoop
    WHERE latency_ns > 0
)
SELECT
    who AS comm,
    who_tid AS tid,
    (dev >> 20) || ':' || (dev & 1048575) AS device,
    kind,
    size AS bytes,
    round(queued / 1e6, 3) AS queue_ms,
    round(took / 1e6, 3) AS device_ms,
    ended AS time
FROM requests
WHERE queued + took >= $least
ORDER BY queued + took DESC
LIMIT $limit

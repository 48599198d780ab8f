-- # SPDX-License-Identifier: Apache-2.0
-- summary = "who had to free memory, and for how long"
-- # A thread that allocates frees pages of the host, or of its memory cgroup, before it gets one.
-- needs = [
--     ["vmscan:mm_vmscan_direct_reclaim_begin", "vmscan:mm_vmscan_direct_reclaim_end"],
--     ["vmscan:mm_vmscan_memcg_reclaim_begin", "vmscan:mm_vmscan_memcg_reclaim_end"],
-- ]
-- optional = ["vmscan:mm_vmscan_memcg_reclaim_begin", "vmscan:mm_vmscan_memcg_reclaim_end"]
--
-- [columns."vmscan:mm_vmscan_direct_reclaim_begin"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- tid = "INTEGER"
-- comm = "VARCHAR"
--
-- [columns."vmscan:mm_vmscan_direct_reclaim_end"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- tid = "INTEGER"
-- comm = "VARCHAR"
-- nr_reclaimed = "UBIGINT"
--
-- [columns."vmscan:mm_vmscan_memcg_reclaim_begin"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- tid = "INTEGER"
-- comm = "VARCHAR"
--
-- [columns."vmscan:mm_vmscan_memcg_reclaim_end"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- tid = "INTEGER"
-- comm = "VARCHAR"
-- nr_reclaimed = "UBIGINT"
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
-- times = "sum"
-- longest_ms = "max"
-- pages = "sum"

WITH marks AS (
    SELECT time, mono_ns, tid, comm, TRUE AS begins, NULL AS freed
    FROM mm_vmscan_direct_reclaim_begin
    UNION ALL
    SELECT time, mono_ns, tid, comm, FALSE, nr_reclaimed FROM mm_vmscan_direct_reclaim_end
    UNION ALL
    SELECT time, mono_ns, tid, comm, TRUE, NULL FROM mm_vmscan_memcg_reclaim_begin
    UNION ALL
    SELECT time, mono_ns, tid, comm, FALSE, nr_reclaimed FROM mm_vmscan_memcg_reclaim_end
),
steps AS (
    SELECT
        tid, comm, begins,
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))) AS since,
        TRY_CAST(mono_ns AS BIGINT) AS ns,
        lead(begins) OVER by_tid AS begins_then,
        lead(freed) OVER by_tid AS pages,
        lead(coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT)))) OVER by_tid AS until,
        lead(TRY_CAST(mono_ns AS BIGINT)) OVER by_tid AS ns_then
    FROM marks
    WINDOW by_tid AS (
        PARTITION BY tid
        ORDER BY coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT)))
    )
),
spans AS (
    SELECT tid, comm, since, ns_then - ns AS took, pages
    FROM steps
    WHERE begins AND NOT begins_then
        AND NOT EXISTS (
            SELECT 1 FROM gaps WHERE gaps.since >= steps.since AND gaps.until <= steps.until
        )
)
SELECT
    arg_max(comm, since) AS comm,
    tid,
    count(*) AS times,
    round(sum(took) / 1e6, 3) AS total_ms,
    round(max(took) / 1e6, 3) AS longest_ms,
    sum(pages)::BIGINT AS pages,
    arg_max(since, took) AS time
FROM spans
GROUP BY tid
ORDER BY sum(took) DESC
LIMIT $limit

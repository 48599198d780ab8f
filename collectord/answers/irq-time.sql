-- # SPDX-License-Identifier: Apache-2.0
-- summary = "time in interrupts and softirqs, and on which CPU most"
-- # The time of a softirq includes that of interrupts within it.
-- needs = [["irq:softirq_entry", "irq:softirq_exit"]]
-- optional = ["irq:irq_handler_entry", "irq:irq_handler_exit"]
--
-- [columns."irq:irq_handler_entry"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- cpu = "INTEGER"
-- irq = "INTEGER"
-- name = "VARCHAR"
--
-- [columns."irq:irq_handler_exit"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- cpu = "INTEGER"
-- irq = "INTEGER"
--
-- [parameter.order]
-- type = "string"
-- default = "time"
-- help = "first the most time, or the most runs"
--
-- [parameter.limit]
-- type = "int"
-- default = 20
-- min = 1
-- help = "the most rows"
--
-- [compare]
-- keys = ["kind", "name"]
--
-- [compare.measures]
-- total_ms = "sum"
-- runs = "sum"
-- mean_us = "mean by runs"
-- longest_us = "max"

WITH marks AS (
    SELECT
        time, mono_ns, cpu, 'softirq' AS kind, vec::INTEGER AS number, TRUE AS begins,
        -- include/linux/interrupt.h
        coalesce(
            ['HI', 'TIMER', 'NET_TX', 'NET_RX', 'BLOCK', 'IRQ_POLL', 'TASKLET', 'SCHED', 'HRTIMER', 'RCU'][
                vec::INTEGER + 1
            ],
            vec::VARCHAR
        ) AS what
    FROM softirq_entry
    UNION ALL
    SELECT time, mono_ns, cpu, 'softirq', vec::INTEGER, FALSE, NULL FROM softirq_exit
    UNION ALL
    SELECT time, mono_ns, cpu, 'irq', irq, TRUE, irq || ' ' || name FROM irq_handler_entry
    UNION ALL
    SELECT time, mono_ns, cpu, 'irq', irq, FALSE, NULL FROM irq_handler_exit
),
stamped AS (
    SELECT
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))) AS stamp,
        TRY_CAST(mono_ns AS BIGINT) AS ns,
        cpu, kind, number, begins, what
    FROM marks
),
steps AS (
    SELECT
        cpu, kind, number, begins, what, stamp AS since, ns,
        lead(begins) OVER by_cpu AS begins_then,
        lead(number) OVER by_cpu AS number_then,
        lead(stamp) OVER by_cpu AS until,
        lead(ns) OVER by_cpu AS ns_then
    FROM stamped
    WINDOW by_cpu AS (PARTITION BY cpu, kind ORDER BY stamp)
),
spans AS (
    SELECT cpu, kind, what, since, ns_then - ns AS took
    FROM steps
    WHERE begins AND NOT begins_then AND number_then = number
        AND NOT EXISTS (
            SELECT 1 FROM gaps WHERE gaps.since >= steps.since AND gaps.until <= steps.until
        )
),
by_place AS (
    SELECT kind, what, cpu, count(*) AS times, sum(took) AS total, max(took) AS longest,
        arg_max(since, took) AS longest_since
    FROM spans
    GROUP BY kind, what, cpu
)
SELECT
    kind,
    what AS name,
    sum(times)::BIGINT AS runs,
    round(sum(total) / 1e6, 3) AS total_ms,
    round(sum(total) / sum(times) / 1e3, 3) AS mean_us,
    round(max(longest) / 1e3, 3) AS longest_us,
    arg_max(cpu, total) AS most_on_cpu,
    arg_max(longest_since, longest) AS time
FROM by_place
GROUP BY kind, what
ORDER BY
    CASE $order
        WHEN 'time' THEN sum(total)
        WHEN 'runs' THEN sum(times)
        ELSE error('order is time or runs')
    END DESC
LIMIT $limit

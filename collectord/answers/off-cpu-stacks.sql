-- # SPDX-License-Identifier: Apache-2.0
-- summary = "which calls left the CPU, and how long for"
-- needs = [["sched:sched_switch"]]
-- call_chains = true
-- render = "stacks"
--
-- [parameter.comm]
-- type = "string"
-- default = "*"
-- help = "only threads of this name, with * and ? for others"
--
-- [parameter.only]
-- type = "string"
-- default = "off"
-- help = "only times asleep, blocked or runnable; off: any"
--
-- [compare]
-- keys = ["folded"]
--
-- [compare.measures]
-- off_us = "sum"

WITH switches AS MATERIALIZED (
    SELECT
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))) AS stamp,
        TRY_CAST(mono_ns AS BIGINT) AS ns,
        cpu, prev_pid, prev_comm, prev_state, next_pid, next_comm
    FROM sched_switch
),
bounds AS (
    SELECT max(stamp) AS last_stamp, arg_max(ns, stamp) AS last_ns FROM switches
),
moves AS (
    SELECT next_pid AS tid, next_comm AS comm, stamp, ns, cpu, -1 AS state FROM switches
    UNION ALL
    SELECT prev_pid, prev_comm, stamp, ns, cpu, prev_state & 255 FROM switches
),
steps AS (
    SELECT
        tid, comm, stamp, ns, cpu, state,
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
        comm, cpu, ns, stamp AS since, coalesce(stamp_then, last_stamp) AS until,
        coalesce(ns_then, last_ns) - ns AS took
    FROM steps, bounds
    WHERE state >= 0 AND state & 48 = 0 AND coalesce(state_then, -1) = -1 AND comm GLOB $comm
        AND CASE $only
            WHEN 'off' THEN true
            WHEN 'asleep' THEN state NOT IN (0, 2)
            WHEN 'blocked' THEN state = 2
            WHEN 'runnable' THEN state = 0
            ELSE error('only is off, asleep, blocked or runnable')
        END
),
-- The sample of a switch is taken in the thread that leaves the CPU.
left_from AS (
    SELECT mono_ns AS at_ns, cpu AS on_cpu, stack_id
    FROM frames
    WHERE event = 'sched:sched_switch' AND position = 0
),
texts AS (
    SELECT stack_id, any_value(stack) AS text
    FROM stacks
    WHERE event = 'sched:sched_switch'
    GROUP BY stack_id
)
SELECT
    replace(comm, ';', ':') || ';' || coalesce(text, '[no call chain]') AS folded,
    (sum(took) // 1000)::BIGINT AS off_us
FROM away
LEFT JOIN left_from ON at_ns = ns AND on_cpu = cpu
LEFT JOIN texts ON texts.stack_id = left_from.stack_id
WHERE NOT EXISTS (SELECT 1 FROM gaps WHERE gaps.since >= away.since AND gaps.until <= away.until)
GROUP BY folded
ORDER BY off_us DESC, folded

-- # SPDX-License-Identifier: Apache-2.0
-- summary = "how busy each CPU was, from the left to the right"
-- needs = [["sched:sched_switch"]]
-- render = "timeline"
--
-- [parameter.slots]
-- type = "int"
-- default = 60
-- min = 1
-- max = 60
-- help = "the number of pieces of the time"
--
-- [compare]
-- keys = ["lane", "slot_number"]
--
-- [compare.measures]
-- busy_percent = "sum"

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
slot AS (
    SELECT
        epoch_ns(first_stamp) AS begins,
        greatest((epoch_ns(last_stamp) - epoch_ns(first_stamp)) / $slots, 1) AS width
    FROM bounds
),
pieces AS (
    SELECT
        cpu, width,
        (epoch_ns(since) - begins)::DOUBLE AS since_ns,
        (epoch_ns(until) - begins)::DOUBLE AS until_ns,
        unnest(range(
            floor((epoch_ns(since) - begins) / width)::BIGINT,
            ceil((epoch_ns(until) - begins) / width)::BIGINT
        )) AS piece
    FROM runs, slot
    WHERE tid != 0
        AND NOT EXISTS (SELECT 1 FROM gaps WHERE gaps.since >= runs.since AND gaps.until <= runs.until)
)
SELECT
    'CPU ' || cpu AS lane,
    piece AS slot_number,
    round(
        100 * sum(least(until_ns, (piece + 1) * width) - greatest(since_ns, piece * width))
        / any_value(width),
        1
    ) AS busy_percent
FROM pieces
WHERE piece < $slots
GROUP BY cpu, piece
ORDER BY cpu, piece

-- # SPDX-License-Identifier: Apache-2.0
-- summary = "how long block devices took, as a histogram"
-- needs = [["block:block_rq_issue", "block:block_rq_complete"]]
-- render = "histogram"
--
-- [compare]
-- keys = ["device", "from_us", "to_us"]
--
-- [compare.measures]
-- requests = "sum"

WITH marks AS (
    SELECT time, mono_ns, dev, sector, FALSE AS ended FROM block_rq_issue
    UNION ALL
    SELECT time, mono_ns, dev, sector, TRUE FROM block_rq_complete
),
steps AS (
    SELECT
        dev, ended, TRY_CAST(mono_ns AS BIGINT) AS ns,
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))) AS until,
        lag(ended) OVER by_place AS ended_before,
        lag(TRY_CAST(mono_ns AS BIGINT)) OVER by_place AS ns_before,
        lag(coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT)))) OVER by_place AS since
    FROM marks
    WINDOW by_place AS (
        PARTITION BY dev, sector
        ORDER BY coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT)))
    )
),
slots AS (
    SELECT dev, floor(log2(greatest((ns - ns_before) / 1000, 1)))::INTEGER AS slot_number
    FROM steps
    WHERE ended AND NOT ended_before
        AND NOT EXISTS (
            SELECT 1 FROM gaps WHERE gaps.since >= steps.since AND gaps.until <= steps.until
        )
)
SELECT
    (dev >> 20) || ':' || (dev & 1048575) AS device,
    (1 << slot_number) AS from_us,
    (2 << slot_number) - 1 AS to_us,
    count(*) AS requests
FROM slots
GROUP BY dev, slot_number
ORDER BY dev, slot_number

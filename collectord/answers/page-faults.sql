-- # SPDX-License-Identifier: Apache-2.0
-- summary = "page faults of each process, and on how many pages"
-- needs = [
--     ["exceptions:page_fault_user"],
--     ["software:page-faults"],
--     ["software:minor-faults", "software:major-faults"],
--     ["software:minor-faults"],
--     ["software:major-faults"],
-- ]
-- optional = ["exceptions:page_fault_kernel"]
--
-- [columns."exceptions:page_fault_user"]
-- pid = "INTEGER"
-- tid = "INTEGER"
-- comm = "VARCHAR"
-- address = "UBIGINT"
-- ip = "UBIGINT"
-- error_code = "UBIGINT"
--
-- [columns."exceptions:page_fault_kernel"]
-- pid = "INTEGER"
-- tid = "INTEGER"
-- comm = "VARCHAR"
-- address = "UBIGINT"
-- ip = "UBIGINT"
-- error_code = "UBIGINT"
--
-- [columns."software:page-faults"]
-- pid = "INTEGER"
-- tid = "INTEGER"
-- comm = "VARCHAR"
-- addr = "UBIGINT"
-- ip = "UBIGINT"
-- period = "UBIGINT"
--
-- [columns."software:minor-faults"]
-- pid = "INTEGER"
-- tid = "INTEGER"
-- comm = "VARCHAR"
-- addr = "UBIGINT"
-- ip = "UBIGINT"
-- period = "UBIGINT"
--
-- [columns."software:major-faults"]
-- pid = "INTEGER"
-- tid = "INTEGER"
-- comm = "VARCHAR"
-- addr = "UBIGINT"
-- ip = "UBIGINT"
-- period = "UBIGINT"
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
-- times = "sum"
-- pages = "sum"
-- writes = "sum"
-- in_kernel = "sum"

WITH sampled AS (
    SELECT pid, tid, comm, addr, ip, period FROM "page-faults"
    UNION ALL
    SELECT pid, tid, comm, addr, ip, period FROM "minor-faults"
    UNION ALL
    SELECT pid, tid, comm, addr, ip, period FROM "major-faults"
),
faults AS (
    SELECT pid, tid, comm, address, ip, error_code, FALSE AS kernel, 1 AS number
    FROM page_fault_user
    UNION ALL
    SELECT pid, tid, comm, address, ip, error_code, TRUE, 1 FROM page_fault_kernel
    UNION ALL
    -- A sample stands for `period` faults.
    SELECT pid, tid, comm, addr, ip, NULL, ip >= 1::UBIGINT << 63, coalesce(period, 1)
    FROM sampled
)
SELECT
    comm,
    coalesce(pid, tid) AS process,
    sum(number)::BIGINT AS times,
    nullif(count(DISTINCT address >> 12), 0) AS pages,
    if(
        count(error_code) = 0, NULL, count(*) FILTER (error_code & 2 != 0)
    ) AS writes,
    coalesce(sum(number) FILTER (kernel), 0)::BIGINT AS in_kernel,
    printf('%x', mode(ip)) AS hottest_ip
FROM faults
GROUP BY comm, process
ORDER BY times DESC
LIMIT $limit

-- # SPDX-License-Identifier: Apache-2.0
-- summary = "files that processes open, and why it fails"
-- # System calls do not tell the path: the program opensnoop does.
-- needs = [["bpf:opensnoop"], ["raw_syscalls:sys_exit"]]
--
-- [columns."bpf:opensnoop"]
-- pid = "INTEGER"
-- comm = "VARCHAR"
-- path = "VARCHAR"
-- result = "INTEGER"
--
-- [columns."raw_syscalls:sys_exit"]
-- pid = "INTEGER"
-- tid = "INTEGER"
-- comm = "VARCHAR"
-- id = "BIGINT"
-- ret = "BIGINT"
--
-- [parameter.failed]
-- type = "bool"
-- default = false
-- help = "only those that fail"
--
-- [parameter.limit]
-- type = "int"
-- default = 20
-- min = 1
-- help = "the most rows"
--
-- [compare]
-- keys = ["comm", "path"]
--
-- [compare.measures]
-- opens = "sum"
-- failed = "sum"

WITH opened AS (
    SELECT pid AS process, comm, path, result FROM opensnoop
    UNION ALL
    SELECT coalesce(pid, tid), comm, NULL, ret
    FROM sys_exit
    JOIN syscall_names ON syscall_names.id = sys_exit.id
    WHERE syscall_names.name IN ('open', 'openat', 'openat2', 'creat')
),
sums AS (
    SELECT
        comm, process, path,
        count(*) AS times,
        count(*) FILTER (result < 0) AS failures,
        mode(-result) FILTER (result < 0) AS code
    FROM opened
    WHERE result < 0 OR $failed = 0
    GROUP BY comm, process, path
)
SELECT
    comm,
    process,
    times AS opens,
    failures AS failed,
    coalesce(name, code::VARCHAR) AS error,
    path
FROM sums
LEFT JOIN errno_names ON errno_names.errno = code
ORDER BY times DESC
LIMIT $limit

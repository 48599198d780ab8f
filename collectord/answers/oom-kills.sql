-- # SPDX-License-Identifier: Apache-2.0
-- summary = "processes that the OOM killer ended"
-- # The program oomkill also tells the process whose allocation found no memory.
-- needs = [["bpf:oomkill"], ["oom:mark_victim"]]
--
-- [columns."bpf:oomkill"]
-- time = "TIMESTAMP_NS"
-- event_pid = "UINTEGER"
-- event_comm = "VARCHAR"
-- trigger_pid = "UINTEGER"
-- trigger_comm = "VARCHAR"
--
-- [columns."oom:mark_victim"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- tid = "INTEGER"
-- comm = "VARCHAR"
-- event_pid = "INTEGER"
--
-- [parameter.limit]
-- type = "int"
-- default = 20
-- min = 1
-- help = "the most rows"
--
-- [compare]
-- keys = ["victim", "allocated_by"]
--
-- [compare.measures]
-- kills = "rows"

SELECT
    event_comm AS victim,
    event_pid AS pid,
    trigger_comm AS allocated_by,
    trigger_pid AS allocated_by_pid,
    time
FROM oomkill
UNION ALL
SELECT
    NULL, event_pid, comm, tid,
    coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT)))
FROM mark_victim
ORDER BY time DESC
LIMIT $limit

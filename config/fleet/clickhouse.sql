-- SPDX-License-Identifier: Apache-2.0
-- Tables of ClickHouse over what `collectord ship` has put into S3, and a copy of one of them that is
-- made again and again. Tried with ClickHouse 26.9. Replace the address, and give the server a
-- named collection with the credentials: CREATE NAMED COLLECTION fleet AS url = '...', ...
--
-- `collectord fleet query --engine clickhouse --engine-address http://HOST:8123` needs none of these.

CREATE DATABASE IF NOT EXISTS fleet;

-- Rows of a segment that has no commit yet may be in it: join with fleet.committed where that matters.
CREATE OR REPLACE VIEW fleet.sched_switch AS
SELECT
    *,
    decodeURLComponent(extract(_path, '/host=([^/]+)/')) AS host,
    toDate(extract(_path, '/date=([^/]+)/')) AS date,
    extract(_file, '^[0-9a-f]{64}') AS source_sha256
FROM s3('https://traces.s3.eu-central-1.amazonaws.com/fleet/events/event=sched_switch/date=*/host=*/*.parquet', 'Parquet')
SETTINGS use_hive_partitioning = 0, schema_inference_mode = 'union';

-- The commits, one a row. Keys tell hosts and days, so a WHERE on them opens no other object.
CREATE OR REPLACE VIEW fleet.committed AS
SELECT
    source AS source_sha256, host, session, kernel, date, segment, labels,
    tupleElement(balance, 'produced') AS produced,
    tupleElement(balance, 'stored') AS stored,
    tupleElement(balance, 'lost') AS lost
FROM s3(
    'https://traces.s3.eu-central-1.amazonaws.com/fleet/ledger/date=*/host=*/*.json', 'JSONEachRow',
    'source String, host String, session String, kernel String, date Date, segment String,
     labels Map(String, String), balance Tuple(produced Nullable(Int64), stored Int64, lost Nullable(Int64))'
)
SETTINGS use_hive_partitioning = 0, input_format_skip_unknown_fields = 1;

-- A copy on the server: each row once, as a commit names its source once, and nothing is ever replaced.
CREATE TABLE IF NOT EXISTS fleet.sched_switch_copy
(
    host LowCardinality(String),
    date Date,
    source_sha256 FixedString(64),
    time Nullable(DateTime64(9, 'UTC')),
    mono_ns Nullable(UInt64),
    cpu Nullable(Int32),
    prev_pid Nullable(Int32),
    prev_comm LowCardinality(Nullable(String)),
    prev_state Nullable(Int64),
    next_pid Nullable(Int32),
    next_comm LowCardinality(Nullable(String))
)
ENGINE = MergeTree
PARTITION BY date
ORDER BY (host, mono_ns)
TTL date + INTERVAL 30 DAY
SETTINGS allow_nullable_key = 1;

-- Every ten minutes what is committed of the last four days and is not in the copy. A segment is of the day of its
-- first record, and committed after its end: take as many days as `segment_age` and the time that a host may be away.
CREATE MATERIALIZED VIEW IF NOT EXISTS fleet.copy_sched_switch
REFRESH EVERY 10 MINUTE APPEND TO fleet.sched_switch_copy AS
SELECT
    host, date, source_sha256, time, mono_ns, cpu, prev_pid, prev_comm, prev_state, next_pid, next_comm
FROM fleet.sched_switch
WHERE date >= today() - 3
    AND source_sha256 IN (SELECT source_sha256 FROM fleet.committed WHERE date >= today() - 3)
    AND source_sha256 NOT IN (SELECT source_sha256 FROM fleet.sched_switch_copy WHERE date >= today() - 3);

-- # SPDX-License-Identifier: Apache-2.0
-- summary = "TCP connections: with whom, failed, resent, and times"
-- # One that came in is told by the local port. tcplife tells only those that failed
-- # whose parameter `failed` is set.
-- needs = [["sock:inet_sock_set_state"], ["bpf:tcplife"]]
-- optional = ["tcp:tcp_retransmit_skb"]
--
-- [columns."sock:inet_sock_set_state"]
-- time = "TIMESTAMP_NS"
-- mono_ns = "UBIGINT"
-- comm = "VARCHAR"
-- skaddr = "UBIGINT"
-- oldstate = "INTEGER"
-- newstate = "INTEGER"
-- sport = "USMALLINT"
-- dport = "USMALLINT"
-- family = "USMALLINT"
-- protocol = "USMALLINT"
-- daddr = "BLOB"
-- daddr_v6 = "BLOB"
--
-- [columns."bpf:tcplife"]
-- time = "TIMESTAMP_NS"
-- event_comm = "VARCHAR"
-- direction = "VARCHAR"
-- remote_address = "BLOB"
-- local_port = "USMALLINT"
-- remote_port = "USMALLINT"
-- family = "USMALLINT"
-- connect_ns = "UBIGINT"
-- duration_ns = "UBIGINT"
-- last_state = "USMALLINT"
--
-- [columns."tcp:tcp_retransmit_skb"]
-- sport = "USMALLINT"
-- dport = "USMALLINT"
-- family = "USMALLINT"
-- daddr = "BLOB"
-- daddr_v6 = "BLOB"
--
-- [parameter.order]
-- type = "string"
-- default = "tries"
-- help = "first the most tries, failed or resent, or the slowest to connect"
--
-- [parameter.limit]
-- type = "int"
-- default = 20
-- min = 1
-- help = "the most rows"
--
-- [compare]
-- keys = ["comm", "way", "peer"]
--
-- [compare.measures]
-- tries = "sum"
-- failed = "sum"
-- resent = "sum"
-- connect_ms = "max"
-- longest_ms = "max"

WITH changes AS (
    SELECT
        coalesce(time, make_timestamp_ns(TRY_CAST(mono_ns AS BIGINT))) AS stamp,
        TRY_CAST(mono_ns AS BIGINT) AS ns,
        skaddr, oldstate, newstate, sport, dport, family, comm,
        CASE WHEN family = 2 THEN hex(daddr) ELSE hex(daddr_v6) END AS address
    FROM inet_sock_set_state
    -- IPPROTO_TCP; not those of a socket that listens (10)
    WHERE protocol = 6 AND oldstate != 10 AND newstate != 10
),
-- A socket's address is used again: a session begins with SYN_SENT (2), or with the step from
-- SYN_RECV (3) to ESTABLISHED (1).
numbered AS (
    SELECT
        stamp, ns, skaddr, oldstate, newstate, sport, dport, family, comm, address,
        sum(CASE WHEN newstate = 2 OR (oldstate = 3 AND newstate = 1) THEN 1 ELSE 0 END)
            OVER (PARTITION BY skaddr ORDER BY stamp) AS session_number
    FROM changes
),
sockets AS (
    SELECT
        skaddr, session_number,
        arg_min(comm, stamp) AS first_comm,
        max(stamp) AS changed,
        bool_or(newstate = 2) AS out,
        max(sport) AS local_port,
        max(dport) AS remote_port,
        any_value(family) AS family,
        arg_max(address, stamp) AS address,
        min(ns) FILTER (newstate = 2) AS sent_ns,
        min(ns) FILTER (newstate = 1) AS open_ns,
        max(ns) FILTER (newstate = 7) AS closed_ns
    FROM numbered
    WHERE session_number > 0
    GROUP BY skaddr, session_number
),
sessions AS (
    SELECT
        -- Of what comes in the first step is made in an interrupt, in whichever thread.
        CASE WHEN out THEN first_comm END AS who,
        CASE WHEN out THEN 'out' ELSE 'in' END AS way,
        family, address, local_port, remote_port,
        open_ns IS NULL AND closed_ns IS NOT NULL AS failure,
        open_ns - sent_ns AS connect,
        closed_ns - open_ns AS lasted,
        changed
    FROM sockets
    UNION ALL
    SELECT
        event_comm, direction,
        family,
        CASE WHEN family = 2 THEN hex(remote_address)[25:32] ELSE hex(remote_address) END,
        local_port, remote_port,
        last_state IN (2, 3),
        nullif(connect_ns, 0)::BIGINT,
        nullif(duration_ns, 0)::BIGINT,
        time
    FROM tcplife
),
lost AS (
    SELECT
        sport AS local_port, dport AS remote_port, family,
        CASE WHEN family = 2 THEN hex(daddr) ELSE hex(daddr_v6) END AS address,
        count(*) AS segments_resent
    FROM tcp_retransmit_skb
    GROUP BY ALL
),
told AS (
    SELECT
        who, way, failure, connect, lasted, changed, segments_resent,
        CASE
            WHEN way = 'in' THEN ':' || sessions.local_port
            WHEN sessions.family = 2
                THEN array_to_string(
                    list_transform(
                        range(1, 8, 2), lambda i: ('0x' || sessions.address[i:i + 1])::INTEGER
                    ),
                    '.'
                ) || ':' || sessions.remote_port
            ELSE '[' || array_to_string(
                list_transform(
                    range(1, 32, 4),
                    lambda i: coalesce(nullif(ltrim(lower(sessions.address[i:i + 3]), '0'), ''), '0')
                ),
                ':'
            ) || ']:' || sessions.remote_port
        END AS peer
    FROM sessions
    LEFT JOIN lost ON lost.local_port = sessions.local_port
        AND lost.remote_port = sessions.remote_port
        AND lost.family = sessions.family
        AND lost.address = sessions.address
)
SELECT
    who AS comm,
    way,
    peer,
    count(*) AS tries,
    count(*) FILTER (failure) AS failed,
    coalesce(sum(segments_resent), 0)::BIGINT AS resent,
    round(max(connect) / 1e6, 3) AS connect_ms,
    round(max(lasted) / 1e6, 3) AS longest_ms,
    max(changed) AS time
FROM told
GROUP BY who, way, peer
ORDER BY
    CASE $order
        WHEN 'tries' THEN tries
        WHEN 'failed' THEN failed
        WHEN 'resent' THEN resent
        WHEN 'slowest' THEN coalesce(connect_ms, -1)
        ELSE error('order is tries, failed, resent or slowest')
    END DESC,
    tries DESC, failed DESC, way DESC, peer
LIMIT $limit

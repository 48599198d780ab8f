/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "walk.h"

/*
 * A piece of AUX payload in a segment, in one of two framings:
 *
 *   auxtrace  header{71, 48}          body  payload pad      the payload is not in header.size
 *   hidden    header{82, all} magic   body  payload pad      all of it is
 *
 *   body: u64 size, offset, reference; u32 idx, tid, cpu, pad
 *
 * `size` is that of payload and pad, a multiple of 8. `pad`, 0 to 7, is where perf has a reserved
 * word that it does not look at. Body and type 71: tools/lib/perf/include/perf/event.h, struct
 * perf_record_auxtrace. Readers give up a whole file for a type 71 of a PMU that they have no
 * decoder for; type 82 they pass over.
 */
enum aux_framing { AUX_AUXTRACE, AUX_HIDDEN };

#define AUX_HIDDEN_MAGIC UINT64_C(0x3158554144544f43)
#define AUX_BODY_BYTES 40u
#define AUX_AUXTRACE_BYTES (WALK_HEADER_BYTES + AUX_BODY_BYTES)
#define AUX_HIDDEN_BYTES (AUX_AUXTRACE_BYTES + 8u)
/* The largest record that is a multiple of 8. */
#define AUX_HIDDEN_PAYLOAD_MAX (65528u - AUX_HIDDEN_BYTES)

/* The origin of a piece. `tid` or `cpu` may be UINT32_MAX: it belongs to no single thread or
 * CPU. */
struct aux_origin {
	uint32_t idx, tid, cpu;
};

struct aux_piece {
	uint64_t bytes; /* payload bytes, without the pad */
	uint64_t offset, reference;
	struct aux_origin origin;
};

/* Returns the number of bytes in front of the payload. */
static inline uint32_t aux_piece__head_bytes(enum aux_framing framing)
{
	return framing == AUX_HIDDEN ? AUX_HIDDEN_BYTES : AUX_AUXTRACE_BYTES;
}

/* Write head and pad around the payload, which is already at `to` + aux_piece__head_bytes().
 * Returns the total length. */
uint32_t aux_piece__write(uint8_t *to, enum aux_framing framing, const struct aux_piece *piece);

/*
 * Whether the record at `record`, of which `bytes` are available, is a piece. Its payload may
 * extend beyond `bytes`. `whole`: bytes from this record to the next. False for any other record,
 * and for one that has the type of a piece but is malformed.
 */
bool aux_piece__read(const uint8_t *record, size_t bytes, struct aux_piece *piece, uint64_t *whole);

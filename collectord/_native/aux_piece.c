/* SPDX-License-Identifier: Apache-2.0 */
#include "aux_piece.h"

#include <string.h>

#define ALIGN 8u

/* Of the body. */
#define AT_SIZE 0u
#define AT_OFFSET 8u
#define AT_REFERENCE 16u
#define AT_IDX 24u
#define AT_TID 28u
#define AT_CPU 32u
#define AT_PAD 36u

uint32_t aux_piece__write(uint8_t *to, enum aux_framing framing, const struct aux_piece *piece)
{
	const uint32_t head = aux_piece__head_bytes(framing);
	const uint32_t pad = (uint32_t)(-piece->bytes & (ALIGN - 1));
	const uint32_t all = head + (uint32_t)piece->bytes + pad;
	uint8_t *const body = to + head - AUX_BODY_BYTES;

	if (framing == AUX_HIDDEN) {
		walk__store(to, walk__header(WALK_FINISHED_INIT, 0, (uint16_t)all));
		walk__store(to + WALK_HEADER_BYTES, AUX_HIDDEN_MAGIC);
	} else {
		walk__store(to, walk__header(WALK_AUXTRACE, 0, AUX_AUXTRACE_BYTES));
	}
	walk__store(body + AT_SIZE, piece->bytes + pad);
	walk__store(body + AT_OFFSET, piece->offset);
	walk__store(body + AT_REFERENCE, piece->reference);
	store32(body + AT_IDX, piece->origin.idx);
	store32(body + AT_TID, piece->origin.tid);
	store32(body + AT_CPU, piece->origin.cpu);
	store32(body + AT_PAD, pad);
	memset(to + all - pad, 0, pad);
	return all;
}

bool aux_piece__read(const uint8_t *record, size_t bytes, struct aux_piece *piece, uint64_t *whole)
{
	const uint64_t header = walk__load(record);
	const uint16_t size = walk__size(header);
	const bool hidden = walk__type(header) == WALK_FINISHED_INIT;
	const uint8_t *body;
	uint64_t payload;
	uint32_t pad;

	if (size > bytes || size < (hidden ? AUX_HIDDEN_BYTES : AUX_AUXTRACE_BYTES) ||
	    (!hidden && walk__type(header) != WALK_AUXTRACE) ||
	    (hidden && walk__load(record + WALK_HEADER_BYTES) != AUX_HIDDEN_MAGIC))
		return false;
	body = record + (hidden ? AUX_HIDDEN_BYTES : AUX_AUXTRACE_BYTES) - AUX_BODY_BYTES;
	payload = walk__load(body + AT_SIZE);
	pad = load32(body + AT_PAD);
	if (payload % ALIGN != 0 || payload > UINT64_MAX - size ||
	    (hidden && payload != size - AUX_HIDDEN_BYTES))
		return false;
	/* Other recorders leave the reserved word 0, or whatever. */
	if (pad >= ALIGN || pad > payload)
		pad = 0;
	*piece = (struct aux_piece){
		.bytes = payload - pad,
		.offset = walk__load(body + AT_OFFSET),
		.reference = walk__load(body + AT_REFERENCE),
		.origin = {load32(body + AT_IDX), load32(body + AT_TID), load32(body + AT_CPU)},
	};
	*whole = hidden ? size : size + payload;
	return true;
}

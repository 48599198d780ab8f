/* SPDX-License-Identifier: Apache-2.0 */
#include "walk.h"

#include <string.h>

#define ALIGN 8u

struct body {
	uint64_t bytes, offset, reference;
	struct aux_origin origin;
	uint32_t pad;
};
_Static_assert(sizeof(struct body) == AUX_BODY_BYTES, "as in a file");

uint32_t aux_piece__write(uint8_t *to, enum aux_framing framing, const struct aux_piece *piece)
{
	const uint32_t head = aux_piece__head_bytes(framing);
	const uint32_t pad = (uint32_t)(-piece->bytes & (ALIGN - 1));
	const uint32_t all = head + (uint32_t)piece->bytes + pad;
	const struct body body = {piece->bytes + pad, piece->offset, piece->reference,
				  piece->origin, pad};

	if (framing == AUX_HIDDEN) {
		walk__store(to, walk__header(WALK_FINISHED_INIT, 0, (uint16_t)all));
		walk__store(to + WALK_HEADER_BYTES, AUX_HIDDEN_MAGIC);
	} else {
		walk__store(to, walk__header(WALK_AUXTRACE, 0, AUX_AUXTRACE_BYTES));
	}
	memcpy(to + head - sizeof(body), &body, sizeof(body));
	memset(to + all - pad, 0, pad);
	return all;
}

bool aux_piece__read(const uint8_t *record, size_t bytes, struct aux_piece *piece, uint64_t *whole)
{
	const uint64_t header = walk__load(record);
	const uint16_t size = walk__size(header);
	const bool hidden = walk__type(header) == WALK_FINISHED_INIT;
	const uint32_t head = aux_piece__head_bytes(hidden ? AUX_HIDDEN : AUX_AUXTRACE);
	struct body body;

	if (size > bytes || size < head || (!hidden && walk__type(header) != WALK_AUXTRACE) ||
	    (hidden && walk__load(record + WALK_HEADER_BYTES) != AUX_HIDDEN_MAGIC))
		return false;
	memcpy(&body, record + head - sizeof(body), sizeof(body));
	if (body.bytes % ALIGN != 0 || body.bytes > UINT64_MAX - size ||
	    (hidden && body.bytes != size - head))
		return false;
	/* Other recorders leave the reserved word 0, or write any value. */
	if (body.pad >= ALIGN || body.pad > body.bytes)
		body.pad = 0;
	*piece = (struct aux_piece){body.bytes - body.pad, body.offset, body.reference, body.origin};
	*whole = hidden ? size : size + body.bytes;
	return true;
}

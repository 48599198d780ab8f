/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "walk.h"
#include "check.h"

#define HEAD_BYTES 4u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* {u16 time offset, u16 time trailer, bytes of a file}. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct walk_layout layout = {0};
	struct walk_tally tally = {0}, again = {0};
	enum fault fault, none;
	size_t end, last, last_again;
	struct aux_piece piece;
	uint64_t whole;

	if (size < HEAD_BYTES)
		return 0;
	memcpy(&layout.time_offset, data, sizeof(layout.time_offset));
	memcpy(&layout.time_trailer, data + 2, sizeof(layout.time_trailer));
	data += HEAD_BYTES;
	size -= HEAD_BYTES;
	end = walk__file(data, size, &layout, &tally, &fault, &last);
	CHECK(end <= size && fault <= WALK_BAD_HEAD);
	CHECK(fault != FAULT_NONE || size - end < WALK_HEADER_BYTES);
	if (tally.records > 0) {
		if (walk__type(walk__load(data + last)) != WALK_AUXTRACE)
			whole = walk__size(walk__load(data + last));
		else
			CHECK(aux_piece__read(data + last, size - last, &piece, &whole));
		CHECK_EQ(last + whole, end);
	}
	CHECK(tally.aux_pieces <= tally.records && tally.aux_bytes <= end);
	CHECK_EQ(walk__file(data, end, &layout, &again, &none, &last_again), end);
	CHECK_EQ(none, FAULT_NONE);
	CHECK_EQ(last_again, last);
	CHECK_EQ(again.records, tally.records);
	return 0;
}

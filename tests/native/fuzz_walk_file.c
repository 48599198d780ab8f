/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "check.h"
#include "walk.h"

#define HEAD_BYTES 4u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* {u16 time offset, u16 time trailer, bytes of a file}. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct walk_layout layout = {0};
	struct walk_tally tally = {0}, again = {0};
	enum walk_fault fault, none;
	size_t end, last, last_again;

	if (size < HEAD_BYTES)
		return 0;
	memcpy(&layout.time_offset, data, sizeof(layout.time_offset));
	memcpy(&layout.time_trailer, data + 2, sizeof(layout.time_trailer));
	data += HEAD_BYTES;
	size -= HEAD_BYTES;
	end = walk__file(data, size, &layout, &tally, &fault, &last);
	CHECK(end <= size && fault < WALK_FAULTS);
	CHECK(fault != WALK_OK || size - end < WALK_HEADER_BYTES);
	if (tally.records > 0)
		CHECK_EQ(last + walk__size(walk__load(data + last)), end);
	CHECK_EQ(walk__file(data, end, &layout, &again, &none, &last_again), end);
	CHECK_EQ(none, WALK_OK);
	CHECK_EQ(last_again, last);
	CHECK_EQ(again.records, tally.records);
	return 0;
}

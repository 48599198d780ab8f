/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "check.h"
#include "walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEAD_BYTES 4u

/* {u16 time offset, u16 time trailer, bytes of a ring}. What is walked once stays walkable. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct walk_id ids[] = {{1, 1}, {2, 1000}, {300, 300}};
	static const struct walk_ids known = {ids, 3, true};
	struct walk_layout layout = {0};
	struct walk_tally tally = {0}, again = {0};
	enum fault fault;
	uint8_t *copy;
	size_t walked, last, at = 0;

	if (size < HEAD_BYTES)
		return 0;
	memcpy(&layout.time_offset, data, sizeof(layout.time_offset));
	memcpy(&layout.time_trailer, data + 2, sizeof(layout.time_trailer));
	if ((layout.time_offset & 1) != 0)
		layout.ids = &known;
	size -= HEAD_BYTES;
	copy = malloc(size); /* of its own size: what is behind it traps */
	CHECK(size == 0 || copy != NULL);
	if (size > 0)
		memcpy(copy, data + HEAD_BYTES, size);
	walked = walk__run(copy, size, &layout, &tally, &fault);
	CHECK(walked <= size && fault <= WALK_BAD_HEAD);
	CHECK(fault != FAULT_NONE || size - walked < 65536);
	CHECK_EQ(walk__file(copy, walked, &layout, &again, &fault, &last), walked);
	CHECK_EQ(fault, FAULT_NONE);
	CHECK_EQ(again.records, tally.records);
	CHECK_EQ(again.samples, tally.samples);
	CHECK_EQ(again.lost_records, tally.lost_records);
	for (; at < walked; at += walk__size(walk__load(copy + at)))
		walk__trailer_time(copy + at, &layout);
	CHECK_EQ(at, walked);
	free(copy);
	return 0;
}

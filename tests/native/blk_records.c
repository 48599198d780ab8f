/* SPDX-License-Identifier: Apache-2.0 */
#include "blk_records.h"

#include <string.h>

#include "walk.h"

uint32_t blk_record__put(uint8_t *to, uint32_t sequence, uint64_t time_ns, uint16_t extra)
{
	const uint32_t magic = BLK_MAGIC;
	const uint32_t action = sequence == 0 ? BLK_CLASS_NOTIFY : 7u | 1u << 22;

	memset(to, 0x5a, BLK_HEADER_BYTES + extra);
	memcpy(to, &magic, sizeof(magic));
	if (sequence != 0)
		memcpy(to + 4, &sequence, sizeof(sequence));
	memcpy(to + 8, &time_ns, sizeof(time_ns));
	memcpy(to + 28, &action, sizeof(action));
	memcpy(to + 46, &extra, sizeof(extra));
	return BLK_HEADER_BYTES + extra;
}

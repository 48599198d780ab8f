/* SPDX-License-Identifier: Apache-2.0 */
#include "mutation.h"

#include <stdatomic.h>
#include <string.h>

#include "walk.h"

size_t mutation__records(const uint8_t *records, size_t bytes, struct walk_tally *tally)
{
	static _Atomic bool done;
	size_t at = 0, last = 0;

	if (tally->samples == 0 || atomic_exchange(&done, true))
		return bytes;
	for (; at < bytes; at += walk__size(walk__load(records + at)))
		last = at;
	tally->samples--;
	tally->records--;
	return last;
}

void mutation__page(uint8_t *page, uint32_t page_bytes)
{
	static _Atomic bool done;
	struct subbuf_tally tally = {0};
	struct subbuf_walk walk;
	struct subbuf_head head;

	(void)subbuf__open(page, page_bytes, &head);
	walk = subbuf__start(&head);
	if (subbuf__run(page, head.end, &walk, &tally) != FAULT_NONE || tally.events == 0 ||
	    atomic_exchange(&done, true))
		return;
	for (uint32_t end = head.end - 4, whole = (uint32_t)tally.events; end > 16; end -= 4) {
		tally = (struct subbuf_tally){0};
		walk = subbuf__start(&head);
		if (subbuf__run(page, end, &walk, &tally) == FAULT_NONE && tally.events < whole) {
			subbuf__cut(page, end, page_bytes);
			return;
		}
	}
	subbuf__cut(page, SUBBUF_HEADER_BYTES, page_bytes);
}

uint32_t mutation__blktrace(uint8_t *data, uint32_t bytes, struct blk_tally *tally)
{
	static _Atomic bool done;
	uint16_t pdu_bytes;
	uint32_t action, size;

	for (uint32_t at = 0; at < bytes; at += size) {
		memcpy(&action, data + at + 28, sizeof(action));
		memcpy(&pdu_bytes, data + at + 46, sizeof(pdu_bytes));
		size = BLK_HEADER_BYTES + pdu_bytes;
		if ((action & BLK_CLASS_NOTIFY) != 0)
			continue;
		if (atomic_exchange(&done, true))
			return bytes;
		memmove(data + at, data + at + size, bytes - at - size);
		tally->events--;
		return bytes - size;
	}
	return bytes;
}

uint64_t mutation__aux(uint64_t bytes)
{
	static _Atomic bool done;

	return bytes <= 8 || atomic_exchange(&done, true) ? bytes : bytes - 8;
}

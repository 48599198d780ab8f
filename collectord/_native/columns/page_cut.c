/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "../walk.h"
#include "cut.h"

/* A page of some records of another page, each with the stamp that it had. A record that is left out
 * makes room for the two words that the longer way to the next one may need. */

#define DELTA_MAX ((UINT32_C(1) << SUBBUF_DELTA_BITS) - 1)
#define WIDE_BYTES (2 * SUBBUF_WORD_BYTES)
#define SHORT_BYTES_MAX (SUBBUF_WORD_BYTES * SUBBUF_TYPE_DATA_MAX)

/* Put a wide delta, or a stamp. */
static void put_wide(uint8_t *to, uint32_t type, uint64_t bits)
{
	store32(to, type | (uint32_t)(bits & DELTA_MAX) << SUBBUF_TYPE_BITS);
	store32(to + SUBBUF_WORD_BYTES, (uint32_t)(bits >> SUBBUF_DELTA_BITS));
}

/* Whether the length of a record is in its header. */
static bool is_short(const struct row *row)
{
	return row->bytes > 0 && row->bytes <= SHORT_BYTES_MAX &&
	       row->bytes % SUBBUF_WORD_BYTES == 0;
}

/* Returns the bytes of a record on a page. */
static uint64_t whole(const struct row *row)
{
	const uint64_t words = (uint64_t)row->bytes + SUBBUF_WORD_BYTES - 1;

	return (is_short(row) ? 1 : 2) * SUBBUF_WORD_BYTES +
	       words / SUBBUF_WORD_BYTES * SUBBUF_WORD_BYTES;
}

/* Put the record, `past_ns` behind the one before it. Returns its bytes. */
static uint32_t put(uint8_t *to, const struct row *row, uint32_t past_ns)
{
	const uint32_t bytes = (uint32_t)whole(row);
	const uint32_t head = (is_short(row) ? 1 : 2) * SUBBUF_WORD_BYTES;

	store32(to, past_ns << SUBBUF_TYPE_BITS);
	if (is_short(row))
		store32(to, row->bytes / SUBBUF_WORD_BYTES | past_ns << SUBBUF_TYPE_BITS);
	else
		store32(to + SUBBUF_WORD_BYTES, row->bytes + SUBBUF_WORD_BYTES);
	memcpy(to + head, row->payload, row->bytes);
	memset(to + head + row->bytes, 0, bytes - head - row->bytes);
	return bytes;
}

size_t page_cut__make(uint8_t *to, const uint8_t *page, uint32_t page_bytes,
		      const struct rows *rows, bool keeps_start)
{
	uint32_t at = SUBBUF_HEADER_BYTES;
	struct subbuf_head head;
	uint64_t now_ns;
	size_t made = 0;

	(void)subbuf__open(page, page_bytes, &head);
	now_ns = keeps_start ? head.timestamp_ns : rows->row[0].stamp_ns;
	walk__store(to, now_ns);
	for (; made < rows->count; made++) {
		const struct row *const row = &rows->row[made];
		const bool goes_back = row->stamp_ns < now_ns;
		const uint64_t past_ns = row->stamp_ns - now_ns;
		const bool is_wide = goes_back || past_ns > DELTA_MAX;

		if ((!goes_back && past_ns >> SUBBUF_STAMP_BITS != 0) ||
		    (is_wide ? WIDE_BYTES : 0) + whole(row) > page_bytes - at)
			break;
		if (is_wide) {
			put_wide(to + at,
				 goes_back ? SUBBUF_TYPE_TIME_STAMP : SUBBUF_TYPE_TIME_EXTEND,
				 goes_back ? row->stamp_ns : past_ns);
			at += WIDE_BYTES;
		}
		at += put(to + at, row, is_wide ? 0 : (uint32_t)past_ns);
		now_ns = row->stamp_ns;
	}
	if (!keeps_start)
		head = (struct subbuf_head){0};
	subbuf__end(to, at, &head, page_bytes);
	return made;
}

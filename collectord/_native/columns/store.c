/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define STORE_FIRST_BYTES 4096u
#define ESCAPED_BYTES 4u /* \xNN */

int array__grow(void *array, size_t count, size_t size)
{
	void **const at = array;
	void *more;

	if ((count & (count - 1)) != 0)
		return 0;
	more = realloc(*at, (count > 0 ? 2 * count : 1) * size);
	if (more == NULL)
		return -ENOMEM;
	*at = more;
	return 0;
}

int store__grow(struct store *store, size_t more)
{
	size_t room = store->room > 0 ? store->room : STORE_FIRST_BYTES;
	uint8_t *data;

	while (room - store->bytes < more)
		room *= 2;
	data = realloc(store->data, room);
	if (data == NULL)
		return -ENOMEM;
	store->data = data;
	store->room = room;
	return 0;
}

size_t utf8__sequence(const uint8_t *text, size_t bytes)
{
	const uint8_t first = text[0];
	const size_t size = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
	uint8_t low = 0x80, high = 0xbf;

	if (size == 1)
		return 1;
	if (first < 0xc2 || first > 0xf4 || size > bytes)
		return 0;
	/* No longer form of a short one, no surrogate, nothing behind U+10FFFF. */
	if (first == 0xe0)
		low = 0xa0;
	else if (first == 0xed)
		high = 0x9f;
	else if (first == 0xf0)
		low = 0x90;
	else if (first == 0xf4)
		high = 0x8f;
	if (text[1] < low || text[1] > high)
		return 0;
	for (size_t i = 2; i < size; i++)
		if ((text[i] & 0xc0) != 0x80)
			return 0;
	return size;
}

/* Returns how many bytes at the start of `text` are ASCII. */
static inline size_t plain(const uint8_t *text, size_t bytes)
{
	size_t at = 0;

	for (; bytes - at >= sizeof(uint64_t); at += sizeof(uint64_t)) {
		uint64_t word;

		memcpy(&word, text + at, sizeof(word));
		if ((word & UINT64_C(0x8080808080808080)) != 0)
			break;
	}
	while (at < bytes && text[at] < 0x80)
		at++;
	return at;
}

int store__put_text(struct store *store, const uint8_t *text, size_t bytes)
{
	static const char digits[] = "0123456789abcdef";
	const uint8_t *const end = bytes > 0 ? memchr(text, 0, bytes) : NULL;
	uint8_t *to;
	int ret;

	if (end != NULL)
		bytes = (size_t)(end - text);
	ret = store__reserve(store, ESCAPED_BYTES * bytes);
	if (ret < 0)
		return ret;
	to = store->data + store->bytes;
	for (size_t at = 0; at < bytes;) {
		size_t size = plain(text + at, bytes - at);

		if (size == 0)
			size = utf8__sequence(text + at, bytes - at);
		if (size > 0) {
			memcpy(to, text + at, size);
			to += size;
			at += size;
			continue;
		}
		*to++ = '\\';
		*to++ = 'x';
		*to++ = (uint8_t)digits[text[at] >> 4];
		*to++ = (uint8_t)digits[text[at] & 15];
		at++;
	}
	store->bytes = (size_t)(to - store->data);
	return 0;
}

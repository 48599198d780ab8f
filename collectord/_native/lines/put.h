/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../columns/store.h"
#include "value.h"

/* Values as text. All return -errno. */

static inline int put__bytes(struct store *out, const void *data, size_t bytes)
{
	const int ret = store__reserve(out, bytes);

	if (ret < 0)
		return ret;
	__builtin_memcpy(out->data + out->bytes, data, bytes);
	out->bytes += bytes;
	return 0;
}

/* Text for people, up to its NUL and without newlines at its end: what a terminal would act on is
 * made visible, and so are bytes that are no UTF-8. `most`: characters. */
int put__visible(struct store *out, const uint8_t *text, size_t bytes, size_t most);
int put__number(struct store *out, uint64_t number, bool is_signed);
int put__seconds(struct store *out, uint64_t stamp_ns);
/* A value as printf prints it. */
int put__printed(struct store *out, const struct value *value, uint8_t conversion, uint16_t flags,
		 uint32_t width, uint32_t precision);
int put__plain(struct store *out, const struct value *value, bool is_hex);
int put__quoted(struct store *out, const struct value *value, bool is_bool);
int put__cell(struct store *out, const struct value *value);
/* Fill what was appended since `mark` up to a width. Returns its characters, or -errno. */
int64_t put__pad(struct store *out, size_t mark, size_t width, bool is_right);

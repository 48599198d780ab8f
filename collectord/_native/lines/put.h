/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../columns/store.h"
#include "machine.h"

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

#define DIGITS_MAX 24u

/* Write the digits of a number, from `end` backwards. Returns the first one. */
uint8_t *digits__decimal(uint8_t *end, uint64_t number);
uint8_t *digits__hex(uint8_t *end, uint64_t number, bool is_upper);

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

/* Into `to`, which has room for SCRATCH_BYTES or less, `room`. Return the bytes. */
size_t made__units(uint8_t *to, size_t room, int64_t number, bool is_bytes);
size_t made__address(uint8_t *to, size_t room, const uint8_t *address, size_t bytes);
size_t made__hex(uint8_t *to, size_t room, const uint8_t *data, size_t bytes, uint8_t between);
size_t made__mask(uint8_t *to, size_t room, const uint8_t *data, size_t bytes);
size_t made__array(uint8_t *to, size_t room, const struct value *list);

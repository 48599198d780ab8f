/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "program.h"

/* A record has such a value, or a program computed or made it. */
struct value {
	uint8_t kind;
	bool is_signed;
	uint8_t element; /* bytes of a number of a list */
	uint32_t bytes;	 /* of `data` */
	union {
		uint64_t number; /* extended to 64 bits */
		double real;
	};
	const uint8_t *data;
};

static inline struct value value__of_number(uint64_t number, bool is_signed)
{
	return (struct value){.kind = VALUE_NUMBER, .is_signed = is_signed, .number = number};
}

static inline struct value value__of_word(const struct word *word)
{
	return (struct value){
		.kind = VALUE_TEXT, .bytes = word->bytes, .data = (const uint8_t *)word->data};
}

static inline bool value__has_data(const struct value *value)
{
	return value->kind >= VALUE_TEXT;
}

/* Returns a number of some bytes as one of 64 bits. */
static inline uint64_t number__extended(uint64_t number, uint8_t bytes, bool is_signed)
{
	if (bytes >= 8)
		return number;
	number &= ~(~UINT64_C(0) << 8 * bytes);
	if (is_signed && (number >> (8 * bytes - 1) & 1) != 0)
		number |= ~UINT64_C(0) << 8 * bytes;
	return number;
}

/* Returns the number of a list at an offset in its data. */
static inline uint64_t value__element(const struct value *list, size_t at)
{
	uint64_t number = 0;

	memcpy(&number, list->data + at, list->element);
	return number__extended(number, list->element, list->is_signed);
}

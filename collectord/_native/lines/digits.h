/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define DIGITS_MAX 24u

/* Write the digits of a number, from `end` backwards. Returns the first one. */
uint8_t *digits__decimal(uint8_t *end, uint64_t number);
uint8_t *digits__hex(uint8_t *end, uint64_t number, bool is_upper);

/* Write the two hexadecimal digits of a byte. Returns their end. */
static inline uint8_t *digits__byte(uint8_t *to, uint8_t byte)
{
	static const char digits[] = "0123456789abcdef";

	to[0] = (uint8_t)digits[byte >> 4];
	to[1] = (uint8_t)digits[byte & 15];
	return to + 2;
}

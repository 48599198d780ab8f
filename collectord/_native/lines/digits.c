/* SPDX-License-Identifier: Apache-2.0 */
#include "digits.h"

#include <string.h>

uint8_t *digits__decimal(uint8_t *end, uint64_t number)
{
	static const char pairs[] = "00010203040506070809101112131415161718192021222324"
				    "25262728293031323334353637383940414243444546474849"
				    "50515253545556575859606162636465666768697071727374"
				    "75767778798081828384858687888990919293949596979899";

	while (number >= 100) {
		end -= 2;
		memcpy(end, pairs + 2 * (number % 100), 2);
		number /= 100;
	}
	if (number >= 10) {
		end -= 2;
		memcpy(end, pairs + 2 * number, 2);
	} else {
		*--end = (uint8_t)('0' + number);
	}
	return end;
}

uint8_t *digits__hex(uint8_t *end, uint64_t number, bool is_upper)
{
	const char *const digits = is_upper ? "0123456789ABCDEF" : "0123456789abcdef";

	do
		*--end = (uint8_t)digits[number & 15];
	while ((number >>= 4) != 0);
	return end;
}

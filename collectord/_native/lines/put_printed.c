/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "digits.h"
#include "put.h"

/* Values as printf prints them. */

#define WIDTH_MAX 4096u

/* A number with its sign or prefix, zeros up to the precision, and spaces or zeros up to the
 * width. */
static int put_figure(struct store *out, const struct value *value, uint8_t conversion,
		      uint16_t flags, uint32_t width, uint32_t precision)
{
	uint8_t digits[DIGITS_MAX + 3], *const end = digits + sizeof(digits), *start = end;
	uint64_t number = value->number;
	const char *prefix = "";
	size_t prefix_bytes, zeros = 0, bytes, spaces;
	uint8_t *to;
	int ret;

	switch (conversion) {
	case 'd':
	case 'i':
		if ((int64_t)number < 0)
			prefix = "-";
		else if ((flags & PRINT_PLUS) != 0)
			prefix = "+";
		else if ((flags & PRINT_SPACE) != 0)
			prefix = " ";
		start = digits__decimal(end, (int64_t)number < 0 ? 0 - number : number);
		break;
	case 'x':
	case 'X':
		if ((flags & PRINT_ALTERNATE) != 0 && number != 0)
			prefix = conversion == 'x' ? "0x" : "0X";
		start = digits__hex(end, number, conversion == 'X');
		break;
	case 'o':
		do
			*--start = (uint8_t)('0' + (number & 7));
		while ((number >>= 3) != 0);
		break;
	case 'p':
		prefix = "0x";
		start = digits__hex(end, number, false);
		break;
	default:
		start = digits__decimal(end, number);
		break;
	}
	prefix_bytes = strlen(prefix);
	bytes = (size_t)(end - start);
	if ((flags & PRINT_PRECISION) != 0)
		zeros = precision > bytes ? precision - bytes : 0;
	else if ((flags & (PRINT_ZERO | PRINT_LEFT)) == PRINT_ZERO && width > bytes + prefix_bytes)
		zeros = width - bytes - prefix_bytes;
	spaces = width > prefix_bytes + zeros + bytes ? width - prefix_bytes - zeros - bytes : 0;
	ret = store__reserve(out, prefix_bytes + zeros + bytes + spaces);
	if (ret < 0)
		return ret;
	to = out->data + out->bytes;
	if ((flags & PRINT_LEFT) == 0) {
		memset(to, ' ', spaces);
		to += spaces;
	}
	memcpy(to, prefix, prefix_bytes);
	to += prefix_bytes;
	memset(to, '0', zeros);
	to += zeros;
	memcpy(to, start, bytes);
	to += bytes;
	if ((flags & PRINT_LEFT) != 0) {
		memset(to, ' ', spaces);
		to += spaces;
	}
	out->bytes = (size_t)(to - out->data);
	return 0;
}

int put__printed(struct store *out, const struct value *value, uint8_t conversion, uint16_t flags,
		 uint32_t width, uint32_t precision)
{
	const size_t mark = out->bytes;
	const uint8_t letter = (uint8_t)value->number;
	int ret;

	if (width > WIDTH_MAX)
		width = WIDTH_MAX;
	if (precision > WIDTH_MAX)
		precision = WIDTH_MAX;
	if (value->kind == VALUE_NUMBER && conversion != 'c' && conversion != 's')
		return put_figure(out, value, conversion, flags, width, precision);
	if (value->kind == VALUE_NUMBER && conversion == 'c')
		ret = put__visible(out, &letter, 1, 1);
	else if (value->kind == VALUE_TEXT)
		ret = put__visible(out, value->data, value->bytes,
				   (flags & PRINT_PRECISION) != 0 ? precision : SIZE_MAX);
	else
		ret = put__plain(out, value, true);
	if (ret == 0 && width > 0) {
		const int64_t padded = put__pad(out, mark, width, (flags & PRINT_LEFT) == 0);

		ret = padded < 0 ? (int)padded : 0;
	}
	return ret;
}

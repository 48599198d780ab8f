/* SPDX-License-Identifier: Apache-2.0 */
#include "put.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ESCAPED_BYTES 6u /* \u001b, the longest form of one byte */
#define SECOND_NS UINT64_C(1000000000)
#define PERF_CONTEXT_MIN UINT64_C(0xfffffffffffff001) /* marks in call chains are from here on */
#define WIDTH_MAX 4096u
#define MISSING "?"

static const char lower[] = "0123456789abcdef", upper[] = "0123456789ABCDEF";

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
	const char *const digits = is_upper ? upper : lower;

	do
		*--end = (uint8_t)digits[number & 15];
	while ((number >>= 4) != 0);
	return end;
}

static size_t length(const uint8_t *text, size_t bytes)
{
	const uint8_t *const end = bytes > 0 ? memchr(text, 0, bytes) : NULL;

	return end != NULL ? (size_t)(end - text) : bytes;
}

static uint8_t *escape(uint8_t *to, uint8_t byte)
{
	*to++ = '\\';
	if (byte == '\n' || byte == '\t' || byte == '\r') {
		*to++ = byte == '\n' ? 'n' : byte == '\t' ? 't' : 'r';
		return to;
	}
	*to++ = 'x';
	*to++ = (uint8_t)lower[byte >> 4];
	*to++ = (uint8_t)lower[byte & 15];
	return to;
}

static inline bool is_plain(uint8_t byte)
{
	return byte >= 0x20 && byte < 0x7f;
}

int put__visible(struct store *out, const uint8_t *text, size_t bytes, size_t most)
{
	uint8_t *to;
	int ret;

	bytes = length(text, bytes);
	while (bytes > 0 && text[bytes - 1] == '\n')
		bytes--;
	ret = store__reserve(out, ESCAPED_BYTES * bytes);
	if (ret < 0)
		return ret;
	to = out->data + out->bytes;
	for (size_t at = 0; at < bytes && most > 0; most--) {
		size_t size = 1;

		if (is_plain(text[at])) {
			*to++ = text[at++];
			continue;
		}
		size = text[at] >= 0x80 ? utf8__sequence(text + at, bytes - at) : 0;
		if (size == 0) {
			to = escape(to, text[at++]);
			continue;
		}
		memcpy(to, text + at, size);
		to += size;
		at += size;
	}
	out->bytes = (size_t)(to - out->data);
	return 0;
}

int put__number(struct store *out, uint64_t number, bool is_signed)
{
	uint8_t digits[DIGITS_MAX], *const end = digits + sizeof(digits), *start;
	const bool is_negative = is_signed && (int64_t)number < 0;

	start = digits__decimal(end, is_negative ? 0 - number : number);
	if (is_negative)
		*--start = '-';
	return put__bytes(out, start, (size_t)(end - start));
}

static int put_hex(struct store *out, uint64_t number)
{
	uint8_t digits[DIGITS_MAX], *const end = digits + sizeof(digits);
	uint8_t *start = digits__hex(end, number, false);

	*--start = 'x';
	*--start = '0';
	return put__bytes(out, start, (size_t)(end - start));
}

int put__seconds(struct store *out, uint64_t stamp_ns)
{
	uint8_t digits[DIGITS_MAX + 9], *const end = digits + sizeof(digits), *start;

	/* The 1 in front keeps the zeros of the fraction. */
	start = digits__decimal(end, SECOND_NS + stamp_ns % SECOND_NS);
	*start = '.';
	start = digits__decimal(start, stamp_ns / SECOND_NS);
	return put__bytes(out, start, (size_t)(end - start));
}

int64_t put__pad(struct store *out, size_t mark, size_t width, bool is_right)
{
	size_t characters = 0, gap;
	int ret;

	for (size_t at = mark; at < out->bytes; at++)
		characters += (out->data[at] & 0xc0) != 0x80;
	if (characters >= width)
		return (int64_t)characters;
	gap = width - characters;
	ret = store__reserve(out, gap);
	if (ret < 0)
		return ret;
	if (is_right) {
		memmove(out->data + mark + gap, out->data + mark, out->bytes - mark);
		memset(out->data + mark, ' ', gap);
	} else {
		memset(out->data + out->bytes, ' ', gap);
	}
	out->bytes += gap;
	return (int64_t)characters;
}

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

static uint64_t element_of(const struct value *list, size_t at)
{
	const uint8_t bytes = list->element;
	uint64_t number = 0;

	memcpy(&number, list->data + at, bytes);
	if (list->is_signed && bytes < 8 && (number >> (8 * bytes - 1) & 1) != 0)
		number |= ~UINT64_C(0) << 8 * bytes;
	return number;
}

/* The numbers of a list between brackets; marks in call chains are left out. */
static int put_list(struct store *out, const struct value *list, bool is_hex)
{
	int ret = put__bytes(out, "[", 1);
	bool is_first = true;

	for (size_t at = 0; ret == 0 && list->element > 0 && list->bytes - at >= list->element;
	     at += list->element) {
		const uint64_t number = element_of(list, at);

		if (list->kind == VALUE_LIST && list->number != 0 && number >= PERF_CONTEXT_MIN)
			continue;
		if (!is_first)
			ret = put__bytes(out, ",", 1);
		is_first = false;
		if (ret == 0)
			ret = is_hex ? put_hex(out, number)
				     : put__number(out, number, list->is_signed);
	}
	return ret < 0 ? ret : put__bytes(out, "]", 1);
}

static int put_digits(struct store *out, const uint8_t *data, size_t bytes)
{
	const int ret = store__reserve(out, 2 * bytes);

	if (ret < 0)
		return ret;
	for (size_t i = 0; i < bytes; i++) {
		out->data[out->bytes++] = (uint8_t)lower[data[i] >> 4];
		out->data[out->bytes++] = (uint8_t)lower[data[i] & 15];
	}
	return 0;
}

/* The shortest form that is this number again. */
static int put_real(struct store *out, double real)
{
	char text[32];

	for (int digits = 15; digits <= 17; digits++) {
		(void)snprintf(text, sizeof(text), "%.*g", digits, real);
		if (strtod(text, NULL) == real)
			break;
	}
	return put__bytes(out, text, strlen(text));
}

int put__plain(struct store *out, const struct value *value, bool is_hex)
{
	char text[32];

	switch (value->kind) {
	case VALUE_NUMBER:
		return is_hex ? put_hex(out, value->number)
			      : put__number(out, value->number, value->is_signed);
	case VALUE_FLOAT:
		(void)snprintf(text, sizeof(text), "%g", value->real);
		return put__bytes(out, text, strlen(text));
	case VALUE_TEXT:
		return put__visible(out, value->data, value->bytes, SIZE_MAX);
	case VALUE_BYTES:
		return put_digits(out, value->data, value->bytes);
	case VALUE_LIST:
		return put_list(out, value, is_hex);
	default:
		return put__bytes(out, MISSING, 1);
	}
}

/* Text in quotes of JSON, up to its NUL. */
static int put_string(struct store *out, const uint8_t *text, size_t bytes)
{
	static const char short_form[] = "\b\t\n\f\r\"\\", letter[] = "btnfr\"\\";
	uint8_t *to;
	int ret;

	bytes = length(text, bytes);
	ret = store__reserve(out, ESCAPED_BYTES * bytes + 2);
	if (ret < 0)
		return ret;
	to = out->data + out->bytes;
	*to++ = '"';
	for (size_t at = 0; at < bytes;) {
		const uint8_t byte = text[at];
		const char *const found = memchr(short_form, byte, sizeof(short_form) - 1);
		const size_t size = byte < 0x80 ? 1 : utf8__sequence(text + at, bytes - at);

		if (found != NULL) {
			*to++ = '\\';
			*to++ = (uint8_t)letter[found - short_form];
			at++;
		} else if (byte < 0x20 || byte == 0x7f ||
			   (byte == 0xc2 && size == 2 && text[at + 1] < 0xa0)) {
			/* A control character, which a terminal would obey. */
			const uint8_t code = text[at + size - 1];

			to[0] = '\\';
			to[1] = 'u';
			to[2] = to[3] = '0';
			to[4] = (uint8_t)lower[code >> 4];
			to[5] = (uint8_t)lower[code & 15];
			to += 6;
			at += size;
		} else if (size == 0) {
			*to++ = '\\';
			to = escape(to, byte);
			at++;
		} else {
			memcpy(to, text + at, size);
			to += size;
			at += size;
		}
	}
	*to++ = '"';
	out->bytes = (size_t)(to - out->data);
	return 0;
}

int put__quoted(struct store *out, const struct value *value, bool is_bool)
{
	int ret;

	switch (value->kind) {
	case VALUE_NUMBER:
		if (!is_bool)
			return put__number(out, value->number, value->is_signed);
		return value->number != 0 ? put__bytes(out, "true", 4) : put__bytes(out, "false", 5);
	case VALUE_FLOAT:
		return isfinite(value->real) ? put_real(out, value->real)
					     : put__bytes(out, "null", 4);
	case VALUE_TEXT:
		return put_string(out, value->data, value->bytes);
	case VALUE_BYTES:
		ret = put__bytes(out, "\"", 1);
		if (ret == 0)
			ret = put_digits(out, value->data, value->bytes);
		return ret == 0 ? put__bytes(out, "\"", 1) : ret;
	case VALUE_LIST:
		return put_list(out, value, false);
	default:
		return put__bytes(out, "null", 4);
	}
}

/* Text as a cell of CSV, up to its NUL; bytes that are no UTF-8 are written as \xNN. */
static int put_text_cell(struct store *out, const uint8_t *text, size_t bytes)
{
	const size_t mark = out->bytes;
	int ret = store__put_text(out, text, bytes);
	size_t quotes = 0, more;
	bool is_quoted = false;
	uint8_t *from, *to;

	if (ret < 0)
		return ret;
	for (size_t at = mark; at < out->bytes; at++) {
		quotes += out->data[at] == '"';
		is_quoted |= strchr(",\"\r\n", out->data[at]) != NULL;
	}
	if (!is_quoted)
		return 0;
	more = quotes + 2;
	ret = store__reserve(out, more);
	if (ret < 0)
		return ret;
	/* From the end, in place. */
	from = out->data + out->bytes;
	to = from + more;
	out->bytes += more;
	*--to = '"';
	while (from > out->data + mark) {
		*--to = *--from;
		if (*from == '"')
			*--to = '"';
	}
	*--to = '"';
	return 0;
}

int put__cell(struct store *out, const struct value *value)
{
	int ret;

	switch (value->kind) {
	case VALUE_TEXT:
		return put_text_cell(out, value->data, value->bytes);
	case VALUE_FLOAT:
		return put_real(out, value->real);
	case VALUE_LIST:
		ret = put__bytes(out, "\"", 1);
		if (ret == 0)
			ret = put_list(out, value, false);
		return ret == 0 ? put__bytes(out, "\"", 1) : ret;
	case VALUE_MISSING:
		return 0;
	default:
		return put__plain(out, value, false);
	}
}

size_t made__units(uint8_t *to, size_t room, int64_t number, bool is_bytes)
{
	static const char *const units[2][5] = {{"ns", "us", "ms", "s", NULL},
						{" B", " KiB", " MiB", " GiB", " TiB"}};
	const double step = is_bytes ? 1024 : 1000;
	const int last = is_bytes ? 4 : 3;
	double shown = (double)number;
	char digits[32];
	int at = 0, bytes;

	while (at < last && fabs(shown) >= step) {
		shown /= step;
		at++;
	}
	if (at == 0) {
		bytes = snprintf((char *)to, room, "%lld%s", (long long)number, units[is_bytes][0]);
	} else {
		(void)snprintf(digits, sizeof(digits), "%.4g", shown);
		if (strchr(digits, 'e') != NULL)
			(void)snprintf(digits, sizeof(digits), "%.0f", shown);
		bytes = snprintf((char *)to, room, "%s%s", digits, units[is_bytes][at]);
	}
	return bytes > 0 && (size_t)bytes < room ? (size_t)bytes : 0;
}

size_t made__address(uint8_t *to, size_t room, const uint8_t *address, size_t bytes)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
	int family = bytes == 4 ? AF_INET : AF_INET6;

	if (bytes != 4 && bytes != 16)
		return made__hex(to, room, address, bytes, 0);
	if (bytes == 16 && memcmp(address, mapped, sizeof(mapped)) == 0) {
		family = AF_INET;
		address += sizeof(mapped);
	}
	if (inet_ntop(family, address, (char *)to, (socklen_t)room) == NULL)
		return 0;
	return strlen((const char *)to);
}

size_t made__hex(uint8_t *to, size_t room, const uint8_t *data, size_t bytes, uint8_t between)
{
	size_t made = 0;

	for (size_t i = 0; i < bytes && room - made >= 3; i++) {
		if (i > 0 && between != 0)
			to[made++] = between;
		to[made++] = (uint8_t)lower[data[i] >> 4];
		to[made++] = (uint8_t)lower[data[i] & 15];
	}
	return made;
}

/* Words of 32 bits, the last one first, with commas between them: lib/vsprintf.c, bitmap_string(). */
size_t made__mask(uint8_t *to, size_t room, const uint8_t *data, size_t bytes)
{
	size_t made = 0;

	for (size_t i = bytes; i > 0 && room - made >= 3; i--) {
		if (i < bytes && i % 4 == 0)
			to[made++] = ',';
		to[made++] = (uint8_t)lower[data[i - 1] >> 4];
		to[made++] = (uint8_t)lower[data[i - 1] & 15];
	}
	return made;
}

/* {0x1,0x2}: kernel/trace/trace_output.c, trace_print_array_seq(). */
size_t made__array(uint8_t *to, size_t room, const struct value *list)
{
	uint8_t digits[DIGITS_MAX], *const end = digits + sizeof(digits);
	size_t made = 0;

	if (room < 2)
		return 0;
	to[made++] = '{';
	for (size_t at = 0;
	     list->element > 0 && list->bytes - at >= list->element && room - made > DIGITS_MAX + 4;
	     at += list->element) {
		const uint8_t *const start = digits__hex(end, element_of(list, at), false);

		if (at > 0)
			to[made++] = ',';
		to[made++] = '0';
		to[made++] = 'x';
		memcpy(to + made, start, (size_t)(end - start));
		made += (size_t)(end - start);
	}
	to[made++] = '}';
	return made;
}

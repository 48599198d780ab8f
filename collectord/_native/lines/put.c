/* SPDX-License-Identifier: Apache-2.0 */
#include "put.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digits.h"

#define ESCAPED_BYTES 6u /* \u001b, the longest form of one byte */
#define SECOND_NS UINT64_C(1000000000)
#define PERF_CONTEXT_MIN UINT64_C(0xfffffffffffff001) /* marks in call chains are from here on */
#define MISSING "?"

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
	return digits__byte(to, byte);
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

/* The numbers of a list between brackets; marks in call chains are left out. */
static int put_list(struct store *out, const struct value *list, bool is_hex)
{
	int ret = put__bytes(out, "[", 1);
	bool is_first = true;

	for (size_t at = 0; ret == 0 && list->element > 0 && list->bytes - at >= list->element;
	     at += list->element) {
		const uint64_t number = value__element(list, at);

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
	uint8_t *to;

	if (ret < 0)
		return ret;
	to = out->data + out->bytes;
	for (size_t i = 0; i < bytes; i++)
		to = digits__byte(to, data[i]);
	out->bytes += 2 * bytes;
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
			to = digits__byte(to + 4, code);
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

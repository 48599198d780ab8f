/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "column.h"

#define LOCATION_BYTES 4u
#define ESCAPED_BYTES 4u /* \xNN */

bool field__array(const struct field *field, const struct row *row, const uint8_t **start,
		  size_t *bytes)
{
	size_t at = field->offset, size = field->bytes;

	if (field->place == FIELD_INLINE) {
		/* Arrays of numbers may be cut: a record holds only as many as there were. */
		if (size == 0 || field->element > 1) {
			const size_t rest = row->bytes > at ? row->bytes - at : 0;

			size = size == 0 || size > rest ? rest : size;
		}
	} else {
		uint32_t where;

		if (row->bytes < LOCATION_BYTES || row->bytes - LOCATION_BYTES < at)
			return false;
		memcpy(&where, row->payload + at, sizeof(where));
		at = field->place == FIELD_REL_LOC ? at + LOCATION_BYTES : 0;
		at += where & 0xffff;
		size = where >> 16;
	}
	if (at > row->bytes || size > row->bytes - at)
		return false;
	*start = row->payload + at;
	*bytes = field->element > 1 ? size - size % field->element : size;
	return true;
}

/* Note where the value of the next row ends. Arrow's offsets have 31 bits; batches end long before. */
static void end_row(struct column *column)
{
	const size_t width = column->kind->width > 0 ? column->kind->width : 1;
	const int32_t end = (int32_t)(column->values.bytes / width);

	memcpy(column->offsets.data + column->offsets.bytes, &end, sizeof(end));
	column->offsets.bytes += sizeof(end);
	column->rows++;
}

/* Room for the offsets of more rows; the first one of a batch has two. */
static int reserve_offsets(struct column *column, size_t rows)
{
	const int ret = store__reserve(&column->offsets, (rows + 1) * sizeof(int32_t));

	if (ret == 0 && column->offsets.bytes == 0) {
		memset(column->offsets.data, 0, sizeof(int32_t));
		column->offsets.bytes = sizeof(int32_t);
	}
	return ret;
}

/* Returns the length of the sound UTF-8 sequence at `text`, 0 if there is none. */
static size_t sequence(const uint8_t *text, size_t bytes)
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

/* Append text up to its first NUL. Bytes that are no UTF-8 are written as \xNN. */
static inline int put_text(struct column *column, const uint8_t *text, size_t bytes)
{
	static const char digits[] = "0123456789abcdef";
	const uint8_t *const end = bytes > 0 ? memchr(text, 0, bytes) : NULL;
	uint8_t *to;
	int ret;

	if (end != NULL)
		bytes = (size_t)(end - text);
	ret = store__reserve(&column->values, ESCAPED_BYTES * bytes);
	if (ret < 0)
		return ret;
	to = column->values.data + column->values.bytes;
	for (size_t at = 0; at < bytes;) {
		size_t size = plain(text + at, bytes - at);

		if (size == 0)
			size = sequence(text + at, bytes - at);
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
	column->values.bytes = (size_t)(to - column->values.data);
	return 0;
}

static int put(struct column *column, const void *data, size_t bytes)
{
	const int ret = store__reserve(&column->values, bytes);

	if (ret < 0)
		return ret;
	if (bytes > 0)
		memcpy(column->values.data + column->values.bytes, data, bytes);
	column->values.bytes += bytes;
	return 0;
}

/* Text that is known to be sound, NULL for a null. */
static int put_known(struct column *column, const char *text, uint32_t bytes)
{
	return text == NULL ? column__set_null(column, column->rows) : put(column, text, bytes);
}

static int put_comm(struct column *column, const struct names *names, const struct row *row)
{
	uint32_t bytes = 0;
	const char *const comm = names__find(names, row->tid, &bytes);

	return put_known(column, comm, bytes);
}

static inline int put_array(struct column *column, const struct field *field, const struct row *row,
			    int (*add)(struct column *column, const uint8_t *data, size_t bytes))
{
	const uint8_t *start;
	size_t bytes;

	if (!field__array(field, row, &start, &bytes))
		return column__set_null(column, column->rows);
	return add(column, start, bytes);
}

static int put_bytes(struct column *column, const uint8_t *data, size_t bytes)
{
	return put(column, data, bytes);
}

/* Inlined for each `add`, which is called for every row. */
__attribute__((always_inline)) static inline int fill_arrays(
	struct column *column, const struct field *field, const struct rows *rows,
	int (*add)(struct column *column, const uint8_t *data, size_t bytes))
{
	int ret = reserve_offsets(column, rows->count);

	for (size_t i = 0; i < rows->count && ret == 0; i++) {
		ret = put_array(column, field, &rows->row[i], add);
		if (ret == 0)
			end_row(column);
	}
	return ret;
}

int text__fill(struct column *column, const struct field *field, const struct fill *fill)
{
	const struct rows *const rows = fill->rows;
	int ret;

	if (field->place >= FIELD_INLINE)
		return fill_arrays(column, field, rows, put_text);
	if (field->place != FIELD_COMM && field->place != FIELD_CONSTANT)
		return column__nulls(column, rows->count);
	ret = reserve_offsets(column, rows->count);
	for (size_t i = 0; i < rows->count && ret == 0; i++) {
		if (field->place == FIELD_COMM)
			ret = put_comm(column, fill->names, &rows->row[i]);
		else
			ret = put_known(column, field->text, field->text_bytes);
		if (ret == 0)
			end_row(column);
	}
	return ret;
}

int bytes__fill(struct column *column, const struct field *field, const struct fill *fill)
{
	if (field->place < FIELD_INLINE)
		return column__nulls(column, fill->rows->count);
	return fill_arrays(column, field, fill->rows, put_bytes);
}

int list__fill(struct column *column, const struct field *field, const struct fill *fill)
{
	if (field->place < FIELD_INLINE || field->element != column->kind->width)
		return column__nulls(column, fill->rows->count);
	return fill_arrays(column, field, fill->rows, put_bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "column.h"

/* The values behind those that the column has. */
static void *behind(struct column *column)
{
	return column->values.data + column->values.bytes;
}

/* Copy numbers of the payload that are as wide as the column's: a constant where it is called. */
static inline int copy_width(struct column *column, uint32_t offset, const struct rows *rows,
			     const size_t width)
{
	uint8_t *to = behind(column);

	for (size_t i = 0; i < rows->count; i++, to += width) {
		const struct row *const row = &rows->row[i];
		int ret;

		if (row->bytes >= width && row->bytes - width >= offset) {
			memcpy(to, row->payload + offset, width);
			continue;
		}
		memset(to, 0, width);
		ret = column__set_null(column, column->rows + i);
		if (ret < 0)
			return ret;
	}
	return 0;
}

/* Copy numbers that are narrower, or wider, than the column's. */
static int convert(struct column *column, const struct field *field, const struct rows *rows)
{
	const uint8_t width = column->kind->width, element = field->element;
	uint8_t *to = behind(column);

	for (size_t i = 0; i < rows->count; i++, to += width) {
		const struct row *const row = &rows->row[i];
		uint64_t value = 0;

		if (row->bytes >= element && row->bytes - element >= field->offset) {
			memcpy(&value, row->payload + field->offset, element);
			if (field->is_signed && element < 8 && (value >> (8 * element - 1) & 1) != 0)
				value |= ~UINT64_C(0) << 8 * element;
		} else {
			const int ret = column__set_null(column, column->rows + i);

			if (ret < 0)
				return ret;
		}
		memcpy(to, &value, width);
	}
	return 0;
}

static int copy(struct column *column, const struct field *field, const struct rows *rows)
{
	if (field->element != column->kind->width)
		return convert(column, field, rows);
	switch (field->element) {
	case 1:
		return copy_width(column, field->offset, rows, sizeof(uint8_t));
	case 2:
		return copy_width(column, field->offset, rows, sizeof(uint16_t));
	case 4:
		return copy_width(column, field->offset, rows, sizeof(uint32_t));
	default:
		return copy_width(column, field->offset, rows, sizeof(uint64_t));
	}
}

/* The rows say these of themselves: int32, null if it is not known. */
#define TELL(what)                                                                          \
	static int tell_##what(struct column *column, const struct rows *rows)              \
	{                                                                                   \
		int32_t *const to = behind(column);                                         \
                                                                                            \
		for (size_t i = 0; i < rows->count; i++) {                                  \
			to[i] = rows->row[i].what;                                          \
			if (to[i] == ROW_NONE) {                                            \
				const int ret = column__set_null(column, column->rows + i); \
                                                                                            \
				if (ret < 0)                                                \
					return ret;                                         \
			}                                                                   \
		}                                                                           \
		return 0;                                                                   \
	}

TELL(cpu)
TELL(pid)
TELL(tid)

/* A stamp of 0 is none. */
static int stamps(struct column *column, const struct fill *fill, bool is_utc)
{
	uint64_t *const to = behind(column);

	for (size_t i = 0; i < fill->rows->count; i++) {
		const uint64_t stamp_ns = fill->rows->row[i].stamp_ns;

		to[i] = is_utc ? (uint64_t)clocks__utc(fill->clocks, stamp_ns) : stamp_ns;
		if (stamp_ns == 0) {
			const int ret = column__set_null(column, column->rows + i);

			if (ret < 0)
				return ret;
		}
	}
	return 0;
}

/* The width that a place which is no part of the payload fills. */
static uint8_t width_of(enum field_place place)
{
	switch (place) {
	case FIELD_CPU:
	case FIELD_PID:
	case FIELD_TID:
		return 4;
	case FIELD_STAMP:
	case FIELD_UTC:
		return 8;
	default:
		return 0;
	}
}

int number__fill(struct column *column, const struct field *field, const struct fill *fill)
{
	const struct rows *const rows = fill->rows;
	const uint8_t width = column->kind->width;
	int ret;

	if (field->place == FIELD_INLINE) {
		if (field->element == 0 || field->element > 8)
			return column__nulls(column, rows->count);
	} else if (width_of(field->place) != width ||
		   (field->place == FIELD_UTC && fill->clocks->count == 0)) {
		return column__nulls(column, rows->count);
	}
	ret = store__reserve(&column->values, rows->count * width);
	if (ret < 0)
		return ret;
	switch (field->place) {
	case FIELD_STAMP:
		ret = stamps(column, fill, false);
		break;
	case FIELD_UTC:
		ret = stamps(column, fill, true);
		break;
	case FIELD_CPU:
		ret = tell_cpu(column, rows);
		break;
	case FIELD_PID:
		ret = tell_pid(column, rows);
		break;
	case FIELD_TID:
		ret = tell_tid(column, rows);
		break;
	default:
		ret = copy(column, field, rows);
		break;
	}
	column->values.bytes += rows->count * width;
	column->rows += rows->count;
	return ret;
}

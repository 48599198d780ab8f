/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "../walk.h"
#include "blktrace.h"
#include "column.h"

#define LOCATION_BYTES 4u

bool field__array(const struct field *field, const struct row *row, const uint8_t **start,
		  size_t *bytes)
{
	size_t at = field->offset, size = field->bytes;

	if (field->place == FIELD_CHAIN) {
		uint64_t count;

		at = row->loose;
		if (at == 0 || row->bytes < sizeof(count) || row->bytes - sizeof(count) < at)
			return false;
		memcpy(&count, row->payload + at, sizeof(count));
		at += sizeof(count);
		if (count > (row->bytes - at) / sizeof(count))
			return false;
		size = (size_t)count * sizeof(count);
	} else if (field->place == FIELD_TAIL) {
		at = row->loose;
		if (at == 0 || at > row->bytes)
			return false;
		size = row->bytes - at;
	} else if (field->place == FIELD_INLINE) {
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

static int put_text(struct column *column, const uint8_t *text, size_t bytes)
{
	return store__put_text(&column->values, text, bytes);
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

static int put_label(struct column *column, const struct fill *fill, const struct row *row)
{
	const bool is_known = row->label >= 0 && (size_t)row->label < fill->label_count;
	const struct label *const label = is_known ? &fill->labels[row->label] : NULL;

	return put_known(column, is_known ? label->text : NULL, is_known ? label->bytes : 0);
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

/* Returns how many bytes of a word, as it lies in memory, precede its first NUL; 8 without one. */
static inline uint32_t word_length(uint64_t word)
{
	const uint64_t low = UINT64_C(0x0101010101010101), high = low << 7;
	const uint64_t nuls = (word - low) & ~word & high;

	return nuls == 0 ? 8 : (uint32_t)__builtin_ctzll(nuls) / 8;
}

/* Texts in an array of SHORT_BYTES, as names of tasks are: nearly all of them are ASCII, and are
 * copied whole. */
#define SHORT_BYTES 16u
static int fill_short_texts(struct column *column, const struct field *field,
			    const struct rows *rows)
{
	struct store *const values = &column->values;
	int ret = reserve_offsets(column, rows->count);

	if (ret == 0)
		ret = store__reserve(values, rows->count * SHORT_BYTES);
	for (size_t i = 0; i < rows->count && ret == 0; i++) {
		const struct row *const row = &rows->row[i];
		const uint8_t *const text = row->payload + field->offset;
		uint64_t words[2];

		if (row->bytes < SHORT_BYTES || row->bytes - SHORT_BYTES < field->offset) {
			ret = column__set_null(column, column->rows);
		} else {
			memcpy(words, text, sizeof(words));
			if (((words[0] | words[1]) & UINT64_C(0x8080808080808080)) != 0) {
				ret = store__put_text(values, text, SHORT_BYTES);
				/* The others need their room, as this one may have taken more. */
				if (ret == 0)
					ret = store__reserve(values,
							     (rows->count - i) * SHORT_BYTES);
			} else {
				const uint32_t first = word_length(words[0]);

				memcpy(values->data + values->bytes, words, sizeof(words));
				values->bytes += first < 8 ? first : 8 + word_length(words[1]);
			}
		}
		end_row(column);
	}
	return ret;
}

/* A few threads make most records of a piece. */
#define RECENT_TASKS 16u

/* Returns the thread whose name is wanted, ROW_NONE if the row does not tell. */
static int32_t thread_of(const struct field *field, const struct row *row)
{
	if (field->place == FIELD_COMM)
		return row->tid;
	if (row->bytes < sizeof(uint32_t) || row->bytes - sizeof(uint32_t) < field->offset)
		return ROW_NONE;
	return (int32_t)load32(row->payload + field->offset);
}

static int fill_comms(struct column *column, const struct field *field, const struct names *names,
		      const struct rows *rows)
{
	struct store *const values = &column->values;
	struct named recent[RECENT_TASKS];
	int ret = reserve_offsets(column, rows->count);

	for (size_t i = 0; i < RECENT_TASKS; i++)
		recent[i] = (struct named){.tid = ROW_NONE};

	for (size_t i = 0; i < rows->count && ret == 0; i++) {
		const struct row *const row = &rows->row[i];

		const int32_t tid = thread_of(field, row);
		struct named *const name = &recent[(uint32_t)tid % RECENT_TASKS];

		if (tid != name->tid || row->stamp_ns < name->since_ns ||
		    row->stamp_ns > name->until_ns)
			*name = names__find(names, tid, row->stamp_ns);
		if (name->text == NULL) {
			ret = column__set_null(column, column->rows);
		} else if (name->bytes <= NAME_SLACK_BYTES) {
			ret = store__reserve(values, NAME_SLACK_BYTES);
			if (ret == 0)
				memcpy(values->data + values->bytes, name->text, NAME_SLACK_BYTES);
			values->bytes += name->bytes;
		} else {
			ret = put(column, name->text, name->bytes);
		}
		end_row(column);
	}
	return ret;
}

/* Returns the bytes of the text that is made of a row, 0 if it has none. */
static size_t make_text(const struct field *field, const struct row *row, char *text)
{
	uint32_t device;

	if (field->place == FIELD_RWBS)
		return blk__rwbs(row->payload, row->bytes, text);
	if (row->bytes < sizeof(device) || row->bytes - sizeof(device) < field->offset)
		return 0;
	memcpy(&device, row->payload + field->offset, sizeof(device));
	return device__text(device, text);
}

static int fill_made(struct column *column, const struct field *field, const struct rows *rows)
{
	int ret = reserve_offsets(column, rows->count);

	for (size_t i = 0; i < rows->count && ret == 0; i++) {
		char text[DEVICE_TEXT_MAX];
		const size_t bytes = make_text(field, &rows->row[i], text);

		ret = put_known(column, bytes > 0 ? text : NULL, (uint32_t)bytes);
		if (ret == 0)
			end_row(column);
	}
	return ret;
}

/* Returns where a row has the id of its cgroup, NULL if it has none. */
static const uint8_t *cgroup_id(const struct field *field, const struct row *row)
{
	if (field->offset == 0)
		return row->loose != 0 ? row->payload + row->loose : NULL;
	if (field->offset < sizeof(uint64_t) || field->offset > row->bytes)
		return NULL;
	return row->payload + row->bytes - field->offset;
}

static int fill_cgroups(struct column *column, const struct field *field,
			const struct cgroups *cgroups, const struct rows *rows)
{
	const struct cgroup *cgroup = NULL; /* of the last row that has one */
	uint64_t last = 0;
	int ret = reserve_offsets(column, rows->count);

	for (size_t i = 0; i < rows->count && ret == 0; i++) {
		const uint8_t *const at = cgroup_id(field, &rows->row[i]);
		uint64_t id = 0;

		if (at != NULL)
			memcpy(&id, at, sizeof(id));
		if (id != last)
			cgroup = cgroups__find(cgroups, id);
		last = id;
		if (at == NULL || cgroup == NULL)
			ret = column__set_null(column, column->rows);
		else
			ret = put(column, cgroups->text.data + cgroup->at, cgroup->bytes);
		if (ret == 0)
			end_row(column);
	}
	return ret;
}

int text__fill(struct column *column, const struct field *field, const struct fill *fill)
{
	const struct rows *const rows = fill->rows;
	int ret;

	if (field->place == FIELD_INLINE && field->bytes == SHORT_BYTES && field->element <= 1)
		return fill_short_texts(column, field, rows);
	if (field->place >= FIELD_INLINE)
		return fill_arrays(column, field, rows, put_text);
	if (field->place == FIELD_COMM || field->place == FIELD_COMM_OF)
		return fill_comms(column, field, fill->names, rows);
	if (field->place < FIELD_COMM)
		return column__nulls(column, rows->count);
	if (field->place == FIELD_CGROUP && fill->cgroups == NULL)
		return column__nulls(column, rows->count);
	if (field->place == FIELD_CGROUP)
		return fill_cgroups(column, field, fill->cgroups, rows);
	if (field->place == FIELD_RWBS || field->place == FIELD_DEVICE)
		return fill_made(column, field, rows);
	ret = reserve_offsets(column, rows->count);
	for (size_t i = 0; i < rows->count && ret == 0; i++) {
		if (field->place == FIELD_LABEL)
			ret = put_label(column, fill, &rows->row[i]);
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

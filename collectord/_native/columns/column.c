/* SPDX-License-Identifier: Apache-2.0 */
#include "column.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER(called, told, bytes)                                                          \
	{.name = (called), .format = (told), .width = (bytes), .fill = number__fill},        \
	{                                                                                    \
		.name = "list_" called, .format = (told), .width = (bytes), .is_list = true, \
		.has_offsets = true, .fill = list__fill                                      \
	}

static const struct column_kind kinds[] = {
	NUMBER("i8", "c", 1),
	NUMBER("u8", "C", 1),
	NUMBER("i16", "s", 2),
	NUMBER("u16", "S", 2),
	NUMBER("i32", "i", 4),
	NUMBER("u32", "I", 4),
	NUMBER("i64", "l", 8),
	NUMBER("u64", "L", 8),
	NUMBER("f32", "f", 4),
	NUMBER("f64", "g", 8),
	{.name = "time", .format = "tsn:", .width = 8, .fill = number__fill},
	{.name = "text", .format = "u", .has_offsets = true, .fill = text__fill},
	{.name = "bytes", .format = "z", .has_offsets = true, .fill = bytes__fill},
};

const struct column_kind *column_kind__find(const char *name)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (strcmp(kinds[i].name, name) == 0)
			return &kinds[i];
	return NULL;
}

/* Make the bits of validity those of `rows` rows; new ones are valid. */
static int cover(struct column *column, size_t rows)
{
	const size_t bytes = (rows + 7) / 8, before = column->valid.bytes;
	int ret;

	if (bytes <= before)
		return 0;
	ret = store__reserve(&column->valid, bytes - before);
	if (ret < 0)
		return ret;
	memset(column->valid.data + before, 0xff, bytes - before);
	column->valid.bytes = bytes;
	return 0;
}

int column__set_null(struct column *column, size_t at)
{
	const int ret = cover(column, at + 1);

	if (ret < 0)
		return ret;
	column->valid.data[at / 8] &= (uint8_t)~(1u << at % 8);
	column->nulls++;
	return 0;
}

/* Clear the bits of validity of `count` rows from `at` on. */
static void clear(uint8_t *valid, size_t at, size_t count)
{
	for (; count > 0 && at % 8 != 0; at++, count--)
		valid[at / 8] &= (uint8_t)~(1u << at % 8);
	memset(valid + at / 8, 0, count / 8);
	for (at += count - count % 8, count %= 8; count > 0; at++, count--)
		valid[at / 8] &= (uint8_t)~(1u << at % 8);
}

int column__nulls(struct column *column, size_t count)
{
	const size_t width = column->kind->has_offsets ? sizeof(int32_t) : column->kind->width;
	struct store *const store = column->kind->has_offsets ? &column->offsets : &column->values;
	int ret = store__reserve(store, (count + 1) * width);

	if (ret == 0)
		ret = cover(column, column->rows + count);
	if (ret < 0 || count == 0)
		return ret;
	if (column->kind->has_offsets && store->bytes == 0) {
		memset(store->data, 0, width);
		store->bytes = width;
	}
	if (column->kind->has_offsets) {
		for (size_t i = 0; i < count; i++, store->bytes += width)
			memcpy(store->data + store->bytes, store->data + store->bytes - width,
			       width);
	} else {
		memset(store->data + store->bytes, 0, count * width);
		store->bytes += count * width;
	}
	clear(column->valid.data, column->rows, count);
	column->rows += count;
	column->nulls += count;
	return 0;
}

static void release_schema(struct ArrowSchema *schema)
{
	for (int64_t i = 0; i < schema->n_children; i++) {
		struct ArrowSchema *const child = schema->children[i];

		if (child->release != NULL)
			child->release(child);
		free(child);
	}
	free(schema->children);
	free(schema->private_data); /* the name */
	schema->release = NULL;
}

int column__schema(const struct column *column, struct ArrowSchema *schema)
{
	const struct column_kind *const kind = column->kind;
	char *const name = strdup(column->name);

	if (name == NULL)
		return -ENOMEM;
	*schema = (struct ArrowSchema){
		.format = kind->is_list ? "+l" : kind->format,
		.name = name,
		.flags = ARROW_FLAG_NULLABLE,
		.release = release_schema,
		.private_data = name,
	};
	if (!kind->is_list)
		return 0;
	schema->children = malloc(sizeof(*schema->children));
	if (schema->children != NULL)
		schema->children[0] = malloc(sizeof(*schema->children[0]));
	if (schema->children == NULL || schema->children[0] == NULL) {
		schema->release(schema);
		return -ENOMEM;
	}
	schema->n_children = 1;
	*schema->children[0] = (struct ArrowSchema){
		.format = kind->format,
		.name = "item",
		.release = release_schema,
	};
	return 0;
}

/* An array owns this: its buffers, which were a column's stores, and the slots that they go to. */
struct owned {
	const void *buffers[3];
	struct store stores[3];
	size_t slots[3];
	struct spares *spares;
	struct ArrowArray *children[1];
	struct ArrowArray child;
};

static void release_array(struct ArrowArray *array)
{
	struct owned *const owned = array->private_data;

	for (int64_t i = 0; i < array->n_buffers; i++)
		if (owned->stores[i].data != NULL)
			spares__put(owned->spares, owned->slots[i], owned->stores[i]);
	if (array->n_children > 0 && owned->child.release != NULL)
		owned->child.release(&owned->child);
	spares__drop(owned->spares);
	free(owned);
	array->release = NULL;
}

/* Begin an array of numbers, or of anything; it owns nothing yet. */
static int begin(const struct column *column, struct ArrowArray *array, size_t rows)
{
	struct owned *const owned = calloc(1, sizeof(*owned));

	if (owned == NULL)
		return -ENOMEM;
	owned->spares = spares__hold(column->spares);
	*array = (struct ArrowArray){
		.length = (int64_t)rows,
		.buffers = owned->buffers,
		.release = release_array,
		.private_data = owned,
	};
	return 0;
}

enum { SLOT_VALID, SLOT_OFFSETS, SLOT_VALUES, SLOTS };
_Static_assert(SLOTS == SPARES_EACH, "a slot for each store");

/* Give the memory of a store to the next buffer of an array. */
static void give(struct ArrowArray *array, struct store *store, size_t slot)
{
	struct owned *const owned = array->private_data;
	const int64_t at = array->n_buffers++;

	array->buffers[at] = store->data;
	owned->stores[at] = *store;
	owned->slots[at] = slot;
	*store = (struct store){0};
}

void column__begin(struct column *column)
{
	struct store *const stores[SLOTS] = {&column->valid, &column->offsets, &column->values};

	for (size_t i = 0; i < SLOTS; i++)
		if (stores[i]->data == NULL)
			spares__take(column->spares, column->slot + i, stores[i]);
}

int column__export(struct column *column, struct ArrowArray *array)
{
	const struct column_kind *const kind = column->kind;
	struct store none = {0};
	struct owned *owned;
	int ret = column->nulls > 0 ? cover(column, column->rows) : 0;

	/* An empty buffer is there nevertheless: not everybody takes NULL. */
	if (ret == 0)
		ret = store__reserve(&column->values, 1);
	if (ret == 0 && kind->has_offsets && column->offsets.bytes == 0)
		ret = store__reserve(&column->offsets, sizeof(int32_t));
	if (ret < 0)
		return ret;
	if (kind->has_offsets && column->offsets.bytes == 0)
		memset(column->offsets.data, 0, sizeof(int32_t));
	ret = begin(column, array, column->rows);
	if (ret < 0)
		return ret;
	array->null_count = (int64_t)column->nulls;
	give(array, column->nulls > 0 ? &column->valid : &none, column->slot + SLOT_VALID);
	if (kind->has_offsets)
		give(array, &column->offsets, column->slot + SLOT_OFFSETS);
	owned = array->private_data;
	if (kind->is_list) {
		ret = begin(column, &owned->child, column->values.bytes / kind->width);
		if (ret < 0) {
			array->release(array);
			return ret;
		}
		give(&owned->child, &none, 0);
		give(&owned->child, &column->values, column->slot + SLOT_VALUES);
		owned->children[0] = &owned->child;
		array->children = owned->children;
		array->n_children = 1;
	} else {
		give(array, &column->values, column->slot + SLOT_VALUES);
	}
	column->rows = column->nulls = 0;
	return 0;
}

void column__deinit(struct column *column)
{
	free(column->name);
	free(column->valid.data);
	free(column->offsets.data);
	free(column->values.data);
	*column = (struct column){0};
}

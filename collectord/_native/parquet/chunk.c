/* SPDX-License-Identifier: Apache-2.0 */
#include "chunk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bits.h"
#include "levels.h"

#define WORD_BYTES 8u

static bool is_float(const struct column_kind *kind)
{
	return kind->format[0] == 'f' || kind->format[0] == 'g';
}

/* Formats of Arrow: capitals are unsigned. */
static bool is_signed(const struct column_kind *kind)
{
	return kind->format[0] >= 'a';
}

static bool is_text(const struct column_kind *kind)
{
	return kind->width == 0;
}

/* Widen a number as its kind says. */
static inline uint64_t widened(const uint8_t *data, size_t width, bool has_sign)
{
	const unsigned past = (unsigned)(WORD_BYTES - width) * 8;
	uint64_t word = 0;

	memcpy(&word, data, width);
	if (has_sign)
		return (uint64_t)((int64_t)(word << past) >> past);
	return word;
}

static inline size_t widen(const struct column *column, uint64_t *to, size_t count,
			   const size_t width)
{
	const bool has_sign = is_signed(column->kind) && !is_float(column->kind);
	const uint8_t *from = column->values.data;
	size_t found = 0;

	if (column->nulls == 0 || column->kind->is_list) {
		for (size_t i = 0; i < count; i++, from += width)
			to[i] = widened(from, width, has_sign);
		return count;
	}
	for (size_t i = 0; i < count; i++, from += width)
		if (column__is_valid(column, i))
			to[found++] = widened(from, width, has_sign);
	return found;
}

/* Take the numbers of a column that are not null. Returns their number, or -errno. */
static int64_t take_numbers(struct chunk_maker *maker, const struct column *column)
{
	const size_t width = column->kind->width, count = column->values.bytes / width;
	uint64_t *to;
	int ret;

	maker->words.bytes = 0;
	ret = store__reserve(&maker->words, (count + 1) * sizeof(*to));
	if (ret < 0)
		return ret;
	to = (uint64_t *)(void *)maker->words.data;
	switch (width) {
	case 1:
		return (int64_t)widen(column, to, count, 1);
	case 2:
		return (int64_t)widen(column, to, count, 2);
	case 4:
		return (int64_t)widen(column, to, count, 4);
	default:
		return (int64_t)widen(column, to, count, 8);
	}
}

static int put_plain(struct store *store, const uint64_t *number, size_t count, unsigned width)
{
	const int ret = store__reserve(store, count * width);

	if (ret < 0)
		return ret;
	for (size_t i = 0; i < count; i++)
		memcpy(store->data + store->bytes + i * width, &number[i], width);
	store->bytes += count * width;
	return 0;
}

/* Tell the smallest and the largest of some numbers. */
static void tell_numbers(struct chunk *chunk, const struct column_kind *kind,
			 const uint64_t *number, size_t count)
{
	const uint64_t flip = is_signed(kind) ? UINT64_C(1) << 63 : 0;
	uint64_t least = UINT64_MAX, most = 0;

	if (count == 0 || is_float(kind))
		return;
	for (size_t i = 0; i < count; i++) {
		const uint64_t one = number[i] ^ flip;

		least = one < least ? one : least;
		most = one > most ? one : most;
	}
	least ^= flip;
	most ^= flip;
	chunk->is_told = true;
	chunk->least_bytes = chunk->most_bytes = chunk__width(kind);
	memcpy(chunk->least, &least, sizeof(least));
	memcpy(chunk->most, &most, sizeof(most));
}

/* Append the numbers of values in the dictionary. */
static int put_indices(struct chunk *chunk, const uint32_t *index, size_t count)
{
	unsigned width = bits__width(chunk->entries - 1);
	int ret = store__reserve(&chunk->data, 1);

	width = width > 0 ? width : 1;
	if (ret < 0)
		return ret;
	chunk->data.data[chunk->data.bytes++] = (uint8_t)width;
	chunk->encoding = ENCODING_DICTIONARY;
	return bits__runs(&chunk->data, index, count, width);
}

/* Find the number of each value. Returns 1, 0 if there are too many values for a dictionary, or -errno;
 * `entry` receives the values. */
static int number_values(struct chunk_maker *maker, const uint64_t *number, size_t count,
			 uint32_t *index, uint64_t *entry)
{
	struct dictionary *const dictionary = &maker->dictionary;
	uint64_t last = 0;
	uint32_t found = 0;
	int ret = dictionary__begin(dictionary, count);

	if (ret < 0)
		return ret;
	for (size_t i = 0; i < count; i++) {
		struct value_key key;
		struct dictionary_slot *slot;

		if (i > 0 && number[i] == last) {
			index[i] = found;
			continue;
		}
		key = (struct value_key){.word = {number[i]}};
		slot = dictionary__find(dictionary, &key, NULL, NULL);
		found = slot->number - 1;
		if (slot->number == 0) {
			found = dictionary__add(dictionary, slot, &key);
			if (found == DICTIONARY_FULL)
				return 0;
			entry[found] = number[i];
		}
		index[i] = found;
		last = number[i];
	}
	/* A dictionary of values that are hardly ever used twice is larger than they are. */
	return 2 * dictionary->count <= count || count == 1;
}

static int put_numbers(struct chunk *chunk, struct chunk_maker *maker, const struct column *column)
{
	const unsigned width = chunk__width(column->kind);
	const int64_t taken = take_numbers(maker, column);
	const size_t count = taken > 0 ? (size_t)taken : 0;
	const uint64_t *const number = (const uint64_t *)(const void *)maker->words.data;
	uint64_t entry[DICTIONARY_MAX] = {0};
	uint32_t *index;
	int ret;

	if (taken <= 0)
		return (int)taken;
	maker->indices.bytes = 0;
	ret = store__reserve(&maker->indices, count * sizeof(*index));
	if (ret < 0)
		return ret;
	index = (uint32_t *)(void *)maker->indices.data;
	ret = number_values(maker, number, count, index, entry);
	if (ret < 0)
		return ret;
	if (ret > 0) {
		chunk->entries = maker->dictionary.count;
		if (!column->kind->is_list)
			tell_numbers(chunk, column->kind, entry, chunk->entries);
		ret = put_plain(&chunk->dictionary, entry, chunk->entries, width);
		return ret == 0 ? put_indices(chunk, index, count) : ret;
	}
	if (!column->kind->is_list)
		tell_numbers(chunk, column->kind, number, count);
	if (is_float(column->kind))
		return put_plain(&chunk->data, number, count, width);
	chunk->encoding = ENCODING_DELTA;
	return bits__delta(&chunk->data, number, count, width);
}

static int put_text(struct store *store, const uint8_t *text, uint32_t bytes)
{
	const int ret = store__reserve(store, sizeof(bytes) + bytes);

	if (ret < 0)
		return ret;
	memcpy(store->data + store->bytes, &bytes, sizeof(bytes));
	if (bytes > 0)
		memcpy(store->data + store->bytes + sizeof(bytes), text, bytes);
	store->bytes += sizeof(bytes) + bytes;
	return 0;
}

/* Returns the words of a text, behind which 16 bytes may be read. */
static inline struct value_key key_of(const uint8_t *text, uint32_t bytes)
{
	struct value_key key = {.bytes = bytes};

	if (bytes > DICTIONARY_WORDS_BYTES) {
		key.word[0] = XXH3_64bits(text, bytes);
		return key;
	}
	memcpy(key.word, text, sizeof(key.word));
	if (bytes <= WORD_BYTES) {
		key.word[0] &= bytes == WORD_BYTES ? UINT64_MAX : (UINT64_C(1) << 8 * bytes) - 1;
		key.word[1] = 0;
	} else if (bytes < DICTIONARY_WORDS_BYTES) {
		key.word[1] &= (UINT64_C(1) << 8 * (bytes - WORD_BYTES)) - 1;
	}
	return key;
}

static int compare(const uint8_t *a, uint32_t a_bytes, const uint8_t *b, uint32_t b_bytes)
{
	const int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);

	return order != 0 ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

/* Tell the smallest and the largest text of the dictionary, if none is long. */
static void tell_texts(struct chunk *chunk, const struct dictionary *dictionary)
{
	const uint8_t *least = NULL, *most = NULL;
	uint32_t least_bytes = 0, most_bytes = 0;

	for (size_t i = 0; i < dictionary->count; i++) {
		const uint8_t *const at = chunk->dictionary.data + dictionary->at[i];
		const uint8_t *const text = at + sizeof(uint32_t);
		uint32_t bytes;

		memcpy(&bytes, at, sizeof(bytes));
		if (bytes > CHUNK_TOLD_MAX)
			return;
		if (least == NULL || compare(text, bytes, least, least_bytes) < 0) {
			least = text;
			least_bytes = bytes;
		}
		if (most == NULL || compare(text, bytes, most, most_bytes) > 0) {
			most = text;
			most_bytes = bytes;
		}
	}
	if (least == NULL)
		return;
	chunk->is_told = true;
	chunk->least_bytes = least_bytes;
	chunk->most_bytes = most_bytes;
	memcpy(chunk->least, least, least_bytes);
	memcpy(chunk->most, most, most_bytes);
}

/* Find the number of each text, which are put into the dictionary. Returns 1, 0 if there are too many, or
 * -errno. */
static int number_texts(struct chunk *chunk, struct chunk_maker *maker, const struct column *column,
			uint32_t *index, size_t *count)
{
	struct dictionary *const dictionary = &maker->dictionary;
	struct value_key last = {0};
	uint32_t found = DICTIONARY_FULL;
	int ret = dictionary__begin(dictionary, column->rows);

	*count = 0;
	for (size_t row = 0; row < column->rows && ret == 0; row++) {
		const int32_t at = column__offset(column, row);
		const uint32_t bytes = (uint32_t)(column__offset(column, row + 1) - at);
		const uint8_t *const text = column->values.data + at;
		const bool is_long = bytes > DICTIONARY_WORDS_BYTES;
		struct value_key key;
		struct dictionary_slot *slot;

		if (!column__is_valid(column, row))
			continue;
		key = key_of(text, bytes);
		if (found != DICTIONARY_FULL && !is_long && key.word[0] == last.word[0] &&
		    key.word[1] == last.word[1] && key.bytes == last.bytes) {
			index[(*count)++] = found;
			continue;
		}
		slot = dictionary__find(dictionary, &key, is_long ? text : NULL,
					chunk->dictionary.data);
		found = slot->number - 1;
		if (slot->number == 0) {
			found = dictionary__add(dictionary, slot, &key);
			if (found == DICTIONARY_FULL)
				return 0;
			dictionary->at[found] = (uint32_t)chunk->dictionary.bytes;
			ret = put_text(&chunk->dictionary, text, bytes);
		}
		index[(*count)++] = found;
		last = key;
	}
	if (ret < 0)
		return ret;
	return 2 * dictionary->count <= *count || *count <= 1;
}

static int put_texts(struct chunk *chunk, struct chunk_maker *maker, struct column *column)
{
	size_t count;
	uint32_t *index;
	/* Words are read behind the end. */
	int ret = store__reserve(&column->values, DICTIONARY_WORDS_BYTES);

	maker->indices.bytes = 0;
	if (ret == 0)
		ret = store__reserve(&maker->indices, (column->rows + 1) * sizeof(*index));
	if (ret < 0)
		return ret;
	memset(column->values.data + column->values.bytes, 0, DICTIONARY_WORDS_BYTES);
	index = (uint32_t *)(void *)maker->indices.data;
	ret = number_texts(chunk, maker, column, index, &count);
	if (ret < 0 || (ret > 0 && count == 0))
		return ret < 0 ? ret : 0;
	if (ret > 0) {
		chunk->entries = maker->dictionary.count;
		tell_texts(chunk, &maker->dictionary);
		return put_indices(chunk, index, count);
	}
	chunk->dictionary.bytes = 0;
	ret = store__reserve(&chunk->data, column->values.bytes + column->rows * sizeof(uint32_t));
	for (size_t row = 0; row < column->rows && ret == 0; row++) {
		const int32_t at = column__offset(column, row);

		if (column__is_valid(column, row))
			ret = put_text(&chunk->data, column->values.data + at,
				       (uint32_t)(column__offset(column, row + 1) - at));
	}
	return ret;
}

int chunk__make(struct chunk *chunk, struct chunk_maker *maker, struct column *column)
{
	const struct column_kind *const kind = column->kind;
	int ret;

	chunk->dictionary.bytes = chunk->data.bytes = 0;
	chunk->entries = 0;
	chunk->encoding = ENCODING_PLAIN;
	chunk->is_told = false;
	chunk->nulls = column->nulls;
	ret = levels__put(&chunk->data, column, &maker->levels, &chunk->values);
	if (ret < 0)
		return ret;
	return is_text(kind) ? put_texts(chunk, maker, column) : put_numbers(chunk, maker, column);
}

void chunk__deinit(struct chunk *chunk)
{
	free(chunk->dictionary.data);
	free(chunk->data.data);
	*chunk = (struct chunk){0};
}

void chunk_maker__deinit(struct chunk_maker *maker)
{
	dictionary__deinit(&maker->dictionary);
	free(maker->words.data);
	free(maker->indices.data);
	free(maker->levels.data);
	*maker = (struct chunk_maker){0};
}

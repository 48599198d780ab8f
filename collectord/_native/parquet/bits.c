/* SPDX-License-Identifier: Apache-2.0 */
#include "bits.h"

#include <string.h>

#define VARINT_BYTES 10u
#define GROUP 8u     /* numbers are packed in groups of so many */
#define LONG_RUN 16u /* a shorter one is packed with its neighbours */
#define BLOCK 128u   /* differences that share the smallest one */
#define PART 32u     /* of a block: differences of one width */
#define PARTS (BLOCK / PART)

/* Append a number where there is room. */
static void put_varint(struct store *store, uint64_t number)
{
	for (; number >= 0x80; number >>= 7)
		store->data[store->bytes++] = (uint8_t)(number | 0x80);
	store->data[store->bytes++] = (uint8_t)number;
}

static uint64_t zigzag(int64_t number)
{
	return (uint64_t)number << 1 ^ (uint64_t)(number >> 63);
}

int bits__varint(struct store *store, uint64_t number)
{
	const int ret = store__reserve(store, VARINT_BYTES);

	if (ret == 0)
		put_varint(store, number);
	return ret;
}

/* A number that fits into `width` bits, which may be up to 64, goes behind those before it. */
struct packer {
	uint8_t *to;
	uint64_t word;
	unsigned used; /* bits of it */
};

static inline void pack(struct packer *packer, uint64_t number, unsigned width)
{
	packer->word |= number << packer->used;
	packer->used += width;
	if (packer->used < 64)
		return;
	memcpy(packer->to, &packer->word, sizeof(packer->word));
	packer->to += sizeof(packer->word);
	packer->used -= 64;
	packer->word = packer->used > 0 ? number >> (width - packer->used) : 0;
}

/* Write what is left, which is whole bytes. */
static uint8_t *end(struct packer *packer)
{
	const size_t bytes = (packer->used + 7) / 8;

	memcpy(packer->to, &packer->word, bytes);
	return packer->to + bytes;
}

/* Pack numbers in whole groups, the last of them filled with zeros. */
static int put_packed(struct store *store, const uint32_t *number, size_t count, unsigned width)
{
	const size_t groups = (count + GROUP - 1) / GROUP;
	int ret = bits__varint(store, (uint64_t)groups << 1 | 1);
	struct packer packer;

	if (ret == 0)
		ret = store__reserve(store, groups * width + sizeof(uint64_t));
	if (ret < 0)
		return ret;
	packer = (struct packer){.to = store->data + store->bytes};
	for (size_t i = 0; i < count; i++)
		pack(&packer, number[i], width);
	for (size_t i = count; i < groups * GROUP; i++)
		pack(&packer, 0, width);
	(void)end(&packer);
	store->bytes += groups * width;
	return 0;
}

/* Returns how many numbers from the first one on are equal, up to `most`. */
static size_t run_of(const uint32_t *number, size_t most)
{
	size_t count = 1;

	while (count < most && number[count] == number[0])
		count++;
	return count;
}

static int put_run(struct store *store, uint32_t number, size_t count, unsigned width)
{
	const size_t bytes = (width + 7) / 8;
	const int ret = store__reserve(store, VARINT_BYTES + bytes);

	if (ret < 0)
		return ret;
	put_varint(store, (uint64_t)count << 1);
	memcpy(store->data + store->bytes, &number, bytes);
	store->bytes += bytes;
	return 0;
}

int bits__runs(struct store *store, const uint32_t *number, size_t count, unsigned width)
{
	size_t at = 0;
	int ret = 0;

	while (at < count && ret == 0) {
		const size_t run = run_of(number + at, count - at);
		const size_t start = at;

		if (run >= LONG_RUN || run == count - at) {
			ret = put_run(store, number[at], run, width);
			at += run;
			continue;
		}
		do
			at += GROUP;
		while (at < count &&
		       (count - at < LONG_RUN || run_of(number + at, LONG_RUN) < LONG_RUN));
		at = at < count ? at : count;
		ret = put_packed(store, number + start, at - start, width);
	}
	return ret;
}

int bits__run(struct store *store, uint8_t number, size_t count)
{
	return put_run(store, number, count, GROUP);
}

int bits__bitmap(struct store *store, const uint8_t *bitmap, size_t bytes, size_t count)
{
	const size_t groups = (count + GROUP - 1) / GROUP;
	int ret = bits__varint(store, (uint64_t)groups << 1 | 1);

	if (ret == 0)
		ret = store__reserve(store, groups);
	if (ret < 0)
		return ret;
	bytes = bytes < groups ? bytes : groups;
	memset(store->data + store->bytes, 0xff, groups);
	if (bytes > 0)
		memcpy(store->data + store->bytes, bitmap, bytes);
	store->bytes += groups;
	return 0;
}

/* Returns the difference of a number and the one before it, which may wrap around. */
static inline int64_t difference(const uint64_t *number, unsigned bytes)
{
	const uint64_t past = number[1] - number[0];

	return bytes == sizeof(uint32_t) ? (int64_t)(int32_t)(uint32_t)past : (int64_t)past;
}

/* Append the differences of up to BLOCK numbers to the one before each. */
static int put_block(struct store *store, const uint64_t *number, size_t count, unsigned bytes)
{
	const uint64_t mask = bytes == sizeof(uint32_t) ? UINT32_MAX : UINT64_MAX;
	int64_t least = INT64_MAX;
	uint64_t past[BLOCK] = {0};
	uint8_t *widths;
	const int ret = store__reserve(store, VARINT_BYTES + PARTS + BLOCK * sizeof(uint64_t) + 8);

	if (ret < 0)
		return ret;
	for (size_t i = 0; i < count; i++) {
		const int64_t one = difference(number + i, bytes);

		past[i] = (uint64_t)one;
		least = one < least ? one : least;
	}
	put_varint(store, zigzag(least));
	widths = store->data + store->bytes;
	store->bytes += PARTS;
	for (size_t part = 0; part < PARTS; part++) {
		uint64_t *const of_part = past + part * PART;
		const size_t here = count > part * PART ? count - part * PART : 0;
		struct packer packer = {.to = store->data + store->bytes};
		uint64_t all = 0;
		unsigned width;

		for (size_t i = 0; i < PART; i++) {
			of_part[i] = i < here ? (of_part[i] - (uint64_t)least) & mask : 0;
			all |= of_part[i];
		}
		width = bits__width(all);
		widths[part] = (uint8_t)width;
		for (size_t i = 0; i < PART && width > 0; i++)
			pack(&packer, of_part[i], width);
		store->bytes = (size_t)(end(&packer) - store->data);
	}
	return 0;
}

int bits__delta(struct store *store, const uint64_t *number, size_t count, unsigned bytes)
{
	int ret = store__reserve(store, 4 * VARINT_BYTES);

	if (ret < 0)
		return ret;
	put_varint(store, BLOCK);
	put_varint(store, PARTS);
	put_varint(store, count);
	if (count == 0)
		put_varint(store, 0);
	else
		put_varint(store,
			   zigzag(bytes == sizeof(uint32_t) ? (int64_t)(int32_t)(uint32_t)number[0]
							    : (int64_t)number[0]));
	for (size_t at = 1; at < count && ret == 0; at += BLOCK)
		ret = put_block(store, number + at - 1, count - at < BLOCK ? count - at : BLOCK,
				bytes);
	return ret;
}

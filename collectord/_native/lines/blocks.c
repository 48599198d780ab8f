/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../walk.h"

#define BLOCK_BYTES (64u << 10)
#define BLOCKS 128u

int blocks__init(struct blocks *blocks, const struct source *source)
{
	*blocks = (struct blocks){
		.source = source,
		.block = calloc(BLOCKS, sizeof(*blocks->block)),
		.joined = malloc(RECORD_MAX_BYTES),
	};
	return blocks->block == NULL || blocks->joined == NULL ? -ENOMEM : 0;
}

void blocks__deinit(struct blocks *blocks)
{
	for (size_t i = 0; blocks->block != NULL && i < BLOCKS; i++)
		free(blocks->block[i].data);
	free(blocks->block);
	free(blocks->joined);
	*blocks = (struct blocks){0};
}

void blocks__forget(struct blocks *blocks)
{
	for (size_t i = 0; i < BLOCKS; i++)
		blocks->block[i].number = 0;
}

/* Returns the block that has an offset, read at least up to `bytes` bytes if the file has them; NULL
 * without memory. */
static struct block *block_of(struct blocks *blocks, uint64_t offset, size_t bytes)
{
	const uint64_t number = offset / BLOCK_BYTES;
	struct block *const block = &blocks->block[number % BLOCKS];
	const char *fault;

	if (block->number == number + 1 && block->bytes >= bytes)
		return block;
	if (block->data == NULL)
		block->data = malloc(BLOCK_BYTES);
	if (block->data == NULL)
		return NULL;
	block->number = number + 1;
	block->bytes = source__read(blocks->source, block->data, BLOCK_BYTES, number * BLOCK_BYTES,
				    &fault);
	return block;
}

int blocks__view(struct blocks *blocks, uint64_t offset, size_t bytes, const uint8_t **data)
{
	const size_t at = (size_t)(offset % BLOCK_BYTES);
	const size_t first = at + bytes > BLOCK_BYTES ? BLOCK_BYTES - at : bytes;
	const struct block *block = block_of(blocks, offset, at + first);

	if (block == NULL)
		return -ENOMEM;
	if (block->bytes < at + first)
		return 0;
	*data = block->data + at;
	if (first == bytes)
		return 1;
	memcpy(blocks->joined, *data, first);
	block = block_of(blocks, offset + first, bytes - first);
	if (block == NULL)
		return -ENOMEM;
	if (block->bytes < bytes - first)
		return 0;
	memcpy(blocks->joined + first, block->data, bytes - first);
	*data = blocks->joined;
	return 1;
}

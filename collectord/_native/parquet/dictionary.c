/* SPDX-License-Identifier: Apache-2.0 */
#include "dictionary.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS (2 * (size_t)DICTIONARY_MAX)
#define MULTIPLIER UINT64_C(0x9e3779b97f4a7c15)

int dictionary__begin(struct dictionary *dictionary, size_t values)
{
	size_t slots = 16;

	if (dictionary->slot == NULL)
		dictionary->slot = malloc(SLOTS * sizeof(*dictionary->slot));
	if (dictionary->slot == NULL)
		return -ENOMEM;
	while (slots < 2 * values && slots < SLOTS)
		slots *= 2;
	memset(dictionary->slot, 0, slots * sizeof(*dictionary->slot));
	dictionary->mask = slots - 1;
	dictionary->count = 0;
	return 0;
}

void dictionary__deinit(struct dictionary *dictionary)
{
	free(dictionary->slot);
	*dictionary = (struct dictionary){0};
}

static bool is_same(const struct dictionary *dictionary, const struct dictionary_slot *slot,
		    const struct value_key *key, const uint8_t *text, const uint8_t *data)
{
	if (slot->key.word[0] != key->word[0] || slot->key.word[1] != key->word[1] ||
	    slot->key.bytes != key->bytes)
		return false;
	return text == NULL || memcmp(data + dictionary->at[slot->number - 1] + sizeof(uint32_t),
				      text, key->bytes) == 0;
}

struct dictionary_slot *dictionary__find(struct dictionary *dictionary, const struct value_key *key,
					 const uint8_t *text, const uint8_t *data)
{
	const uint64_t mixed =
		(key->word[0] ^ (key->word[1] << 29 | key->word[1] >> 35) ^ key->bytes);
	size_t at = (size_t)(mixed * MULTIPLIER >> 40) & dictionary->mask;

	while (dictionary->slot[at].number != 0 &&
	       !is_same(dictionary, &dictionary->slot[at], key, text, data))
		at = (at + 1) & dictionary->mask;
	return &dictionary->slot[at];
}

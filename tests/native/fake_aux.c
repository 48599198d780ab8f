/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "fake_aux.h"

#include <linux/perf_event.h>
#include <string.h>
#include <unistd.h>

#include "records.h"

void fake_aux__init(struct fake_aux *aux, uint32_t data_pages, uint32_t aux_pages, bool snapshot)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);

	memset(aux, 0, sizeof(*aux));
	fake_ring__init(&aux->ring, data_pages);
	guarded__init(&aux->memory, aux_pages * page, -1);
	aux->map = (struct ring_map){
		.data = aux->memory.data,
		.data_bytes = aux_pages * page,
		.head = &aux->ring.map.page->aux_head,
		.tail = &aux->ring.map.page->aux_tail,
		.overwrite = snapshot,
	};
	aux->time_ns = 1;
}

void fake_aux__deinit(struct fake_aux *aux)
{
	guarded__deinit(&aux->memory);
	fake_ring__deinit(&aux->ring);
}

void fake_aux__poke(struct fake_aux *aux, uint64_t position, const void *bytes, size_t count)
{
	const size_t index = (size_t)(position & (aux->map.data_bytes - 1));
	const size_t until_wrap = (size_t)aux->map.data_bytes - index;
	const size_t first = count < until_wrap ? count : until_wrap;

	memcpy(aux->memory.data + index, bytes, first);
	memcpy(aux->memory.data, (const uint8_t *)bytes + first, count - first);
}

void fake_aux__set_head(struct fake_aux *aux, uint64_t head)
{
	/* Release; the partner is the acquire in ring_map__head(). */
	__atomic_store_n(&aux->ring.map.page->aux_head, head, __ATOMIC_RELEASE);
}

uint16_t record__aux(uint8_t *to, uint64_t offset, uint64_t size, uint64_t flags, uint64_t time_ns)
{
	const uint16_t bytes = 40;

	record__plain(to, PERF_RECORD_AUX, bytes);
	walk__store(to + 8, offset);
	walk__store(to + 16, size);
	walk__store(to + 24, flags);
	walk__store(to + 32, time_ns);
	return bytes;
}

static void put_words(struct fake_aux *aux, uint64_t words)
{
	/* What is written over in the same run is not written. */
	const uint64_t room = aux->map.data_bytes / 8;
	const uint64_t first = words > room ? words - room : 0;

	aux->word += first;
	for (uint64_t i = first; i < words; i++) {
		fake_aux__poke(aux, aux->head + i * 8, &aux->word, 8);
		aux->word++;
	}
}

static void tell(struct fake_aux *aux, uint64_t offset, uint64_t size, uint64_t flags)
{
	uint8_t record[64];

	aux->records++;
	if (!fake_ring__write(&aux->ring, record,
			      record__aux(record, offset, size, flags, aux->time_ns++)))
		aux->lost_records++;
}

uint64_t fake_aux__run(struct fake_aux *aux, uint64_t words)
{
	/* Acquire; the partner is the release in ring_map__publish_tail(). */
	const uint64_t tail = __atomic_load_n(&aux->ring.map.page->aux_tail, __ATOMIC_ACQUIRE);
	/* CIRC_SPACE: never filled to the last byte. */
	const uint64_t used = aux->head - tail;
	const uint64_t room = used < aux->map.data_bytes ? (aux->map.data_bytes - 1 - used) / 8 : 0;
	const uint64_t fit = words < room ? words : room;

	put_words(aux, fit);
	aux->word += words - fit;
	aux->truncated_words += words - fit;
	if (fit < words)
		aux->truncated_records++;
	tell(aux, aux->head, fit * 8, fit < words ? PERF_AUX_FLAG_TRUNCATED : 0);
	aux->head += fit * 8;
	fake_aux__set_head(aux, aux->head);
	return fit;
}

void fake_aux__overwrite(struct fake_aux *aux, uint64_t words, bool offset)
{
	put_words(aux, words);
	aux->head += words * 8;
	tell(aux, aux->head, words * 8, PERF_AUX_FLAG_OVERWRITE);
	fake_aux__set_head(aux, offset ? aux->head & (aux->map.data_bytes - 1) : aux->head);
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_PAGE_RIG_H
#define COLLECTORD_TEST_PAGE_RIG_H

#include "guarded.h"
#include "page_ring.h"

#define PAGE_BYTES 4096u
#define DATA_BYTES (PAGE_BYTES - SUBBUF_HEADER_BYTES)
#define SUBBUFS 3u
#define CHUNK_BYTES (16 * PAGE_BYTES)

/* A page ring without a shard: what is sent to `sink` is what the next read gives. */
extern struct ring *ring;
extern struct page_ring *pages;
extern struct chunk chunk;
extern int source, sink;
extern uint8_t page[PAGE_BYTES];

/* A ring that is read from a socket. */
void begin(void);
/* One that has its pages from `source`, or the map. */
void begin_with(enum page_transport transport, struct page_map *map);
void end(void);
void empty_chunk(void);

/* Send `page`, or a page of `events` events, 1 ns apart behind `ns`. */
void give(void);
void give_events(uint64_t ns, uint32_t events, uint64_t serial);

/* A pass over the ring. */
enum ring_take take(bool full);
/* The chunk has the events from `serial` up to `until`. */
void expect_serials(uint64_t serial, uint64_t until);

#endif

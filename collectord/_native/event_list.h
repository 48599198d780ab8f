/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "segment.h"

/* Events from the native threads to the controlling thread. */
enum event_kind {
	EVENT_SEGMENT_CLOSED,
	EVENT_SEGMENT_WANTED,
	EVENT_SPACE_WANTED,
	EVENT_WRITE_FAILED,
	EVENT_PROGRESS, /* an answer, see page_stream__progress() */
};

struct event_ring {
	uint64_t samples, bytes;
	struct sum *sums; /* pages and relay: its parts in the segment; allocated */
	uint32_t sum_count;
	uint32_t id;
	bool payload; /* its samples are bytes, not events */
};

struct event {
	struct event *next;
	enum event_kind kind;
	int error;
	bool final; /* closed segment: the stream was finished */
	bool early; /* closed segment: the next one may hold names of its samples */
	bool split; /* closed segment: each ring has its own extent or file */
	uint32_t stream;
	uint32_t ring_count;
	struct segment segment; /* closed: final state with AUX index; failed write: its token */
	struct sum *sums;	/* closed segment that is not split; allocated */
	uint32_t sum_count;
	struct event_ring rings[];
};

/* Only writer threads push; a pass never does, because pushing allocates. */
struct event_list {
	pthread_mutex_t lock;
	struct event *first, **last;
	int fd; /* eventfd, readable when an event was pushed */
};

int event_list__init(struct event_list *list);
void event_list__deinit(struct event_list *list);
/* Returns an event with room for `ring_count` rings; NULL without memory. */
struct event *event__new(enum event_kind kind, uint32_t stream, uint32_t ring_count);
/* Push an event and take it over; NULL is ignored. */
void event_list__push(struct event_list *list, struct event *event);
/* Returns the oldest event, which the caller frees with event__free(), or NULL. */
struct event *event_list__pop(struct event_list *list);
/* Free an event; NULL is ignored. */
void event__free(struct event *event);
/* Make the fd readable without an event: a generation or a ring's state changed. */
void event_list__poke(struct event_list *list);

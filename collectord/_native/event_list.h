/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "segment.h"

struct sum;

/* What the native threads tell the controlling one. */
enum event_kind {
	EVENT_SEGMENT_CLOSED,
	EVENT_SEGMENT_WANTED,
	EVENT_SPACE_WANTED,
	EVENT_WRITE_FAILED,
};

struct event_ring {
	uint64_t samples, bytes;
	struct sum *sums; /* of pages and relay, of what it has of the segment; allocated */
	uint32_t sum_count;
	uint32_t id;
	bool payload; /* its samples are bytes, no events */
};

struct event {
	struct event *next;
	enum event_kind kind;
	int error;
	bool final; /* of a closed segment: the stream was finished */
	bool early; /* of a closed segment: what names its samples may be in the next one */
	bool split; /* of a closed segment: each ring has an extent or a file of its own */
	uint32_t stream;
	uint32_t ring_count;
	struct segment segment; /* as it was closed, with its AUX index; of a failed write its token */
	struct sum *sums; /* of a closed segment that is not split; allocated */
	uint32_t sum_count;
	struct event_ring rings[];
};

/* Only the writer thread pushes; a pass never does, since pushing allocates. */
struct event_list {
	pthread_mutex_t lock;
	struct event *first, **last;
	int fd; /* eventfd, readable when something was pushed */
};

int event_list__init(struct event_list *list);
void event_list__deinit(struct event_list *list);
/* With room for `ring_count` rings; NULL when memory is gone. */
struct event *event__new(enum event_kind kind, uint32_t stream, uint32_t ring_count);
/* Takes over `event`; NULL is passed over. */
void event_list__push(struct event_list *list, struct event *event);
/* The oldest event, the caller's to event__free(), or NULL. */
struct event *event_list__pop(struct event_list *list);
/* Takes NULL as well. */
void event__free(struct event *event);
/* Make the fd readable without an event: a generation or a ring's state changed. */
void event_list__poke(struct event_list *list);

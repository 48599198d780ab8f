/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store.h"

/* More changes of names than a file can tell of, unless it is damaged or its load is an endless
 * exec: later ones are ignored. */
#define NAMES_MAX (1u << 20)

/* Bytes that may be read behind the end of any name. */
#define NAME_SLACK_BYTES 16u

/* The name that a thread has in a span of time. */
struct named {
	const char *text; /* NULL: it is not known */
	uint32_t bytes;
	int32_t tid;
	uint64_t since_ns, until_ns; /* until_ns is the last one */
};

/* The names of tasks in a file, by the id of the thread and the time from which it has the name. */
struct names {
	struct name {
		uint64_t since_ns;
		int32_t tid, parent; /* ROW_NONE: not of a fork */
		uint32_t number;     /* in the order of the file */
		uint32_t at, bytes;  /* of its text; NAME_UNKNOWN: of a fork by a nameless thread */
	} *name;
	struct name_place {
		int32_t tid; /* ROW_NONE: this place is free */
		uint32_t first, count;
	} *place;
	struct store text; /* valid UTF-8 */
	size_t count, room;
	size_t mask; /* number of places - 1, a power of two - 1 */
};

/* Note that a thread has a name from a time on. Returns -errno. */
int names__add(struct names *names, int32_t tid, uint64_t since_ns, const char *text, size_t bytes);
/* Note that a thread has at first the name of the one that it was forked by. Returns -errno. */
int names__fork(struct names *names, int32_t tid, int32_t parent, uint64_t since_ns);
/* Make what was noted ready to be found; nothing may be added then. Returns -errno. */
int names__settle(struct names *names);
/* Returns the name at a time. */
struct named names__find(const struct names *names, int32_t tid, uint64_t stamp_ns);
void names__deinit(struct names *names);

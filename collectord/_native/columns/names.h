/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The names of tasks in a file, by the id of the thread. They are valid UTF-8. */
struct names {
	struct name {
		int32_t tid; /* ROW_NONE: this place is free */
		uint32_t at, bytes;
	} *place;
	size_t mask; /* number of places - 1, a power of two - 1 */
	char *text;
	size_t used, text_bytes, left; /* bytes of text used and allotted; names that may come */
};

/* Make room for `count` names of `text_bytes` bytes in all. Returns -errno. */
int names__init(struct names *names, size_t count, size_t text_bytes);
/* Add one; more than there is room for are ignored, and so is a second name of a thread. */
void names__add(struct names *names, int32_t tid, const char *text, size_t bytes);
/* Returns the name, NULL if it is not known. */
const char *names__find(const struct names *names, int32_t tid, uint32_t *bytes);
void names__deinit(struct names *names);

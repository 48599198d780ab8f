/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* The names of threads, as their records have told them up to a time. */

struct tasks {
	struct task {
		int32_t tid; /* ROW_NONE: this place is free */
		uint8_t bytes;
		uint8_t name[59];
	} *task;
	size_t count, mask; /* a hash table of mask + 1 places */
};

void tasks__deinit(struct tasks *tasks);
/* Returns the name of a thread, valid up to the next one that is told; NULL if it is not known. */
const struct task *tasks__find(const struct tasks *tasks, int32_t tid);
/* Note a name, which is cut if it is too long. Of too many threads new ones are left out. Returns
 * -errno. */
int tasks__name(struct tasks *tasks, int32_t tid, const uint8_t *text, size_t bytes);

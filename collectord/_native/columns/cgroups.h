/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "store.h"

/* More cgroups, and more bytes of their paths, than a file can tell of, unless it is damaged: later
 * ones are ignored. */
#define CGROUPS_MAX (1u << 18)
#define CGROUPS_TEXT_MAX (64u << 20)

/* The paths of cgroups by their ids. A kernel uses an id once, so there is no time in it. */
struct cgroups {
	struct cgroup {
		uint64_t id;
		uint32_t number;    /* of its addition, from 1 on; 0: this place is free */
		uint32_t at, bytes; /* of its path */
	} *place;
	size_t count, mask; /* mask: number of places - 1, a power of two - 1 */
	struct store text;  /* valid UTF-8 */
};

/* Note the path of a cgroup; the first one of an id counts. Returns -errno. */
int cgroups__add(struct cgroups *cgroups, uint64_t id, const char *path, size_t bytes);
/* Returns the cgroup with an id, NULL if nothing tells its path. */
const struct cgroup *cgroups__find(const struct cgroups *cgroups, uint64_t id);
void cgroups__deinit(struct cgroups *cgroups);

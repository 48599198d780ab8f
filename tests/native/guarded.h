/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_GUARDED_H
#define COLLECTORD_TEST_GUARDED_H

#include <stddef.h>
#include <stdint.h>

/* Memory with an inaccessible page on both sides: an access outside traps in every build. */
struct guarded {
	uint8_t *data;
	size_t bytes;
	void *reservation;
	size_t reserved_bytes;
};

/* `bytes` is rounded up to pages; fd >= 0: a shared mapping of that file. */
void guarded__init(struct guarded *guarded, size_t bytes, int fd);
void guarded__deinit(struct guarded *guarded);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "guarded.h"

#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

void guarded__init(struct guarded *guarded, size_t bytes, int fd)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;

	guarded->bytes = (bytes + page - 1) / page * page;
	guarded->reserved_bytes = guarded->bytes + 2 * page;
	guarded->reservation =
		mmap(NULL, guarded->reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(guarded->reservation != MAP_FAILED);
	guarded->data = mmap((uint8_t *)guarded->reservation + page, guarded->bytes,
			     PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
	CHECK(guarded->data != MAP_FAILED);
}

void guarded__deinit(struct guarded *guarded)
{
	CHECK(munmap(guarded->reservation, guarded->reserved_bytes) == 0);
}

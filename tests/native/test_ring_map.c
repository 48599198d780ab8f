/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "fake_ring.h"
#include "ring.h"

static void sizes_that_are_no_ring_are_refused(void)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const uint64_t sizes[] = {0,	    1,	      page - 1,		  page + 1,
				  3 * page, page / 2, 1 + UINT64_MAX / 2, UINT64_MAX};
	const int fd = memfd_create("ring", MFD_CLOEXEC);
	struct ring_map map;

	CHECK(fd >= 0 && ftruncate(fd, (off_t)(8 * page)) == 0);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		const int ret = ring_map__init(&map, fd, sizes[i], false);

		/* Half the address space is a power of two; the kernel has no room for it. */
		CHECK(ret == -EINVAL || (sizes[i] == 1 + UINT64_MAX / 2 && ret == -ENOMEM));
		CHECK(map.page == NULL);
		ring_map__deinit(&map);
	}
	close(fd);
	CHECK_EQ(-ring_map__init(&map, fd, page, false), EBADF);
}

static void a_file_of_that_layout_is_mapped_and_shared(void)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const int fd = memfd_create("ring", MFD_CLOEXEC);
	struct ring_map map;
	uint64_t head = 4711;
	uint8_t byte;

	CHECK(fd >= 0 && ftruncate(fd, (off_t)(3 * page)) == 0);
	CHECK_EQ(ring_map__init(&map, fd, 2 * page, false), 0);
	CHECK(pwrite(fd, &head, 8, offsetof(struct perf_event_mmap_page, data_head)) == 8);
	CHECK(pwrite(fd, "x", 1, (off_t)(3 * page - 1)) == 1);
	CHECK_EQ(ring_map__head(&map), 4711);
	ring_map__copy(&map, 2 * page - 1, &byte, 1);
	CHECK_EQ(byte, 'x');
	ring_map__publish_tail(&map, 42);
	CHECK(pread(fd, &head, 8, offsetof(struct perf_event_mmap_page, data_tail)) == 8);
	CHECK_EQ(head, 42);
	CHECK_EQ(ring_map__tail(&map), 42);
	ring_map__deinit(&map);
	ring_map__deinit(&map); /* a second time does nothing */
	close(fd);
}

static void what_is_fed_is_read_and_never_overwritten(void)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const int fd = memfd_create("ring", MFD_CLOEXEC);
	uint8_t records[4096], copy[4096];
	uint64_t position = 0;
	struct ring_map map;

	CHECK(fd >= 0 && ftruncate(fd, (off_t)(2 * page)) == 0);
	CHECK_EQ(ring_map__init(&map, fd, page, false), 0);
	for (uint32_t round = 1; round < 100; round++) {
		const size_t bytes = round * 40;

		memset(records, (int)round, bytes);
		CHECK_EQ(ring_map__feed(&map, records, bytes), 0);
		CHECK_EQ(ring_map__head(&map), position + bytes);
		CHECK_EQ(-ring_map__feed(&map, records, page - bytes + 8), ENOSPC);
		CHECK_EQ(ring_map__head(&map), position + bytes);
		ring_map__copy(&map, position, copy, bytes);
		CHECK_EQ(memcmp(copy, records, bytes), 0);
		position += bytes;
		ring_map__publish_tail(&map, position);
	}
	ring_map__deinit(&map);
	close(fd);
}

static void copies_wrap_at_every_index(void)
{
	struct fake_ring ring;
	uint8_t copy[64];
	const uint64_t far = UINT64_MAX - 4096 * 3 + 1;

	fake_ring__init(&ring, 1);
	for (uint32_t i = 0; i < 4096; i++)
		fake_ring__poke(&ring, i, &(uint8_t){(uint8_t)(i * 7 / 5)}, 1);
	for (uint32_t index = 0; index < 4096; index++) {
		/* Positions run free, also through the end of their type. */
		ring_map__copy(&ring.map, far + 4096 * (index % 3) + index, copy, sizeof(copy));
		for (uint32_t i = 0; i < sizeof(copy); i++)
			CHECK_EQ(copy[i], (uint8_t)((index + i) % 4096 * 7 / 5));
	}
	fake_ring__deinit(&ring);
}

static void a_whole_ring_can_be_copied(void)
{
	struct fake_ring ring;
	uint8_t whole[4096];

	fake_ring__init(&ring, 1);
	fake_ring__poke(&ring, 0, "a", 1);
	fake_ring__poke(&ring, 4095, "z", 1);
	ring_map__copy(&ring.map, 8192, whole, sizeof(whole));
	CHECK(whole[0] == 'a' && whole[4095] == 'z');
	ring_map__copy(&ring.map, 4095, whole, sizeof(whole));
	CHECK(whole[0] == 'z' && whole[1] == 'a');
	fake_ring__deinit(&ring);
}

int main(void)
{
	RUN(sizes_that_are_no_ring_are_refused);
	RUN(a_file_of_that_layout_is_mapped_and_shared);
	RUN(what_is_fed_is_read_and_never_overwritten);
	RUN(copies_wrap_at_every_index);
	RUN(a_whole_ring_can_be_copied);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "fake_aux.h"
#include "ring.h"

static int file_of(uint64_t pages)
{
	const int fd = memfd_create("aux", MFD_CLOEXEC);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)(pages * (uint64_t)sysconf(_SC_PAGESIZE))) == 0);
	return fd;
}

static void sizes_that_are_no_area_are_refused(void)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const uint64_t sizes[] = {0, 1, page - 1, page + 1, 3 * page, page / 2, UINT64_MAX};
	const int fd = file_of(16);
	struct ring_map ring;
	struct ring_map map;

	CHECK_EQ(ring_map__init(&ring, fd, page, false), 0);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		CHECK_EQ(-ring_map__init_aux(&map, &ring, fd, sizes[i], false), EINVAL);
		ring_map__deinit(&map);
	}
	CHECK_EQ(-ring_map__init_aux(&map, &ring, -1, page, false), EBADF);
	ring_map__deinit(&ring);
	close(fd);
}

static void the_area_begins_behind_the_data(void)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const int fd = file_of(1 + 2 + 4);
	struct ring_map ring;
	struct ring_map map;
	uint64_t value = 4711;
	char byte;

	CHECK_EQ(ring_map__init(&ring, fd, 2 * page, false), 0);
	CHECK_EQ(ring_map__init_aux(&map, &ring, fd, 4 * page, false), 0);
	CHECK_EQ(ring.page->aux_offset, 3 * page);
	CHECK_EQ(ring.page->aux_size, 4 * page);
	CHECK(pwrite(fd, "a", 1, (off_t)(3 * page)) == 1);
	CHECK(pwrite(fd, "z", 1, (off_t)(7 * page - 1)) == 1);
	ring_map__copy(&map, 8 * page, &byte, 1);
	CHECK_EQ(byte, 'a');
	ring_map__copy(&map, 4 * page - 1, &byte, 1);
	CHECK_EQ(byte, 'z');
	CHECK(pwrite(fd, &value, 8, offsetof(struct perf_event_mmap_page, aux_head)) == 8);
	CHECK_EQ(ring_map__head(&map), 4711);
	ring_map__publish_tail(&map, 42);
	CHECK(pread(fd, &value, 8, offsetof(struct perf_event_mmap_page, aux_tail)) == 8);
	CHECK_EQ(value, 42);
	CHECK_EQ(ring_map__tail(&map), 42);
	ring_map__deinit(&map);
	ring_map__deinit(&map); /* a second time does nothing */
	ring_map__deinit(&ring);
	close(fd);
}

/* The kernel takes an area that is mapped for writing for one that is read to its tail. */
static void a_snapshot_is_mapped_for_reading_alone(void)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const int fd = file_of(3);
	struct ring_map ring;
	struct ring_map map;

	CHECK_EQ(ring_map__init(&ring, fd, page, false), 0);
	CHECK_EQ(ring_map__init_aux(&map, &ring, fd, page, true), 0);
	/* A page that cannot be written takes no bytes from a pipe or file. */
	CHECK(pread(fd, (void *)(uintptr_t)map.data, 1, 0) == -1 && errno == EFAULT);
	ring_map__deinit(&map);
	CHECK_EQ(ring_map__init_aux(&map, &ring, fd, page, false), 0);
	CHECK(pread(fd, (void *)(uintptr_t)map.data, 1, 0) == 1);
	ring_map__deinit(&map);
	ring_map__deinit(&ring);
	close(fd);
}

static void copies_wrap_at_every_index(void)
{
	struct fake_aux aux;
	uint8_t copy[64];

	fake_aux__init(&aux, 1, 1, false);
	for (uint32_t i = 0; i < 4096; i++)
		fake_aux__poke(&aux, i, &(uint8_t){(uint8_t)(i * 7 / 5)}, 1);
	for (uint32_t index = 0; index < 4096; index++) {
		ring_map__copy(&aux.map, 4096 * (index % 3) + index, copy, sizeof(copy));
		for (uint32_t i = 0; i < sizeof(copy); i++)
			CHECK_EQ(copy[i], (uint8_t)((index + i) % 4096 * 7 / 5));
	}
	fake_aux__deinit(&aux);
}

int main(void)
{
	RUN(sizes_that_are_no_area_are_refused);
	RUN(the_area_begins_behind_the_data);
	RUN(a_snapshot_is_mapped_for_reading_alone);
	RUN(copies_wrap_at_every_index);
	return 0;
}

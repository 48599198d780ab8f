/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "page_map.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "subbuf.h"

#define GET_READER _IO('R', 0x20) /* TRACE_MMAP_IOCTL_GET_READER */
#define SUBBUFS_MAX (1u << 24)

static int get_reader(int fd)
{
	return ioctl(fd, GET_READER) < 0 ? -errno : 0;
}

static int check_meta(const struct page_meta *meta, size_t page_bytes)
{
	const uint32_t subbuf_bytes = meta->subbuf_bytes;

	if (meta->meta_struct_bytes < sizeof(*meta) || meta->meta_page_bytes < page_bytes ||
	    meta->meta_page_bytes > SUBBUF_BYTES_MAX || meta->meta_page_bytes % page_bytes != 0)
		return -EPROTO;
	if (subbuf_bytes < SUBBUF_BYTES_MIN || subbuf_bytes > SUBBUF_BYTES_MAX ||
	    subbuf_bytes % page_bytes != 0 || meta->subbufs == 0 || meta->subbufs > SUBBUFS_MAX)
		return -EPROTO;
	return 0;
}

int page_map__init(struct page_map *map, int fd)
{
	const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
	struct page_meta meta;
	size_t bytes;
	void *base;
	int ret;

	memset(map, 0, sizeof(*map));
	base = mmap(NULL, page_bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	memcpy(&meta, base, sizeof(meta));
	munmap(base, page_bytes);
	ret = check_meta(&meta, page_bytes);
	if (ret < 0)
		return ret;
	bytes = meta.meta_page_bytes + (size_t)meta.subbufs * meta.subbuf_bytes;
	base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	map->meta = base;
	map->pages = (const uint8_t *)base + meta.meta_page_bytes;
	map->subbuf_bytes = meta.subbuf_bytes;
	map->subbufs = meta.subbufs;
	map->map_bytes = bytes;
	map->get_reader = get_reader;
	return 0;
}

void page_map__deinit(struct page_map *map)
{
	if (map->meta != NULL)
		munmap((void *)(uintptr_t)map->meta, map->map_bytes);
	memset(map, 0, sizeof(*map));
}

int page_map__advance(const struct page_map *map, int fd)
{
	return map->get_reader(fd);
}

struct page_place page_map__place(const struct page_map *map)
{
	/* Atomic, so that the compiler looks anew after each ioctl; only the ioctl writes it. */
	return (struct page_place){
		.id = __atomic_load_n(&map->meta->reader.id, __ATOMIC_RELAXED),
		.read = __atomic_load_n(&map->meta->reader.read, __ATOMIC_RELAXED),
	};
}

uint64_t page_map__read_events(const struct page_map *map)
{
	return __atomic_load_n(&map->meta->read, __ATOMIC_RELAXED);
}

const uint8_t *page_map__page(const struct page_map *map, uint32_t id)
{
	return map->pages + (size_t)id * map->subbuf_bytes;
}

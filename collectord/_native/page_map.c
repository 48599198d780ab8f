/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "page_map.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

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

static uint64_t read_events(const struct page_map *map)
{
	return __atomic_load_n(&map->meta->read, __ATOMIC_RELAXED);
}

/* The page at which the reader stands, or NULL: there is none like that. */
static const uint8_t *page_map__look(const struct page_map *map, struct page_place *place)
{
	/* Atomic, so that the compiler looks anew after each ioctl; only the ioctl writes it. */
	place->id = __atomic_load_n(&map->meta->reader.id, __ATOMIC_RELAXED);
	place->read = __atomic_load_n(&map->meta->reader.read, __ATOMIC_RELAXED);
	if (place->id >= map->subbufs || place->read > map->subbuf_bytes - SUBBUF_HEADER_BYTES)
		return NULL;
	return map->pages + (size_t)place->id * map->subbuf_bytes;
}

const uint8_t *page_cursor__begin(struct page_cursor *cursor, const struct page_map *map)
{
	struct page_place place;
	const uint8_t *const page = page_map__look(map, &place);

	if (page == NULL)
		return NULL;
	cursor->place = place;
	cursor->page_ns = subbuf__timestamp(page);
	cursor->read_events = read_events(map);
	return page;
}

/* A page of our own: what was handed out of a mapped one from `from` on. */
static void copy_mapped(uint8_t *page, const uint8_t *mapped, uint32_t from, uint32_t until,
			uint32_t page_bytes)
{
	const uint32_t bytes = until - from;
	struct subbuf_head head = {0};

	memcpy(page + SUBBUF_HEADER_BYTES, mapped + SUBBUF_HEADER_BYTES + from, bytes);
	if (from == 0)
		(void)subbuf__open(mapped, page_bytes, &head);
	subbuf__end(page, SUBBUF_HEADER_BYTES + bytes, &head, page_bytes);
}

struct page_fetched page_cursor__fetch(struct page_cursor *cursor, const struct page_map *map, int fd,
				       uint8_t *page)
{
	struct page_fetched found = {0};
	struct page_place place;
	const uint8_t *mapped;
	uint32_t from = 0;
	uint64_t page_ns;

	/* An error here is one that passes: a signal, or no such CPU for now. */
	if (map->get_reader(fd) < 0)
		return found;
	mapped = page_map__look(map, &place);
	if (mapped == NULL) {
		found.bytes = map->subbuf_bytes;
		found.fault = SUBBUF_DATA_BEYOND_PAGE;
		return found;
	}
	page_ns = subbuf__timestamp(mapped);
	if (place.id == cursor->place.id && cursor->place.read > 0) {
		/* Nobody but a reset takes back what was handed out, or begins a page anew. */
		if (place.read >= cursor->place.read && page_ns == cursor->page_ns)
			from = cursor->refused ? place.read : cursor->place.read;
		else
			found.reset = true;
	}
	cursor->place = place;
	cursor->page_ns = page_ns;
	if (from == place.read)
		return found;
	found.bytes = map->subbuf_bytes;
	found.goes_on = from > 0;
	found.base_ns = page_ns;
	copy_mapped(page, mapped, from, place.read, map->subbuf_bytes);
	return found;
}

bool page_cursor__follow(struct page_cursor *cursor, const struct page_map *map, bool reset,
			 uint64_t events)
{
	const uint64_t now = read_events(map);

	reset |= now < cursor->read_events + events;
	cursor->read_events = now;
	return reset;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "page_ring.h"

#define GET_READER _IO('R', 0x20) /* TRACE_MMAP_IOCTL_GET_READER */
#define SUBBUFS_MAX (1u << 24)

static int get_reader(int fd)
{
	return ioctl(fd, GET_READER) < 0 ? -errno : 0;
}

static bool is_known(const struct page_meta *meta, size_t page_bytes)
{
	return meta->meta_struct_bytes >= sizeof(*meta) && meta->meta_page_bytes >= page_bytes &&
	       meta->meta_page_bytes <= SUBBUF_BYTES_MAX &&
	       meta->meta_page_bytes % page_bytes == 0 && meta->subbuf_bytes >= SUBBUF_BYTES_MIN &&
	       meta->subbuf_bytes <= SUBBUF_BYTES_MAX && meta->subbuf_bytes % page_bytes == 0 &&
	       meta->subbufs > 0 && meta->subbufs <= SUBBUFS_MAX;
}

int page_map__init(struct page_map *map, int fd)
{
	const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
	struct page_meta meta;
	size_t bytes;
	void *base;

	memset(map, 0, sizeof(*map));
	base = mmap(NULL, page_bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	memcpy(&meta, base, sizeof(meta));
	munmap(base, page_bytes);
	if (!is_known(&meta, page_bytes))
		return -EPROTO;
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

const uint8_t *page_cursor__look(struct page_cursor *cursor)
{
	const struct page_map *const map = cursor->map;
	/* Atomic, so that the compiler reads it again after each ioctl; only the ioctl writes
	 * it. */
	const uint32_t id = __atomic_load_n(&map->meta->reader.id, __ATOMIC_RELAXED);
	const uint32_t read = __atomic_load_n(&map->meta->reader.read, __ATOMIC_RELAXED);
	const uint8_t *page;

	if (id >= map->subbufs || read > map->subbuf_bytes - SUBBUF_HEADER_BYTES)
		return NULL;
	page = map->pages + (size_t)id * map->subbuf_bytes;
	cursor->id = id;
	cursor->read = read;
	cursor->page_ns = subbuf__timestamp(page);
	return page;
}

struct page_fetched page_cursor__fetch(struct page_cursor *cursor, int fd, uint8_t *page)
{
	const struct page_cursor last = *cursor;
	const uint32_t size = cursor->map->subbuf_bytes;
	struct page_fetched found = {0};
	struct subbuf_head head = {0};
	uint32_t from = 0, end;
	const uint8_t *mapped;

	/* An error here is temporary: a signal, or an offline CPU. */
	if (cursor->map->get_reader(fd) < 0)
		return found;
	mapped = page_cursor__look(cursor);
	if (mapped == NULL) {
		found.bytes = size;
		found.fault = SUBBUF_DATA_BEYOND_PAGE;
		return found;
	}
	if (cursor->id == last.id && last.read > 0) {
		/* Less to read than was read, or a page with another time: somebody has reset the ring. */
		if (cursor->read >= last.read && cursor->page_ns == last.page_ns)
			from = last.refused ? cursor->read : last.read;
		else
			found.reset = true;
	}
	if (from == cursor->read)
		return found;
	found.bytes = size;
	found.goes_on = from > 0;
	/* Make a page of our own from the data handed out since. */
	end = SUBBUF_HEADER_BYTES + cursor->read - from;
	walk__store(page, cursor->page_ns);
	memcpy(page + SUBBUF_HEADER_BYTES, mapped + SUBBUF_HEADER_BYTES + from, cursor->read - from);
	if (from == 0)
		(void)subbuf__open(mapped, size, &head);
	subbuf__end(page, end, &head, size);
	return found;
}

bool page_cursor__follow(struct page_cursor *cursor, bool reset, uint64_t events)
{
	uint64_t now;

	if (cursor->map == NULL)
		return false;
	now = __atomic_load_n(&cursor->map->meta->read, __ATOMIC_RELAXED);
	reset |= now < cursor->read_events + events;
	cursor->read_events = now;
	return reset;
}

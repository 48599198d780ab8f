/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "mapped_pages.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "check.h"
#include "pages.h"
#include "walk.h"

#define PAGE_BYTES 4096u

static struct mapped_pages *only;

static uint8_t *memory_of(struct mapped_pages *pages, uint32_t id)
{
	return pages->memory.data + PAGE_BYTES + id * PAGE_BYTES;
}

static void swap_reader(struct mapped_pages *pages)
{
	const uint32_t slot = (uint32_t)(pages->head % MAPPED_PAGES);
	const uint32_t taken = pages->slots[slot];

	pages->writer_on_reader = pages->head == pages->tail;
	pages->slots[slot] = pages->meta->reader.id;
	pages->commit[pages->meta->reader.id] = 0;
	pages->meta->reader.id = taken;
	pages->meta->reader.read = 0;
	pages->head++;
}

static int get_reader(int fd)
{
	struct mapped_pages *pages = only;
	struct page_meta *meta = pages->meta;
	uint64_t pokes;

	CHECK_EQ(fd, pages->fd);
	pthread_mutex_lock(&pages->lock);
	if (read(fd, &pokes, sizeof(pokes)) < 0)
		pokes = 0;
	if (meta->reader.read == pages->commit[meta->reader.id] && !pages->writer_on_reader &&
	    pages->commit[pages->slots[pages->head % MAPPED_PAGES]] > 0)
		swap_reader(pages);
	meta->read += (pages->commit[meta->reader.id] - meta->reader.read) / PAGES_EVENT_BYTES;
	meta->reader.read = pages->commit[meta->reader.id];
	pthread_mutex_unlock(&pages->lock);
	return 0;
}

void mapped_pages__init(struct mapped_pages *pages)
{
	memset(pages, 0, sizeof(*pages));
	guarded__init(&pages->memory, (MAPPED_PAGES + 2) * PAGE_BYTES, -1);
	pthread_mutex_init(&pages->lock, NULL);
	pages->meta = (struct page_meta *)pages->memory.data;
	for (uint32_t i = 0; i < MAPPED_PAGES; i++)
		pages->slots[i] = i + 1;
	pages->now_ns = 1000;
	page__start(memory_of(pages, 1), PAGE_BYTES, pages->now_ns);
	pages->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	CHECK(pages->fd >= 0);
	pages->map = (struct page_map){
		.meta = pages->meta,
		.pages = memory_of(pages, 0),
		.subbuf_bytes = PAGE_BYTES,
		.subbufs = MAPPED_PAGES + 1,
		.get_reader = get_reader,
	};
	only = pages;
}

void mapped_pages__deinit(struct mapped_pages *pages)
{
	only = NULL;
	close(pages->fd);
	pthread_mutex_destroy(&pages->lock);
	guarded__deinit(&pages->memory);
}

static uint32_t written_page(const struct mapped_pages *pages)
{
	return pages->writer_on_reader ? pages->meta->reader.id
				       : pages->slots[pages->tail % MAPPED_PAGES];
}

bool mapped_pages__write(struct mapped_pages *pages, uint64_t serial)
{
	const uint64_t one = 1;
	bool written = true;
	uint32_t id, delta = 1;

	pthread_mutex_lock(&pages->lock);
	id = written_page(pages);
	pages->now_ns++;
	if (PAGE_BYTES - SUBBUF_HEADER_BYTES - pages->commit[id] < PAGES_EVENT_BYTES) {
		if (pages->tail + 1 - pages->head < MAPPED_PAGES) {
			pages->tail++;
			pages->writer_on_reader = false;
			id = written_page(pages);
			page__start(memory_of(pages, id), PAGE_BYTES, pages->now_ns);
			delta = 0;
			CHECK(write(pages->fd, &one, sizeof(one)) == sizeof(one));
		} else {
			pages->now_ns--;
			written = false;
		}
	}
	if (written) {
		page__event_at(memory_of(pages, id) + SUBBUF_HEADER_BYTES + pages->commit[id],
			       delta, serial);
		pages->commit[id] += PAGES_EVENT_BYTES;
		pages->meta->entries++;
	}
	pthread_mutex_unlock(&pages->lock);
	return written;
}

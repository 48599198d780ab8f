/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "output.h"
#include "page_rig.h"
#include "pages.h"

/* A mapped ring of two sub-buffers and the reader's; the test moves the reader. */
static struct {
	struct page_meta meta;
	uint8_t pages[3 * PAGE_BYTES] __attribute__((aligned(4096)));
} ring_memory;

/* Where the reader stands. */
struct page_place {
	uint32_t id, read; /* of that page so many bytes are handed out */
};

static struct page_place next_places[8];
static uint32_t next_count, next_at;

static int move_reader(int fd)
{
	(void)fd;
	if (next_at == next_count)
		return 0;
	ring_memory.meta.reader.id = next_places[next_at].id;
	ring_memory.meta.reader.read = next_places[next_at].read;
	next_at++;
	return 0;
}

static struct page_map fake_map(void)
{
	return (struct page_map){
		.meta = &ring_memory.meta,
		.pages = ring_memory.pages,
		.subbuf_bytes = PAGE_BYTES,
		.subbufs = 3,
		.get_reader = move_reader,
	};
}

static void reader_goes(uint32_t id, uint32_t events)
{
	next_places[next_count++] = (struct page_place){id, events * PAGES_EVENT_BYTES};
}

static void begin_mapped(struct page_map *map)
{
	memset(&ring_memory, 0, sizeof(ring_memory));
	next_at = next_count = 0;
	*map = fake_map();
	for (uint32_t id = 0; id < 3; id++)
		page__fill(ring_memory.pages + id * PAGE_BYTES, PAGE_BYTES, 1000 * (id + 1),
			   340 * id);
}

static void what_is_handed_out_of_a_mapped_page_is_copied_once(void)
{
	struct page_map map;

	begin_mapped(&map);
	begin_with(PAGE_MMAP, &map);
	reader_goes(0, 3);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, PAGE_BYTES);
	expect_serials(0, 3);
	empty_chunk();
	ring_memory.meta.read = 3;
	reader_goes(0, 9);
	CHECK_EQ(take(true), RING_EMPTY);
	expect_serials(3, 9);
	CHECK_EQ(subbuf__timestamp(chunk.data), 1002);
	reader_goes(0, 340);
	reader_goes(1, 340);
	reader_goes(2, 2);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, 3 * PAGE_BYTES);
	expect_serials(3, 682);
	CHECK_EQ(counter__read(&pages->pages), 3);
	CHECK_EQ(take(true), RING_EMPTY);
	expect_serials(3, 682);
	end();
}

static void a_mapped_page_keeps_its_loss(void)
{
	struct page_map map;

	begin_mapped(&map);
	page__start(ring_memory.pages + PAGE_BYTES, PAGE_BYTES, 5000);
	page__event(ring_memory.pages + PAGE_BYTES, 1, 0);
	page__lost(ring_memory.pages + PAGE_BYTES, 41, true);
	begin_with(PAGE_MMAP, &map);
	reader_goes(1, 1);
	CHECK_EQ(take(true), RING_EMPTY);
	expect_serials(0, 1);
	CHECK_EQ(walk__load(chunk.data + SUBBUF_HEADER_BYTES + PAGES_EVENT_BYTES), 41);
	end();
}

static void a_mapped_ring_goes_on_behind_its_predecessor(void)
{
	struct page_map map;

	begin_mapped(&map);
	ring_memory.meta.reader.read = 4 * PAGES_EVENT_BYTES;
	begin_with(PAGE_MMAP, &map);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, 0);
	reader_goes(0, 6);
	CHECK_EQ(take(true), RING_EMPTY);
	expect_serials(4, 6);
	CHECK_EQ(subbuf__timestamp(chunk.data), 1003);
	end();
}

static void a_predecessors_piece_may_complete_the_page(void)
{
	struct page_map map;

	begin_mapped(&map);
	ring_memory.meta.reader.read = 330 * PAGES_EVENT_BYTES;
	begin_with(PAGE_MMAP, &map);
	reader_goes(0, 340);
	reader_goes(1, 340);
	CHECK_EQ(take(false), RING_EMPTY);
	expect_serials(330, 680);
	end();
}

static void nothing_is_put_behind_an_unused_rest(void)
{
	struct page_map map;

	begin_mapped(&map);
	page__start(ring_memory.pages, PAGE_BYTES, 1000);
	page__event(ring_memory.pages, 1, 0);
	page__words(ring_memory.pages, (uint32_t[]){29, 0, 0}, 3);
	page__event(ring_memory.pages, 1, 1);
	begin_with(PAGE_MMAP, &map);
	reader_goes(0, 2);
	reader_goes(0, 3);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(chunk.used, 2 * PAGE_BYTES);
	CHECK_EQ(chunk.spans[0].samples, 2);
	end();
}

static void a_reset_of_a_mapped_ring_is_counted(void)
{
	struct page_map map;

	begin_mapped(&map);
	begin_with(PAGE_MMAP, &map);
	reader_goes(0, 5);
	ring_memory.meta.read = 5;
	CHECK_EQ(take(true), RING_EMPTY);
	/* Emptied, and nothing since. */
	ring_memory.meta.read = 0;
	reader_goes(0, 0);
	CHECK_EQ(take(true), RING_EMPTY);
	CHECK_EQ(counter__read(&pages->resets), 1);
	empty_chunk();
	/* Begun anew, and by now beyond where it was: the page's time tells. */
	ring_memory.meta.read = 4;
	reader_goes(0, 4);
	CHECK_EQ(take(true), RING_EMPTY);
	expect_serials(0, 4);
	empty_chunk();
	walk__store(ring_memory.pages, 70000);
	ring_memory.meta.read = 8;
	reader_goes(0, 8);
	CHECK_EQ(take(true), RING_EMPTY);
	expect_serials(0, 8);
	CHECK_EQ(counter__read(&pages->resets), 2);
	/* Begun anew on another page: fewer events were read than before and on this page. */
	empty_chunk();
	ring_memory.meta.read = 9;
	reader_goes(1, 9);
	CHECK_EQ(take(true), RING_EMPTY);
	expect_serials(340, 349);
	CHECK_EQ(counter__read(&pages->resets), 3);
	end();
}

static void a_place_outside_of_a_mapped_ring_is_refused(void)
{
	static const struct page_place places[] = {{3, 12}, {UINT32_MAX, 12}, {1, DATA_BYTES + 1}};

	for (uint32_t i = 0; i < 3; i++) {
		struct page_map map;

		begin_mapped(&map);
		begin_with(PAGE_MMAP, &map);
		next_places[next_count++] = places[i];
		CHECK_EQ(take(true), RING_FAULTY);
		CHECK_EQ(ring->last_fault, SUBBUF_DATA_BEYOND_PAGE);
		CHECK_EQ(chunk.used, 0);
		end();
	}
}

/* What is behind it in the same page is in nobody's time. */
static void the_rest_of_a_bad_mapped_page_is_passed_over(void)
{
	struct page_map map;
	uint8_t *bad;

	begin_mapped(&map);
	bad = ring_memory.pages;
	page__start(bad, PAGE_BYTES, 1000);
	page__event(bad, 1, 0);
	page__event(bad, 1, 1);
	page__words(bad, (uint32_t[]){0, 2, 7}, 3);
	for (uint32_t i = 2; i < 100; i++)
		page__event(bad, 1, i);
	begin_with(PAGE_MMAP, &map);
	next_places[next_count++] = (struct page_place){0, 2 * PAGES_EVENT_BYTES + 12};
	CHECK_EQ(take(true), RING_FAULTY);
	expect_serials(0, 2);
	next_places[next_count++] = (struct page_place){0, 50 * PAGES_EVENT_BYTES + 12};
	CHECK_EQ(take(true), RING_EMPTY);
	expect_serials(0, 2);
	empty_chunk();
	reader_goes(1, 340);
	CHECK_EQ(take(true), RING_EMPTY);
	expect_serials(340, 680);
	CHECK_EQ(counter__read(&ring->faults), 1);
	end();
}

/* A file whose meta page says so. */
static int file_of(uint32_t meta_bytes, uint32_t struct_bytes, uint32_t subbuf_bytes,
		   uint32_t subbufs)
{
	const struct page_meta meta = {.meta_page_bytes = meta_bytes,
				       .meta_struct_bytes = struct_bytes,
				       .subbuf_bytes = subbuf_bytes,
				       .subbufs = subbufs,
				       .entries = 7};
	const int fd = output__file();

	CHECK_EQ(ftruncate(fd, 1 << 20), 0);
	CHECK_EQ(pwrite(fd, &meta, sizeof(meta), 0), sizeof(meta));
	return fd;
}

static int map_of(int fd, struct page_map *map)
{
	const int ret = page_map__init(map, fd);

	close(fd);
	return ret;
}

static void only_a_layout_that_is_known_is_mapped(void)
{
	struct page_map map;

	CHECK_EQ(map_of(file_of(8192, 80, 8192, 5), &map), 0);
	CHECK_EQ(map.subbuf_bytes, 8192);
	CHECK_EQ(map.subbufs, 5);
	CHECK_EQ(map.meta->entries, 7);
	CHECK(map.pages == (const uint8_t *)map.meta + 8192);
	CHECK_EQ(-map.get_reader(-1), EBADF);
	page_map__deinit(&map);
	page_map__deinit(&map);
	CHECK_EQ(-map_of(file_of(4096, 40, 4096, 5), &map), EPROTO);
	CHECK_EQ(-map_of(file_of(0, 80, 4096, 5), &map), EPROTO);
	CHECK_EQ(-map_of(file_of(5000, 80, 4096, 5), &map), EPROTO);
	CHECK_EQ(-map_of(file_of(4096, 80, 2048, 5), &map), EPROTO);
	CHECK_EQ(-map_of(file_of(4096, 80, 4100, 5), &map), EPROTO);
	CHECK_EQ(-map_of(file_of(4096, 80, 1 << 30, 5), &map), EPROTO);
	CHECK_EQ(-map_of(file_of(4096, 80, 4096, 0), &map), EPROTO);
	CHECK_EQ(-map_of(open("/dev/null", O_RDONLY), &map), ENODEV);
}

int main(void)
{
	RUN(what_is_handed_out_of_a_mapped_page_is_copied_once);
	RUN(a_mapped_page_keeps_its_loss);
	RUN(a_mapped_ring_goes_on_behind_its_predecessor);
	RUN(a_predecessors_piece_may_complete_the_page);
	RUN(nothing_is_put_behind_an_unused_rest);
	RUN(a_reset_of_a_mapped_ring_is_counted);
	RUN(a_place_outside_of_a_mapped_ring_is_refused);
	RUN(the_rest_of_a_bad_mapped_page_is_passed_over);
	RUN(only_a_layout_that_is_known_is_mapped);
	return 0;
}

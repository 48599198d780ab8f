/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <linux/perf_event.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "columns/cut.h"
#include "pages.h"
#include "walk.h"

#define PAGE 4096u
#define WIDE_NS (UINT64_C(1) << 40)
#define ROOM (4 * PAGE)
#define FIRST_SERIAL_AT (SUBBUF_HEADER_BYTES + SUBBUF_WORD_BYTES)

static int file_of(const void *data, size_t bytes)
{
	const int fd = memfd_create("file", MFD_CLOEXEC);

	CHECK(fd >= 0);
	CHECK_EQ(write(fd, data, bytes), bytes);
	return fd;
}

static struct scan *scan_of(const char *kind, const void *data, size_t bytes, uint64_t since_ns,
			    uint64_t until_ns, struct source **source)
{
	struct scan *const scan = scan__new(WANT_ALL);
	const int fd = file_of(data, bytes);

	CHECK(scan != NULL);
	CHECK_EQ(scan__add_source(scan, kind, fd, source), 0);
	(*source)->page_bytes = PAGE;
	(*source)->since_ns = since_ns;
	(*source)->until_ns = until_ns;
	CHECK_EQ(scan__add_span(scan, 0, 0, bytes), 0);
	CHECK_EQ(close(fd), 0);
	return scan;
}

/* Cut, and read the new file back. Returns its bytes. */
static size_t cut_to(uint8_t *to, struct cut *cut, struct scan *scan)
{
	size_t bytes;

	cut->out = memfd_create("new", MFD_CLOEXEC);
	CHECK(cut->out >= 0);
	CHECK_EQ(cut__run(cut, scan), 0);
	bytes = (size_t)pread(cut->out, to, ROOM, 0);
	CHECK_EQ(bytes, cut->at);
	CHECK_EQ(close(cut->out), 0);
	scan__drop(scan);
	return bytes;
}

/* Returns the tally of a page that must be sound. */
static struct subbuf_tally tally_of(const uint8_t *page)
{
	struct subbuf_tally tally = {0};
	struct subbuf_walk walk;

	CHECK_EQ(subbuf__page(page, PAGE, &walk, &tally), FAULT_NONE);
	return tally;
}

static void pages_within_the_time_are_copied_and_others_left_out(void)
{
	static uint8_t pages[3 * PAGE], made[ROOM];
	struct cut cut = {0};
	struct source *source;

	for (size_t i = 0; i < 3; i++) {
		page__start(pages + i * PAGE, PAGE, 1000 * (i + 1));
		page__event(pages + i * PAGE, 0, i);
		page__event(pages + i * PAGE, 5, i + 10);
	}
	page__lost(pages + PAGE, 7, true);
	CHECK_EQ(cut_to(made, &cut, scan_of("ftrace", pages, sizeof(pages), 1006, 2999, &source)),
		 PAGE);
	CHECK(memcmp(made, pages + PAGE, PAGE) == 0);
	CHECK_EQ(cut.records, 2);
	CHECK_EQ(cut.counts.lost, 7);
	CHECK_EQ(cut.first_ns, 2000);
	CHECK_EQ(cut.last_ns, 2005);
	cut__deinit(&cut);
}

static void a_page_at_the_edge_is_made_of_the_records_within(void)
{
	static uint8_t page[PAGE], made[ROOM];
	const uint32_t extend[2] = {SUBBUF_TYPE_TIME_EXTEND,
				    (uint32_t)(WIDE_NS >> SUBBUF_DELTA_BITS)};
	struct cut cut = {0};
	struct subbuf_tally tally;
	struct source *source;

	page__start(page, PAGE, 1000);
	page__event(page, 0, 1);
	page__event(page, 10, 2);
	page__discarded(page, 20);
	page__words(page, extend, 2);
	page__event(page, 0, 3);
	page__event(page, 10, 4);
	page__lost(page, 3, true);
	CHECK_EQ(cut_to(made, &cut, scan_of("ftrace", page, PAGE, 1010, 1030 + WIDE_NS, &source)),
		 PAGE);
	tally = tally_of(made);
	CHECK_EQ(tally.events, 2);
	CHECK_EQ(tally.lost, 0); /* before the first record, which is out of the time */
	CHECK_EQ(tally.first_ns, 1010);
	CHECK_EQ(tally.last_ns, 1030 + WIDE_NS);
	CHECK_EQ(walk__load(made + FIRST_SERIAL_AT), 2);
	CHECK_EQ(walk__load(made + FIRST_SERIAL_AT + PAGES_EVENT_BYTES + sizeof(extend)), 3);
	CHECK_EQ(cut.counts.lost, 0);
	cut__deinit(&cut);
}

static void what_is_sound_of_a_damaged_page_is_kept(void)
{
	static uint8_t page[PAGE], made[ROOM];
	struct cut cut = {0};
	struct source *source;

	page__start(page, PAGE, 1000);
	page__event(page, 0, 1);
	page__words(page, (const uint32_t[]){28}, 1); /* more than there is */
	CHECK_EQ(cut_to(made, &cut, scan_of("ftrace", page, PAGE, 0, UINT64_MAX, &source)), PAGE);
	CHECK_EQ(tally_of(made).events, 1);
	CHECK_EQ(cut.counts.damaged, 1);
	cut__deinit(&cut);
	CHECK_EQ(cut_to(made, &cut, scan_of("ftrace", page, PAGE - 8, 0, UINT64_MAX, &source)), 0);
	CHECK_EQ(cut.counts.damaged, 1);
	cut__deinit(&cut);
}

/* Records of events {IDENTIFIER, TIME, ID} with a trailer of the same. */
#define ID 7u

static size_t put(uint8_t *to, uint32_t type, const uint64_t *words, uint16_t count)
{
	const uint16_t size = (uint16_t)(8 * (count + 1));

	walk__store(to, walk__header(type, 0, size));
	for (uint16_t i = 0; i < count; i++)
		walk__store(to + 8 * (i + 1), words[i]);
	return size;
}

static size_t put_sample(uint8_t *to, uint64_t time_ns, uint64_t id)
{
	return put(to, PERF_RECORD_SAMPLE, (const uint64_t[]){id, time_ns, id}, 3);
}

static size_t put_comm(uint8_t *to, uint64_t time_ns, uint64_t id)
{
	return put(to, PERF_RECORD_COMM, (const uint64_t[]){1, 'a', time_ns, id, id}, 5);
}

static size_t put_lost(uint8_t *to, uint64_t time_ns, uint64_t lost)
{
	return put(to, PERF_RECORD_LOST, (const uint64_t[]){ID, lost, time_ns, ID, ID}, 5);
}

static void add_event(struct source *source, uint64_t sample_type, uint64_t id)
{
	const struct perf_event event = {.sample_type = sample_type, .has_trailer = true};

	CHECK_EQ(perf_events__add(&source->perf, &event), 0);
	CHECK_EQ(perf_events__add_id(&source->perf, id), 0);
}

#define FIELDS (PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_TIME | PERF_SAMPLE_ID)

static void records_of_the_time_are_copied_with_what_names_them(void)
{
	static uint8_t data[PAGE], wanted[PAGE], made[ROOM];
	struct cut cut = {.keeps_rounds = true};
	struct source *source;
	struct scan *scan;
	size_t at = 0, end = 0;

	at += put_comm(data, 10, 0); /* synthesized: of no event */
	end += put_comm(wanted, 10, 0);
	at += put_sample(data + at, 99, ID);
	at += put_lost(data + at, 99, 5);
	at += put_sample(data + at, 100, ID);
	at += put_lost(data + at, 150, 6);
	at += put_sample(data + at, 200, ID);
	end += put_sample(wanted + end, 100, ID);
	end += put_lost(wanted + end, 150, 6);
	end += put_sample(wanted + end, 200, ID);
	at += put(data + at, WALK_FINISHED_ROUND, NULL, 0);
	end += put(wanted + end, WALK_FINISHED_ROUND, NULL, 0);
	at += put(data + at, WALK_FINISHED_INIT, (const uint64_t[]){0, 0}, 2);
	at += put(data + at, PERF_RECORD_SAMPLE, (const uint64_t[]){ID, 150, ID, 0},
		  4);				  /* too long */
	at += put_sample(data + at, 150, ID + 1); /* readers would refuse the file for it */
	at += put_comm(data + at, 150, ID + 1);
	at += put(data + at, PERF_RECORD_EXIT, (const uint64_t[]){150, ID, ID}, 3); /* too short */
	at += put(data + at, PERF_RECORD_AUX, (const uint64_t[]){0, 0, 0, 150, ID, ID}, 6);
	at += put_sample(data + at, 201, ID);
	at += put_comm(data + at, 201, ID);
	scan = scan_of("perf", data, at, 100, 200, &source);
	add_event(source, FIELDS, ID);
	CHECK_EQ(cut_to(made, &cut, scan), end);
	CHECK(memcmp(made, wanted, end) == 0);
	CHECK_EQ(cut.records, 2);
	CHECK_EQ(cut.counts.lost, 6);
	CHECK_EQ(cut.counts.damaged, 4);
	CHECK_EQ(cut.aux, 1);
	cut__deinit(&cut);
}

static void a_sample_of_no_possible_cpu_is_damaged(void)
{
	static uint8_t data[PAGE], made[ROOM];
	struct cut cut = {0};
	struct source *source;
	struct scan *scan;
	size_t at = put(data, PERF_RECORD_SAMPLE, (const uint64_t[]){1, 65535}, 2);

	at += put(data + at, PERF_RECORD_SAMPLE, (const uint64_t[]){2, 65536}, 2);
	scan = scan_of("perf", data, at, 0, UINT64_MAX, &source);
	add_event(source, PERF_SAMPLE_TIME | PERF_SAMPLE_CPU, ID);
	CHECK_EQ(cut_to(made, &cut, scan), 24);
	CHECK_EQ(cut.counts.damaged, 1);
	cut__deinit(&cut);
}

static struct cut_id *one_id(uint64_t from, uint64_t to)
{
	struct cut_id *const id = malloc(sizeof(*id));

	CHECK(id != NULL);
	*id = (struct cut_id){from, to};
	return id;
}

static void ids_change_wherever_they_are(void)
{
	static uint8_t data[PAGE], made[ROOM];
	struct cut cut = {.ids = {.id = one_id(ID, 70), .count = 1}};
	struct source *source;
	struct scan *scan;
	const uint64_t *const words = (const uint64_t *)(const void *)made;
	size_t at = 0;

	/* {id, time, id, a group of two: {value, id} each} */
	at += put(data, PERF_RECORD_SAMPLE, (const uint64_t[]){ID, 1, ID, 2, 11, ID, 12, ID + 1}, 8);
	at += put_lost(data + at, 1, 5);
	at += put(data + at, PERF_RECORD_THROTTLE, (const uint64_t[]){1, ID, ID, 1, ID, ID}, 6);
	scan = scan_of("perf", data, at, 0, UINT64_MAX, &source);
	add_event(source, FIELDS | PERF_SAMPLE_READ, ID);
	source->perf.event[0].read_format = PERF_FORMAT_GROUP | PERF_FORMAT_ID;
	CHECK_EQ(cut_to(made, &cut, scan), at);
	CHECK(words[1] == 70 && words[3] == 70 && words[6] == 70 && words[8] == ID + 1);
	CHECK(words[10] == 70 && words[11] == 5 && words[13] == 70 && words[14] == 70);
	CHECK(words[17] == 70 && words[18] == ID && words[20] == 70 && words[21] == 70);
	cut__deinit(&cut);
}

static void records_without_an_id_get_one(void)
{
	static uint8_t data[2 * 65536], made[ROOM];
	struct cut cut = {.ids = {.adds = true, .unnamed = 9}};
	struct source *source;
	struct scan *scan;
	const uint64_t *const words = (const uint64_t *)(const void *)made;
	static uint64_t full[8190] = {3, 8188};
	size_t at;

	at = put(data, PERF_RECORD_SAMPLE, (const uint64_t[]){1, 0}, 2);
	at += put(data + at, PERF_RECORD_COMM, (const uint64_t[]){1, 'a', 2}, 3);
	at += put(data + at, PERF_RECORD_SAMPLE, full, 8190); /* has no room for one */
	scan = scan_of("perf", data, at, 0, UINT64_MAX, &source);
	add_event(source, PERF_SAMPLE_TIME | PERF_SAMPLE_CALLCHAIN, ID);
	CHECK_EQ(cut_to(made, &cut, scan), 72);
	CHECK_EQ(walk__size(words[0]), 32);
	CHECK(words[1] == 9 && words[2] == 1 && words[3] == 0);
	CHECK_EQ(walk__size(words[4]), 40);
	CHECK(words[5] == 1 && words[6] == 'a' && words[7] == 2 && words[8] == 9);
	CHECK_EQ(cut.records, 1);
	CHECK_EQ(cut.counts.damaged, 1);
	cut__deinit(&cut);
}

static void a_file_that_cannot_be_written_is_an_error(void)
{
	static uint8_t data[PAGE];
	struct cut cut = {.out = -1};
	struct source *source;
	const size_t bytes = put_sample(data, 1, ID);
	struct scan *const scan = scan_of("perf", data, bytes, 0, UINT64_MAX, &source);

	add_event(source, FIELDS, ID);
	CHECK(cut__run(&cut, scan) < 0);
	cut__deinit(&cut);
	scan__drop(scan);
}

int main(void)
{
	RUN(pages_within_the_time_are_copied_and_others_left_out);
	RUN(a_page_at_the_edge_is_made_of_the_records_within);
	RUN(what_is_sound_of_a_damaged_page_is_kept);
	RUN(records_of_the_time_are_copied_with_what_names_them);
	RUN(a_sample_of_no_possible_cpu_is_damaged);
	RUN(ids_change_wherever_they_are);
	RUN(records_without_an_id_get_one);
	RUN(a_file_that_cannot_be_written_is_an_error);
	return 0;
}

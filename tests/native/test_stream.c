/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "fake_ring.h"
#include "records.h"
#include "rig.h"
#include "ring.h"

#define TAIL_BYTES (200u << 10)

static struct rig rig;
static struct stream *stream;
static struct fake_ring fake;
static struct ring *ring;

static void begin(void)
{
	rig__init(&rig, 0, 1, 2, RIG_NEVER_NS);
	stream = &rig.streams[0];
	CHECK_EQ(sideband__join_layout(&stream->sideband, &records__layout), 0);
	fake_ring__init(&fake, 16);
	ring = fake_ring__open(&fake);
	CHECK_EQ(stream__add_ring(stream, ring), 0);
}

static void end(void)
{
	fake_ring__deinit(&fake);
	rig__deinit(&rig);
}

/* A chunk with `samples` samples of `size` bytes, padded to `*bytes`. */
static struct chunk *filled(uint32_t samples, uint16_t size, uint64_t time_ns)
{
	static uint8_t record[65536];
	struct chunk *chunk = pool__take(&rig.pool, NULL);

	for (uint32_t i = 0; i < samples; i++)
		CHECK(fake_ring__write(&fake, record, record__sample(record, size, i, time_ns + i)));
	ring__begin(ring);
	CHECK_EQ(ring->ops->take(ring, chunk, RIG_CHUNK_BYTES), RING_EMPTY);
	return chunk;
}

/* 0 or -errno. */
static int append(struct chunk *chunk)
{
	struct item item = {.chunk = chunk};
	uint64_t bytes;
	const int ret = stream->ops->write(stream, &item, &bytes);

	stream->work.span = 0;
	return ret < 0 ? ret : 0;
}

static int write_chunk(struct chunk *chunk)
{
	const int ret = append(chunk);

	stream->ops->end(stream, &(struct item){.chunk = chunk});
	pool__give(&rig.pool, chunk);
	return ret;
}

static int write_samples(uint32_t samples, uint64_t time_ns)
{
	return write_chunk(filled(samples, 128, time_ns));
}

static void finish(void)
{
	stream->finish_wanted = true;
	stream__serve(stream);
}

static void offsets_and_second_segments_are_refused(void)
{
	const int fd = output__file();

	begin();
	CHECK_EQ(-rig__prepare(&rig, 0, fd, 512, RIG_LIMIT), EINVAL);
	CHECK_EQ(rig__prepare(&rig, 0, fd, 4096, RIG_LIMIT), 0);
	CHECK_EQ(-rig__prepare(&rig, 0, fd, 4096, RIG_LIMIT), EBUSY);
	end();
	close(fd);
}

static void a_segment_ends_before_it_passes_its_limit(void)
{
	const int one = output__file(), two = output__file();
	struct output output;
	struct event *event;

	begin();
	CHECK_EQ(rig__prepare(&rig, 0, one, 4096, 4096 * 3), 0);
	CHECK_EQ(write_samples(20, 1000), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	CHECK_EQ(rig__prepare(&rig, 0, two, 8192, 8192 + 4096), 0);
	CHECK_EQ(write_samples(10, 500), 0);
	rig__expect_none(&rig);
	CHECK_EQ(write_samples(5, 3000), 0); /* does not fit any more */
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	output__read(&output, one, 4096, event->segment.offset, NULL);
	CHECK_EQ(event->segment.offset, 4096 * 3);
	output__check_sums(output.data, output.bytes, event->sums, event->sum_count);
	CHECK_EQ(event->segment.samples, 30);
	CHECK_EQ(event->segment.records, 30);
	CHECK_EQ(event->segment.chunks, 2);
	CHECK_EQ(event->segment.first_ns, 500);
	CHECK_EQ(event->segment.last_ns, 1019);
	CHECK_EQ(event->ring_count, 1);
	CHECK_EQ(event->rings[0].samples, 30);
	CHECK_EQ(event->rings[0].bytes, 30 * 128);
	CHECK_EQ(output.samples, 30);
	CHECK_EQ(output.paddings, 2);
	output__free(&output);
	event__free(event);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	finish();
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	output__read(&output, two, 8192, event->segment.offset, NULL);
	CHECK_EQ(event->segment.samples, 5);
	CHECK_EQ(output.samples, 5);
	CHECK_EQ(counter__read(&ring->stored), 35);
	CHECK_EQ(ring->in_flight, 0);
	output__free(&output);
	event__free(event);
	end();
	close(one);
	close(two);
}

static void without_a_next_segment_this_one_goes_on(void)
{
	const int fd = output__file();
	struct output output;
	struct event *event;

	begin();
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, 4096), 0);
	stream->rotate_wanted = true;
	for (int i = 0; i < 5; i++)
		CHECK_EQ(write_samples(1, 1), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	finish();
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	output__read(&output, fd, 0, event->segment.offset, NULL);
	CHECK_EQ(output.samples, 5);
	output__free(&output);
	event__free(event);
	end();
	close(fd);
}

static void rotation_needs_data_in_the_segment(void)
{
	const int one = output__file(), two = output__file();

	begin();
	stream->rotate_wanted = true; /* nothing is open yet: nothing to rotate */
	stream__serve(stream);
	CHECK_EQ(rig__prepare(&rig, 0, one, 0, RIG_LIMIT), 0);
	stream__serve(stream);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	CHECK_EQ(rig__prepare(&rig, 0, two, 0, RIG_LIMIT), 0);
	stream->rotate_wanted = true;
	stream__serve(stream);
	CHECK_EQ(write_samples(1, 1), 0);
	CHECK_EQ(write_samples(1, 1), 0);
	rig__expect_none(&rig);
	CHECK_EQ(stream->current.fd, one);
	stream->rotate_wanted = true;
	CHECK_EQ(write_samples(1, 1), 0);
	CHECK_EQ(stream->current.fd, two);
	rig__expect(&rig, EVENT_SEGMENT_CLOSED);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	end();
	close(one);
	close(two);
}

static void an_empty_segment_ends_in_a_turn(void)
{
	const int one = output__file(), two = output__file();
	struct event *event;

	begin();
	CHECK_EQ(rig__prepare(&rig, 0, one, 0, RIG_LIMIT), 0);
	stream__serve(stream);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	stream->rotate_wanted = stream->turn_wanted = true;
	stream__serve(stream); /* it waits for the next one */
	CHECK_EQ(stream->current.fd, one);
	CHECK_EQ(rig__prepare(&rig, 0, two, 0, RIG_LIMIT), 0);
	stream__serve(stream);
	CHECK_EQ(stream->current.fd, two);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	CHECK_EQ(event->segment.chunks, 0);
	CHECK(!event->final);
	event__free(event);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	CHECK_EQ(rig__prepare(&rig, 0, one, 0, RIG_LIMIT), 0);
	stream->rotate_wanted = true; /* once is enough */
	stream__serve(stream);
	CHECK_EQ(stream->current.fd, two);
	end();
	close(one);
	close(two);
}

static void a_rotation_asked_between_segments_is_none(void)
{
	const int one = output__file(), two = output__file();

	begin();
	CHECK_EQ(rig__prepare(&rig, 0, one, 0, RIG_LIMIT), 0);
	CHECK_EQ(write_samples(1, 1), 0);
	stream->rotate_wanted = true;
	stream__make_evictable(stream, 0);
	CHECK(!stream->current.open);
	stream->rotate_wanted = true;
	stream__serve(stream);
	CHECK_EQ(rig__prepare(&rig, 0, two, 0, RIG_LIMIT), 0);
	stream__serve(stream);
	CHECK_EQ(rig__prepare(&rig, 0, one, 0, RIG_LIMIT), 0);
	CHECK_EQ(write_samples(1, 1), 0);
	CHECK_EQ(write_samples(1, 1), 0);
	CHECK_EQ(stream->current.fd, two);
	end();
	close(one);
	close(two);
}

static void sideband_add(uint16_t size, const uint8_t *record)
{
	sideband__append(&stream->sideband, record, size);
}

/* Rings are written up to `begun_ns`, and 0.1 s for records that became visible late. */
static void settle_at(uint64_t begun_ns)
{
	static struct lane lane;
	const struct item item = {.lane = &lane, .stamp = 1, .begun_ns = begun_ns + 100000000u};

	lane.stream = stream;
	lane.rings = 1;
	atomic_store(&stream->lanes[0], &lane);
	stream__pass_written(stream, &lane, &item);
	atomic_store(&stream->lanes[0], NULL);
}

static void a_process_resolves_on_both_sides_of_a_rotation(void)
{
	const int one = output__file(), two = output__file(), three = output__file();
	uint8_t record[256];
	struct output output;
	struct event *event;

	begin();
	/* It executes and maps before the rotation; its records are also in the data. */
	CHECK_EQ(rig__prepare(&rig, 0, one, 0, RIG_LIMIT), 0);
	sideband_add(record__comm(record, 10, 10, "brief", 1, 100), record);
	sideband_add(record__mmap2(record, 10, 0x1000, 0x1000, "/brief", 110), record);
	CHECK_EQ(write_samples(1, 200), 0);
	settle_at(250);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	CHECK_EQ(rig__prepare(&rig, 0, two, 0, RIG_LIMIT), 0);
	stream->rotate_wanted = true;
	/* It exits before the second segment begins, and after its last sample. */
	sideband_add(record__exit(record, 10, 10, 400), record);
	CHECK_EQ(write_samples(1, 300), 0);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	output__read(&output, one, 0, event->segment.offset, NULL);
	CHECK_EQ(output__count(&output, PERF_RECORD_COMM, 10), 1);
	CHECK_EQ(output__count(&output, PERF_RECORD_MMAP2, 10), 1);
	CHECK_EQ(event->segment.replayed, 2);
	CHECK_EQ(event->segment.records, 1);
	output__free(&output);
	event__free(event);
	settle_at(500);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	CHECK_EQ(rig__prepare(&rig, 0, three, 0, RIG_LIMIT), 0);
	stream->rotate_wanted = true;
	CHECK_EQ(write_samples(1, 600), 0);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	output__read(&output, two, 0, event->segment.offset, NULL);
	CHECK_EQ(output__count(&output, PERF_RECORD_COMM, 10), 1);
	CHECK_EQ(output__count(&output, PERF_RECORD_MMAP2, 10), 1);
	CHECK_EQ(output__count(&output, PERF_RECORD_EXIT, 10), 0); /* that is in the first one */
	output__free(&output);
	event__free(event);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	finish();
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	output__read(&output, three, 0, event->segment.offset, NULL);
	CHECK_EQ(output.others, 0); /* long gone */
	output__free(&output);
	event__free(event);
	end();
	close(one);
	close(two);
	close(three);
}

/* A process is forked and executes: through a ring of sideband, into the running segment. */
static int write_exec(uint32_t pid, uint64_t time_ns)
{
	uint8_t record[256];

	CHECK(fake_ring__write(&fake, record, record__fork(record, pid, 10, pid, 10, time_ns)));
	CHECK(fake_ring__write(&fake, record, record__comm(record, pid, pid, "x", 1, time_ns + 1)));
	return write_chunk(filled(0, 128, 0));
}

static void no_record_stands_twice(void)
{
	const int one = output__file(), two = output__file();
	struct output output;
	struct event *event;

	begin();
	ring->lane = &(struct lane){.stream = stream};
	ring->sideband = &stream->sideband;
	CHECK_EQ(rig__prepare(&rig, 0, one, 0, RIG_LIMIT), 0);
	CHECK_EQ(write_exec(20, 200), 0);
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	CHECK_EQ(rig__prepare(&rig, 0, two, 0, RIG_LIMIT), 0);
	stream->rotate_wanted = true;
	CHECK_EQ(write_exec(21, 300), 0);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	output__read(&output, one, 0, event->segment.offset, NULL);
	CHECK_EQ(event->segment.replayed, 0); /* what its first chunk holds is not replayed */
	CHECK_EQ(output.others, 2);
	output__free(&output);
	event__free(event);
	finish();
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	output__read(&output, two, 0, event->segment.offset, NULL);
	/* The first process as one that was there before, by the name that it took. */
	CHECK_EQ(event->segment.replayed, 2);
	CHECK_EQ(output__count(&output, PERF_RECORD_COMM, 20), 1);
	CHECK_EQ(output__count(&output, PERF_RECORD_FORK, 20), 1);
	CHECK_EQ(output__count(&output, PERF_RECORD_COMM, 21), 1);
	CHECK_EQ(output__count(&output, PERF_RECORD_FORK, 21), 1);
	output__free(&output);
	event__free(event);
	end();
	close(one);
	close(two);
}

static void a_replay_longer_than_a_chunk_is_written_in_pieces(void)
{
	const int fd = output__file();
	uint8_t record[256];
	struct output output;
	struct event *event;

	begin();
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, 4096), 0);
	for (uint32_t pid = 1; pid <= 3000; pid++)
		sideband_add(record__comm(record, pid, pid, "name", 1, pid), record);
	settle_at(1500); /* half from the table, half from the log */
	CHECK_EQ(write_samples(1, 1), 0);
	finish();
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	output__read(&output, fd, 0, event->segment.offset, NULL);
	CHECK_EQ(event->segment.replayed, 3000);
	CHECK_EQ(output.others, 3000);
	output__check_sums(output.data, output.bytes, event->sums, event->sum_count);
	CHECK(event->segment.chunks > 2);
	output__free(&output);
	event__free(event);
	end();
	close(fd);
}

/* The segment after a failed write is as it was: a later chunk takes the place. */
static void a_failed_write_leaves_no_trace(void)
{
	const int fd = output__file();
	struct output output;
	struct event *event;
	struct chunk *chunk;

	begin();
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	CHECK_EQ(write_samples(1, 1), 0);
	chunk = filled(40, 128, 2);
	CHECK_EQ(chunk__padded(chunk->used, false, &stream->current.table), 8192);
	output__limit(4096 + 1000);
	CHECK_EQ(-append(chunk), EFBIG); /* after 1000 bytes */
	output__limit(UINT64_MAX);
	CHECK_EQ(counter__read(&ring->stored), 1);
	CHECK_EQ(ring->in_flight, 40);
	CHECK_EQ(stream->current.offset, 4096);
	CHECK_EQ(lseek(fd, 0, SEEK_END), 4096); /* a repair finds what was counted, no more */
	CHECK_EQ(write_chunk(chunk), 0);
	finish();
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	output__read(&output, fd, 0, event->segment.offset, NULL);
	CHECK_EQ(output.samples, 41);
	output__check_sums(output.data, output.bytes, event->sums, event->sum_count);
	CHECK_EQ(event->segment.chunks, 2);
	output__free(&output);
	event__free(event);
	end();
	close(fd);
}

#define SIZE_AT 48

/* Prepare a segment behind a page, whose size readers take from that page, without its half. */
static void prepare_told(int fd)
{
	const struct segment segment = {.begin = 4096,
					.offset = 4096,
					.limit = RIG_LIMIT,
					.size_at = SIZE_AT,
					.size_base = 2048,
					.fd = fd,
					.size_fd = fd,
					.open = true};

	CHECK_EQ(stream__prepare(stream, &segment), 0);
}

/* Readers are told of the records up to `end`, where the header of a padding is. 0: of none. */
static void check_told(int fd, uint64_t end)
{
	uint64_t size = 0, word;

	(void)!pread(fd, &size, sizeof(size), SIZE_AT);
	CHECK_EQ(size, end > 0 ? end - 2048 : 0);
	if (end == 0)
		return;
	CHECK(pread(fd, &word, sizeof(word), (off_t)end) == sizeof(word));
	CHECK_EQ(walk__type(word), WALK_FINISHED_INIT);
}

static void readers_are_told_of_what_is_before_the_last_padding(void)
{
	const int one = output__file(), two = output__file();
	struct chunk *chunk;

	begin();
	stream__tell(stream); /* there is no file */
	prepare_told(one);
	stream__serve(stream);
	CHECK(!stream__has_news(stream));
	CHECK_EQ(write_samples(3, 1000), 0);
	check_told(one, 0);
	CHECK(stream__has_news(stream));
	stream__tell(stream);
	check_told(one, 4096 + 3 * 128);
	CHECK(!stream__has_news(stream));
	CHECK(stream->ops->end(stream, &(struct item){.round = true}));
	stream__tell(stream);
	check_told(one, 8192 + WALK_HEADER_BYTES);
	chunk = filled(40, 128, 2000);
	output__limit(12288 + 1000);
	CHECK_EQ(-append(chunk), EFBIG);
	output__limit(UINT64_MAX);
	stream__tell(stream);
	check_told(one, 8192 + WALK_HEADER_BYTES);
	CHECK_EQ(write_chunk(chunk), 0);
	output__limit(SIZE_AT);
	stream__tell(stream);
	output__limit(UINT64_MAX);
	CHECK_EQ(stream->tell_error, EFBIG);
	check_told(one, 8192 + WALK_HEADER_BYTES);
	stream__tell(stream);
	CHECK_EQ(stream->tell_error, 0);
	check_told(one, 12288 + 40 * 128);
	prepare_told(two);
	stream->rotate_wanted = true;
	stream__serve(stream);
	CHECK(!stream__has_news(stream)); /* nothing is written to the next one */
	CHECK_EQ(write_samples(2, 3000), 0);
	finish();
	stream__tell(stream); /* a closed file has another owner */
	check_told(one, 12288 + 40 * 128);
	check_told(two, 0);
	end();
	close(one);
	close(two);
}

/* The sizes that readers are told of two files: as soon as the second one can be found, all that is
 * in the first is. */
static void a_file_is_told_to_its_end_before_the_next_begins(void)
{
	const int one = output__file(), two = output__file(), three = output__file();

	begin();
	prepare_told(one);
	CHECK_EQ(write_samples(3, 1000), 0);
	stream->rotate_wanted = true;
	CHECK_EQ(write_samples(3, 2000), 0); /* without a next one it goes on */
	check_told(one, 0);
	prepare_told(two);
	CHECK_EQ(write_samples(3, 3000), 0);
	CHECK_EQ(stream->current.fd, two);
	check_told(one, 8192 + 3 * 128);
	check_told(two, 0);
	prepare_told(three);
	stream->rotate_wanted = true;
	CHECK(stream__serve(stream)); /* it ends once readers are told */
	CHECK_EQ(stream->current.fd, two);
	stream__tell(stream);
	CHECK(!stream__serve(stream));
	CHECK_EQ(stream->current.fd, three);
	check_told(two, 4096 + 3 * 128);
	CHECK_EQ(write_samples(1, 4000), 0);
	stream__turn(stream, false);
	check_told(three, 4096 + 128);
	end();
	close(one);
	close(two);
	close(three);
}

/* A file that readers cannot be told of ends all the same. */
static void a_file_that_cannot_be_told_of_ends(void)
{
	const int one = output__file(), two = output__file();

	begin();
	prepare_told(one);
	CHECK_EQ(write_samples(3, 1000), 0);
	output__limit(SIZE_AT);
	stream__tell(stream);
	output__limit(UINT64_MAX);
	CHECK_EQ(stream->tell_error, EFBIG);
	prepare_told(two);
	stream->rotate_wanted = true;
	CHECK(!stream__serve(stream));
	CHECK_EQ(stream->current.fd, two);
	end();
	close(one);
	close(two);
}

static void a_failed_replay_begins_again(void)
{
	const int fd = output__full(), file = output__file();
	uint8_t record[256];
	struct output output;
	struct event *event;
	struct chunk *chunk;

	begin();
	CHECK_EQ(rig__prepare(&rig, 0, fd, 0, RIG_LIMIT), 0);
	sideband_add(record__comm(record, 10, 10, "x", 1, 100), record);
	chunk = filled(3, 128, 2);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(-append(chunk), ENOSPC);
	CHECK(dup2(file, fd) == fd);
	CHECK_EQ(write_chunk(chunk), 0);
	finish();
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	output__read(&output, fd, 0, event->segment.offset, NULL);
	CHECK_EQ(event->segment.replayed, 1);
	CHECK_EQ(output.others, 1);
	CHECK_EQ(output.samples, 3);
	output__check_sums(output.data, output.bytes, event->sums, event->sum_count);
	output__free(&output);
	event__free(event);
	end();
	close(fd);
	close(file);
}

static void a_replay_that_fails_half_way_begins_again(void)
{
	const int fd = output__file();
	uint8_t record[256];
	struct output output;
	struct event *event;
	struct chunk *chunk;

	begin();
	prepare_told(fd);
	for (uint32_t pid = 1; pid <= 3000; pid++)
		sideband_add(record__comm(record, pid, pid, "name", 1, pid), record);
	chunk = filled(1, 128, 2);
	output__limit(RIG_CHUNK_BYTES + 8192);
	CHECK_EQ(-append(chunk), EFBIG);
	output__limit(UINT64_MAX);
	CHECK_EQ(lseek(fd, 0, SEEK_END), 4096);
	CHECK(!stream__has_news(stream)); /* its first piece was written, and is gone */
	CHECK_EQ(write_chunk(chunk), 0);
	finish();
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	output__read(&output, fd, 4096, event->segment.offset, NULL);
	CHECK_EQ(output.others, 3000);
	CHECK_EQ(event->segment.replayed, 3000);
	CHECK_EQ(output.samples, 1);
	output__check_sums(output.data, output.bytes, event->sums, event->sum_count);
	output__free(&output);
	event__free(event);
	end();
	close(fd);
}

static void space_is_claimed_ahead_and_does_not_change_the_size(void)
{
	const int fd = output__file();
	struct segment segment = {
		.begin = 0, .limit = RIG_LIMIT, .step = 1 << 20, .fd = fd, .open = true};

	begin();
	CHECK_EQ(stream__prepare(stream, &segment), 0);
	CHECK_EQ(write_samples(1, 1), 0);
	CHECK_EQ(lseek(fd, 0, SEEK_END), 4096);
	CHECK(stream->current.allocated == 1 << 20 || stream->current.step == 0);
	end();
	close(fd);
}

/* Where the end was cut off, the room that the tail takes is still there. */
static void room_for_the_tail_stays_after_a_failed_write(void)
{
	const int fd = output__file();
	struct segment segment = {
		.limit = RIG_LIMIT, .step = 4096, .tail = TAIL_BYTES, .fd = fd, .open = true};
	struct stat status;
	struct chunk *chunk;

	begin();
	CHECK_EQ(stream__prepare(stream, &segment), 0);
	CHECK_EQ(write_samples(1, 1), 0);
	chunk = filled(40, 128, 2);
	output__limit(4096 + 1000);
	CHECK_EQ(-write_chunk(chunk), EFBIG);
	output__limit(UINT64_MAX);
	CHECK(fstat(fd, &status) == 0);
	CHECK_EQ(status.st_size, 4096);
	CHECK(status.st_blocks * 512 >= 4096 + TAIL_BYTES || stream->current.step == 0);
	end();
	close(fd);
}

static void finish_closes_a_prepared_segment_that_got_nothing(void)
{
	const int fd = output__file();
	struct event *event;

	begin();
	finish(); /* nothing at all: nothing to tell */
	rig__expect_none(&rig);
	end();
	begin();
	CHECK_EQ(rig__prepare(&rig, 0, fd, 4096, RIG_LIMIT), 0);
	finish();
	rig__expect(&rig, EVENT_SEGMENT_WANTED);
	event = rig__event(&rig, EVENT_SEGMENT_CLOSED);
	CHECK_EQ(event->segment.offset, 4096);
	CHECK_EQ(event->segment.chunks + event->segment.records + event->segment.samples, 0);
	event__free(event);
	CHECK_EQ(-write_samples(1, 1), EXFULL); /* there is no segment any more */
	end();
	close(fd);
}

int main(void)
{
	RUN(offsets_and_second_segments_are_refused);
	RUN(a_segment_ends_before_it_passes_its_limit);
	RUN(without_a_next_segment_this_one_goes_on);
	RUN(rotation_needs_data_in_the_segment);
	RUN(an_empty_segment_ends_in_a_turn);
	RUN(a_rotation_asked_between_segments_is_none);
	RUN(a_process_resolves_on_both_sides_of_a_rotation);
	RUN(no_record_stands_twice);
	RUN(a_replay_longer_than_a_chunk_is_written_in_pieces);
	RUN(a_failed_write_leaves_no_trace);
	RUN(readers_are_told_of_what_is_before_the_last_padding);
	RUN(a_file_is_told_to_its_end_before_the_next_begins);
	RUN(a_file_that_cannot_be_told_of_ends);
	RUN(a_failed_replay_begins_again);
	RUN(a_replay_that_fails_half_way_begins_again);
	RUN(space_is_claimed_ahead_and_does_not_change_the_size);
	RUN(room_for_the_tail_stays_after_a_failed_write);
	RUN(finish_closes_a_prepared_segment_that_got_nothing);
	return 0;
}

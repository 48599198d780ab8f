/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "blk_records.h"
#include "perf_ring.h"
#include "check.h"
#include "fake_aux.h"
#include "fake_bpf.h"
#include "fake_ring.h"
#include "pages.h"
#include "records.h"
#include "rig.h"

/* Streams and rings come and go in one core, and nothing of them stays. */
#define ROUNDS 2000u
#define RETURNS 600u
#define WARM_UP 200u /* after so many nothing grows any more */
#define GROWTH_BYTES 65536u
#define PAGE_BYTES 4096u
#define FIELDS_BYTES 24u
#define CHUNK_BYTES (RIG_CHUNK_BYTES)

enum { RECORDS, PAGES, RELAY, STREAMS };
enum { DATA, SIDEBAND, AUX, BPF, WINDOW, PAGE, PIPE, RINGS };

static const struct core_options options = {.shards = 2,
					    .chunks = 16,
					    .chunk_bytes = CHUNK_BYTES,
					    .flush_ns = RIG_NEVER_NS,
					    .floor_bytes = 8192};
static struct core *core;
static struct fake_ring data, sideband, overwritten;
static struct fake_aux aux;
static struct fake_bpf bpf;
static struct stream *streams[STREAMS];
static struct ring *rings[RINGS];
static uint32_t next_ring, stream_of[STREAMS_MAX]; /* the last id that was seen, at each place */
static int page_ends[2], pipe_ends[2], files[STREAMS];

/* What a process has: allocated bytes, pages mapped by others than the heap, and descriptors. */
struct holdings {
	uint64_t heap_bytes, mapped_pages, fds;
};

static uint64_t mapped_pages(void)
{
	char text[32] = "";
	const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);

	CHECK(read(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	return strtoull(text, NULL, 10);
}

/* What the heap keeps for itself, and whether a block is mapped alone, depend on what other threads
 * allocated when: so both are left out. A sanitizer's heap tells nothing and gives nothing back:
 * then descriptors are all. */
static struct holdings holdings(void)
{
	struct mallinfo2 heap, again = mallinfo2();
	struct holdings found = {0};
	DIR *const dir = opendir("/proc/self/fd");

	CHECK(dir != NULL);
	while (readdir(dir) != NULL)
		found.fds++;
	closedir(dir);
	if (again.uordblks == 0)
		return found;
	do { /* until no thread changed the heap meanwhile */
		heap = again;
		found.mapped_pages = mapped_pages();
		again = mallinfo2();
	} while (again.arena != heap.arena || again.hblkhd != heap.hblkhd);
	found.heap_bytes = heap.uordblks + heap.hblkhd;
	found.mapped_pages -= (heap.arena + heap.hblkhd) / PAGE_BYTES;
	return found;
}

static void check_nothing_stays(const struct holdings *before)
{
	const struct holdings after = holdings();

	CHECK_EQ(after.fds, before->fds);
	CHECK(after.heap_bytes <= before->heap_bytes + GROWTH_BYTES);
	CHECK(after.mapped_pages <= before->mapped_pages + GROWTH_BYTES / PAGE_BYTES);
}

static void check_stream(const struct stream *stream)
{
	uint32_t *const last = &stream_of[stream->id % STREAMS_MAX];

	CHECK(*last == UINT32_MAX || stream->id > *last);
	*last = stream->id;
}

static void add_streams(void)
{
	CHECK_EQ(rig__add_stream(core, 1 << 16, 0, false, &streams[RECORDS]), 0);
	CHECK_EQ(rig__add_stream(core, 4096, PAGE_BYTES, false, &streams[PAGES]), 0);
	CHECK_EQ(rig__add_relay_stream(core, &streams[RELAY]), 0);
	for (uint32_t i = 0; i < STREAMS; i++) {
		files[i] = output__file();
		check_stream(streams[i]);
	}
}

static void add_perf(struct fake_ring *fake, bool named, bool held, struct ring **ring)
{
	CHECK_EQ(rig__add_ring(core, 0, streams[RECORDS], &fake->map, fake->wakeup_fd,
			       &records__layout, &(struct walk_ids){0}, named, held, ring),
		 0);
}

static void add_rings(void)
{
	const struct aux_ring_options aux_options = {.map = &aux.map};
	const struct bpf_ring_options bpf_options = {.perf = {.map = &bpf.map,
							      .wakeup_fd = data.wakeup_fd,
							      .layout = {.time_offset = 24}},
						     .id = 1,
						     .fields_bytes = FIELDS_BYTES};
	struct page_ring_options page_options = {
		.transport = PAGE_READ, .page_bytes = PAGE_BYTES, .subbufs = 8};
	struct relay_ring_options relay_options = {.contents = RELAY_BLKTRACE, .capacity = 65536};
	struct ring *made, *front;

	fake_ring__init(&overwritten, 1);
	overwritten.map.overwrite = true;
	add_perf(&data, false, false, &rings[DATA]);
	add_perf(&sideband, true, false, &rings[SIDEBAND]);
	add_perf(&overwritten, false, true, &rings[WINDOW]);
	add_perf(&aux.ring, false, false, &front);
	CHECK_EQ(rig__add_aux_ring(core, front, &aux_options, &rings[AUX]), 0);
	CHECK_EQ(bpf_ring__new(&bpf_options, &made), 0);
	/* Its descriptor is polled for the perf ring already. */
	made->wakeup_fd = dup(data.wakeup_fd);
	CHECK_EQ(core__add_ring(core, 1, streams[RECORDS], made), 0);
	rings[BPF] = made;
	CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, page_ends),
		 0);
	page_options.fd = page_ends[0];
	CHECK_EQ(rig__add_page_ring(core, 1, streams[PAGES], &page_options, &rings[PAGE]), 0);
	CHECK_EQ(pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK), 0);
	relay_options.fd = pipe_ends[0];
	CHECK_EQ(rig__add_relay_ring(core, 0, streams[RELAY], &relay_options, &rings[PIPE]), 0);
	for (uint32_t i = 0; i < RINGS; i++)
		CHECK(rings[i]->id >= next_ring);
	next_ring = rings[PIPE]->id + 1;
}

static void prepare(void)
{
	struct segment pages = {
		.token = 2, .fd = files[PAGES], .capacity = 1 << 20, .limit = RIG_LIMIT};
	struct segment relay = {.token = 3, .fd = -1, .limit = RIG_LIMIT};
	const uint64_t extent = 0, file = (uint64_t)files[RELAY];

	CHECK_EQ(rig__prepare_records(core, streams[RECORDS], 1, files[RECORDS], 0, RIG_LIMIT, 0),
		 0);
	CHECK_EQ(segment__set_places(&pages, rings[PAGE]->id, &extent, 1), 0);
	CHECK_EQ(core__prepare(core, streams[PAGES], &pages), 0);
	CHECK_EQ(segment__set_places(&relay, rings[PIPE]->id, &file, 1), 0);
	CHECK_EQ(core__prepare(core, streams[RELAY], &relay), 0);
}

/* One sample more in each ring, or what is one there. */
static void feed(uint32_t serial, uint32_t number)
{
	uint8_t record[PAGE_BYTES], *reserved;
	uint32_t size;

	CHECK(fake_ring__write(&data, record, record__sample(record, 128, serial, serial + 1)));
	CHECK(fake_ring__write(&sideband, record, record__comm(record, 7, 7, "x", 1, 1)));
	fake_ring__write_backward(&overwritten, record,
				  record__sample(record, 128, serial, serial + 1));
	CHECK_EQ(fake_aux__run(&aux, 10), 10);
	reserved = fake_bpf__reserve(&bpf, FIELDS_BYTES + 8);
	CHECK(reserved != NULL);
	memset(reserved, 0, FIELDS_BYTES + 8);
	fake_bpf__commit(reserved, false);
	page__fill(record, PAGE_BYTES, 1000, 0);
	CHECK_EQ(write(page_ends[1], record, PAGE_BYTES), PAGE_BYTES);
	size = blk_record__put(record, number, number, 0);
	CHECK_EQ(write(pipe_ends[1], record, size), size);
	CHECK_EQ(shard__post(rings[WINDOW], COMMAND_LET_GO), 0);
}

/* What feed() gives each stream. */
static const uint64_t samples_fed[STREAMS] = {[RECORDS] = 1 + 80 + 1 + 1, [PAGES] = 340, [RELAY] = 1};

static void await_written(void)
{
	const uint64_t generation = writer__issue(&core->writer);

	for (uint32_t i = 0; i < STREAMS; i++)
		while (stream__written(streams[i], core->writer.generation) < generation)
			await_notice(core->events.fd);
}

static void check_balance(bool lost)
{
	static const uint64_t fed[RINGS] = {[DATA] = 1,	  [SIDEBAND] = 0, [AUX] = 80, [BPF] = 1,
					    [WINDOW] = 1, [PAGE] = 340,	  [PIPE] = 1};

	for (uint32_t i = 0; i < RINGS; i++) {
		CHECK_EQ(counter__read(&rings[i]->stored), fed[i]);
		CHECK_EQ(counter__read(&rings[i]->lost_dropped), lost ? fed[i] : 0);
		CHECK_EQ(rings[i]->in_flight, 0);
	}
}

static void remove_rings(void)
{
	for (uint32_t i = 0; i < RINGS; i++)
		if (i != AUX)
			CHECK_EQ(shard__post(rings[i], COMMAND_REMOVE), 0);
	CHECK_EQ(shard__post(rings[AUX]->front, COMMAND_REMOVE), 0);
	for (uint32_t i = 0; i < RINGS; i++)
		while (!shard__has_left(rings[i]))
			await_notice(core->events.fd);
	fake_ring__deinit(&overwritten);
	close(rings[BPF]->wakeup_fd);
	for (uint32_t i = 0; i < 2; i++) {
		close(page_ends[i]);
		close(pipe_ends[i]);
	}
}

/* Returns the samples of all rings that a segment tells of. */
static uint64_t told(const struct event *event)
{
	uint64_t samples = 0;

	for (uint32_t i = 0; i < event->ring_count; i++)
		samples += event->rings[i].samples;
	return samples;
}

/* Each stream ends with the segment that it had, whatever its place holds next. */
static void await_closed(const uint32_t ids[STREAMS], bool final)
{
	uint32_t closed = 0;
	struct event *event;

	while (closed < STREAMS) {
		while ((event = core__event(core)) == NULL)
			await_notice(core->events.fd);
		if (event->kind == EVENT_SEGMENT_CLOSED) {
			CHECK_EQ(event->stream, ids[event->segment.token - 1]);
			CHECK_EQ(event->final, final);
			if (!final)
				CHECK_EQ(told(event), samples_fed[event->segment.token - 1]);
			closed++;
		}
		event__free(event);
	}
}

static void finish(struct core *of, struct stream *stream)
{
	core__request(of, stream, FINISH);
}

static void end_streams(void (*end_stream)(struct core *core, struct stream *stream))
{
	uint32_t ids[STREAMS];

	for (uint32_t i = 0; i < STREAMS; i++) {
		ids[i] = streams[i]->id;
		end_stream(core, streams[i]);
	}
	await_closed(ids, true);
}

static void close_files(void)
{
	for (uint32_t i = 0; i < STREAMS; i++)
		close(files[i]);
}

static void begin(void)
{
	memset(stream_of, 0xff, sizeof(stream_of));
	next_ring = 0;
	fake_ring__init(&data, 1);
	fake_ring__init(&sideband, 1);
	fake_aux__init(&aux, 1, 1, false);
	fake_bpf__init(&bpf, 1);
	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(core__start(core), 0);
}

static void end(void)
{
	core__free(core);
	fake_ring__deinit(&data);
	fake_ring__deinit(&sideband);
	fake_aux__deinit(&aux);
	fake_bpf__deinit(&bpf);
}

/* The last event of a forgotten stream comes before the disk's thread is done with it. */
static void await_no_stream(void)
{
	for (uint32_t i = 0; i < writer__streams(&core->writer); i++)
		while (writer__stream(&core->writer, i) != NULL) {
			event__free(core__event(core));
			sched_yield();
		}
}

static void rings_of_each_kind_come_and_go_and_leave_nothing(void)
{
	/* A sanitizer is slow, and descriptors show a leak sooner than bytes do. */
	const uint32_t rounds = mallinfo2().uordblks > 0 ? ROUNDS : ROUNDS / 4;
	struct holdings before = {0};
	struct core_counters counters;

	begin();
	for (uint32_t round = 0; round < rounds; round++) {
		if (round == WARM_UP)
			before = holdings();
		add_streams();
		add_rings();
		prepare();
		feed(round, 1);
		await_written();
		check_balance(false);
		remove_rings();
		end_streams(core__forget_stream);
		await_no_stream();
		close_files();
	}
	check_nothing_stays(&before);
	core__read_counters(core, &counters);
	CHECK_EQ(counters.chunks_free, counters.chunks);
	end();
}

/* Forget all rings, whose data may be in flight. */
static void forget_rings(void)
{
	for (uint32_t i = 0; i < RINGS; i++) {
		if (i == AUX)
			core__forget_ring(rings[AUX]->front);
		core__forget_ring(rings[i]);
	}
}

/* Only those of this round are there: the ends of the segments told of all others. */
static void check_ring_counts(const uint32_t counts[STREAMS])
{
	struct event *event;

	while ((event = core__event(core)) != NULL)
		event__free(event);
	for (uint32_t i = 0; i < STREAMS; i++)
		CHECK_EQ(streams[i]->ring_count, counts[i]);
}

/* As those of a CPU that leaves and returns again and again. */
static void rings_are_replaced_in_streams_that_go_on_and_leave_nothing(void)
{
	static const uint32_t counts[STREAMS] = {[RECORDS] = RINGS - 1, [PAGES] = 1, [RELAY] = 1};
	struct holdings before = {0};
	uint32_t ids[STREAMS];

	begin();
	add_streams();
	for (uint32_t i = 0; i < STREAMS; i++)
		ids[i] = streams[i]->id;
	for (uint32_t round = 0; round < RETURNS; round++) {
		if (round == WARM_UP)
			before = holdings();
		add_rings();
		prepare();
		if (round > 0) {
			await_closed(ids, false);
			check_ring_counts(counts);
		}
		feed(round, 1);
		if (round % 2 == 0)
			await_written();
		remove_rings();
		forget_rings();
		await_written();
		for (uint32_t i = 0; i < STREAMS; i++)
			core__request(core, streams[i], ROTATE);
	}
	check_nothing_stays(&before);
	end();
	close_files();
}

/* A segment lasts longer than many rings: each is freed before it ends, and it tells of each. */
static void rings_that_are_gone_leave_only_their_shares_of_a_segment(void)
{
	uint64_t samples = 0, bytes = 0;
	uint32_t ids[RETURNS];
	struct event *event;

	begin();
	add_streams();
	CHECK_EQ(rig__prepare_records(core, streams[RECORDS], 1, files[RECORDS], 0, RIG_LIMIT, 0),
		 0);
	for (uint32_t round = 0; round < RETURNS; round++) {
		uint8_t record[128];

		add_perf(&data, false, false, &rings[DATA]);
		ids[round] = rings[DATA]->id;
		CHECK(fake_ring__write(&data, record, record__sample(record, 128, round, round + 1)));
		await_written();
		CHECK_EQ(rig__tell(rings[DATA], COMMAND_REMOVE), 0);
		core__forget_ring(rings[DATA]);
		check_ring_counts((const uint32_t[STREAMS]){0});
	}
	core__request(core, streams[RECORDS], FINISH);
	while ((event = core__event(core)) == NULL || event->kind != EVENT_SEGMENT_CLOSED) {
		event__free(event);
		await_notice(core->events.fd);
	}
	CHECK_EQ(event->ring_count, RETURNS);
	for (uint32_t i = 0; i < RETURNS; i++) {
		CHECK_EQ(event->rings[i].id, ids[i]);
		samples += event->rings[i].samples;
		bytes += event->rings[i].bytes;
	}
	CHECK_EQ(samples, RETURNS);
	CHECK_EQ(samples, event->segment.samples);
	CHECK_EQ(bytes, RETURNS * 128u);
	event__free(event);
	end();
	close_files();
}

/* What comes late, to the file whose number another one has by then, is lost and counted as that. */
static void a_finished_stream_of_any_kind_takes_nothing_more(void)
{
	const int victim = output__file();

	begin();
	add_streams();
	add_rings();
	prepare();
	feed(1, 1);
	await_written();
	end_streams(finish);
	for (uint32_t i = 0; i < STREAMS; i++)
		CHECK(dup2(victim, files[i]) == files[i]);
	feed(2, 2);
	await_written();
	check_balance(true);
	CHECK_EQ(lseek(victim, 0, SEEK_END), 0);
	CHECK_EQ(-rig__prepare_records(core, streams[RECORDS], 4, victim, 0, RIG_LIMIT, 0),
		 ESHUTDOWN);
	remove_rings();
	end();
	close_files();
	close(victim);
}

static sem_t stuck, begun;

/* A disk that answers nothing. */
static int write_stuck(struct stream *stream, struct item *item, uint64_t *bytes)
{
	CHECK_EQ(sem_post(&begun), 0);
	while (sem_wait(&stuck) < 0)
		continue;
	CHECK_EQ(sem_post(&stuck), 0);
	return record_stream__ops.write(stream, item, bytes);
}

/* What a snapshot waits for, and then what a stop does: all of it while the other's disk stands. */
static void neither_a_snapshot_nor_a_stop_waits_for_the_disk_of_another(void)
{
	struct stream_ops ops = record_stream__ops;
	struct fake_ring fakes[2];
	uint8_t record[128];
	uint64_t generation;
	struct event *event;
	uint32_t closed = 0;

	ops.write = write_stuck;
	ops.send = NULL;
	CHECK_EQ(sem_init(&stuck, 0, 0), 0);
	CHECK_EQ(sem_init(&begun, 0, 0), 0);
	CHECK_EQ(core__new(&options, &core), 0);
	for (uint32_t i = 0; i < 2; i++) {
		files[i] = i == 0 ? output__file() : memfd_create("other", MFD_CLOEXEC);
		fake_ring__init(&fakes[i], 1);
		CHECK_EQ(rig__add_stream(core, 1 << 16, 0, false, &streams[i]), 0);
		CHECK_EQ(rig__add_ring(core, 0, streams[i], &fakes[i].map, fakes[i].wakeup_fd,
				       &records__layout, &(struct walk_ids){0}, false, false,
				       &rings[i]),
			 0);
		CHECK_EQ(rig__prepare_records(core, streams[i], i, files[i], 0, RIG_LIMIT, 0), 0);
		CHECK(fake_ring__write(&fakes[i], record, record__sample(record, 128, 0, 1)));
	}
	streams[0]->ops = &ops;
	CHECK_EQ(core__start(core), 0);
	generation = writer__issue(&core->writer);
	while (sem_wait(&begun) < 0)
		continue;
	/* The windows are taken and written, and the segment is closed. */
	CHECK_EQ(rig__tell(rings[1], COMMAND_HOLD), 0);
	while (stream__written(streams[1], core->writer.generation) < generation)
		await_notice(core->events.fd);
	core__request(core, streams[1], ROTATE);
	CHECK_EQ(rig__prepare_records(core, streams[1], 2, files[1], 1 << 20, RIG_LIMIT, 0), 0);
	CHECK_EQ(rig__tell(rings[1], COMMAND_LET_GO), 0);
	/* And the end, which frees all that it had. */
	CHECK(fake_ring__write(&fakes[1], record, record__sample(record, 128, 1, 2)));
	CHECK_EQ(rig__tell(rings[1], COMMAND_REMOVE), 0);
	core__forget_stream(core, streams[1]);
	while (closed < 2) {
		while ((event = core__event(core)) == NULL)
			await_notice(core->events.fd);
		if (event->kind == EVENT_SEGMENT_CLOSED) {
			CHECK_EQ(event->segment.token, ++closed);
			CHECK_EQ(event->segment.samples, 1);
		}
		event__free(event);
	}
	CHECK_EQ(counter__read(&rings[0]->stored), 0);
	CHECK(stream__written(streams[0], core->writer.generation) < generation);
	CHECK_EQ(sem_post(&stuck), 0);
	core__free(core);
	for (uint32_t i = 0; i < 2; i++) {
		fake_ring__deinit(&fakes[i]);
		close(files[i]);
	}
	CHECK_EQ(sem_destroy(&begun), 0);
	CHECK_EQ(sem_destroy(&stuck), 0);
}

/* Without samples nothing counts as in flight, and the writer refers to the ring all the same. */
static void a_forgotten_ring_stays_until_the_writer_is_done_with_it(void)
{
	struct stream_ops ops = record_stream__ops;
	struct stream **const stream = &streams[RECORDS];
	const int file = output__file();
	uint8_t record[128];
	struct event *event;
	struct ring *ring;

	ops.write = write_stuck;
	ops.send = NULL;
	CHECK_EQ(sem_init(&stuck, 0, 0), 0);
	CHECK_EQ(sem_init(&begun, 0, 0), 0);
	fake_ring__init(&sideband, 1);
	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(rig__add_stream(core, 1 << 16, 0, false, stream), 0);
	CHECK_EQ(rig__prepare_records(core, *stream, 1, file, 0, RIG_LIMIT, 0), 0);
	CHECK_EQ(rig__add_ring(core, 0, *stream, &sideband.map, sideband.wakeup_fd,
			       &records__layout, &(struct walk_ids){0}, false, false, &ring),
		 0);
	CHECK(fake_ring__write(&sideband, record, record__comm(record, 7, 7, "x", 1, 1)));
	(*stream)->ops = &ops;
	CHECK_EQ(core__start(core), 0);
	CHECK_EQ(rig__tell(ring, COMMAND_REMOVE), 0);
	core__forget_ring(ring);
	while (sem_wait(&begun) < 0)
		continue;
	CHECK_EQ(ring->in_flight, 0);
	while ((event = core__event(core)) != NULL)
		event__free(event);
	CHECK_EQ((*stream)->ring_count, 1);
	CHECK_EQ(sem_post(&stuck), 0);
	core__request(core, *stream, FINISH);
	while ((*stream)->ring_count > 0) {
		while ((event = core__event(core)) == NULL)
			await_notice(core->events.fd);
		event__free(event);
	}
	core__free(core);
	fake_ring__deinit(&sideband);
	close(file);
	CHECK_EQ(sem_destroy(&begun), 0);
	CHECK_EQ(sem_destroy(&stuck), 0);
}

#define SIZE_AT 48

/* No flush follows that would tell readers of what it left. */
static void readers_are_told_of_what_the_last_ring_left(void)
{
	const int file = output__file();
	struct segment segment = {.fd = file,
				  .offset = 4096,
				  .limit = RIG_LIMIT,
				  .size_at = SIZE_AT,
				  .size_base = 4096,
				  .size_fd = file};
	uint8_t record[128];
	struct stream *stream;
	struct ring *ring;
	uint64_t size = 0;

	begin();
	CHECK_EQ(rig__add_stream(core, 1 << 16, 0, false, &stream), 0);
	CHECK_EQ(core__prepare(core, stream, &segment), 0);
	CHECK_EQ(rig__add_ring(core, 0, stream, &data.map, data.wakeup_fd, &records__layout,
			       &(struct walk_ids){0}, false, false, &ring),
		 0);
	CHECK(fake_ring__write(&data, record, record__sample(record, sizeof(record), 1, 1000)));
	CHECK_EQ(rig__tell(ring, COMMAND_REMOVE), 0);
	while (pread(file, &size, sizeof(size), SIZE_AT) != sizeof(size) || size == 0)
		sched_yield();
	CHECK_EQ(size, sizeof(record));
	end();
	close(file);
}

int main(void)
{
	/* Another arena reserves address space that mallinfo2() does not tell of. */
	mallopt(M_ARENA_MAX, 1);
	RUN(a_finished_stream_of_any_kind_takes_nothing_more);
	RUN(neither_a_snapshot_nor_a_stop_waits_for_the_disk_of_another);
	RUN(rings_of_each_kind_come_and_go_and_leave_nothing);
	RUN(rings_are_replaced_in_streams_that_go_on_and_leave_nothing);
	RUN(rings_that_are_gone_leave_only_their_shares_of_a_segment);
	RUN(a_forgotten_ring_stays_until_the_writer_is_done_with_it);
	RUN(readers_are_told_of_what_the_last_ring_left);
	return 0;
}

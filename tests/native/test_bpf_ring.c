/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "fake_bpf.h"
#include "fake_ring.h"
#include "guarded.h"
#include "records.h"
#include "rig.h"

#define CHUNK_BYTES (65536u + CHUNK_ALIGN_BYTES)
#define FIELDS_BYTES 24u /* u32 pid, tid; u64 time; u32 cpu, 0 */
#define ID 4711u
#define SERIALS 200000u

static struct fake_bpf fake;
static struct ring *ring;
static struct guarded staging;
static struct chunk chunk;
static uint64_t serial; /* of the next record that is put, and of the next one that comes out */
static uint64_t expected;

static void make_ring(struct ring_map *map, struct ring_note *note)
{
	const struct bpf_ring_options options = {
		.perf = {.map = map, .wakeup_fd = -1, .layout = {.time_offset = 24}, .note = note},
		.id = ID,
		.fields_bytes = FIELDS_BYTES,
	};

	CHECK_EQ(bpf_ring__new(&options, &ring), 0);
}

static void open_ring(struct ring_map *map)
{
	make_ring(map, NULL);
	guarded__init(&staging, CHUNK_BYTES, -1);
	records__chunk(&chunk, staging.data);
	serial = expected = 0;
}

static void begin(uint64_t position)
{
	fake_bpf__init(&fake, 16);
	fake_bpf__start_at(&fake, position);
	open_ring(&fake.map);
}

static void end(void)
{
	ring->ops->free(ring);
	guarded__deinit(&staging);
	fake_bpf__deinit(&fake);
}

/* An event of 8 bytes and more, whose length and contents follow from its serial. */
static uint32_t event_bytes(uint64_t of)
{
	return 8 + (uint32_t)(of * 7 % 90);
}

static uint8_t *reserve(void)
{
	const uint64_t time_ns = 1000 + serial;
	uint8_t *const to = fake_bpf__reserve(&fake, FIELDS_BYTES + event_bytes(serial));

	if (to == NULL)
		return NULL;
	memset(to, (int)(serial % 251), FIELDS_BYTES + event_bytes(serial));
	memcpy(to + 8, &time_ns, sizeof(time_ns));
	memcpy(to + FIELDS_BYTES, &serial, sizeof(serial));
	serial++;
	return to;
}

static bool put(void)
{
	uint8_t *const record = reserve();

	if (record != NULL)
		fake_bpf__commit(record, false);
	return record != NULL;
}

/* All samples of the chunk are whole, in order, and what was put; then it is empty again. */
static void check_chunk(void)
{
	for (uint32_t at = 0; at < chunk.used; expected++) {
		const uint8_t *const sample = chunk.data + at;
		const uint32_t bytes = event_bytes(expected);
		const uint32_t size = (16 + FIELDS_BYTES + 4 + bytes + 7) & ~7u;
		uint32_t raw;

		CHECK_EQ(walk__load(sample), walk__header(PERF_RECORD_SAMPLE, 0, (uint16_t)size));
		CHECK_EQ(walk__load(sample + 8), ID);
		CHECK_EQ(walk__load(sample + 24), 1000 + expected);
		CHECK_EQ(sample[16], expected % 251);
		memcpy(&raw, sample + 16 + FIELDS_BYTES, sizeof(raw));
		CHECK_EQ(raw, size - 16 - FIELDS_BYTES - 4);
		CHECK_EQ(memcmp(sample + 44, &expected, sizeof(expected)), 0);
		for (uint32_t i = 8; i < raw; i++)
			CHECK_EQ(sample[44 + i], i < bytes ? expected % 251 : 0);
		at += size;
	}
	records__chunk(&chunk, staging.data);
}

static enum ring_take take(void)
{
	return ring->ops->take(ring, &chunk, CHUNK_BYTES);
}

static void records_come_out_as_samples_across_every_wrap(void)
{
	begin(UINT64_MAX - 65535); /* positions wrap too */
	for (int pass = 0; pass < 500; pass++) {
		for (int i = 0; i < pass % 50; i++)
			CHECK(put());
		CHECK_EQ(ring__begin(ring), fake.head - ring->position);
		CHECK_EQ(take(), RING_EMPTY);
		CHECK_EQ(ring_map__tail(&fake.map), fake.head);
		check_chunk();
		CHECK_EQ(expected, serial);
	}
	CHECK_EQ(counter__read(&ring->samples), serial);
	CHECK_EQ(counter__read(&ring->last_sample_ns), 1000 + serial - 1);
	CHECK_EQ(ring->in_flight, serial);
	end();
}

static void a_full_ring_takes_as_many_chunks_as_it_needs(void)
{
	enum ring_take took = RING_CHUNK_FULL;

	begin(0);
	while (put())
		;
	(void)ring__begin(ring);
	while (took == RING_CHUNK_FULL) {
		chunk.used = 40000 & ~7u;
		memset(chunk.data, 0, chunk.used);
		took = take();
		CHECK(chunk.used <= CHUNK_BYTES - CHUNK_MARKER_BYTES);
		memmove(chunk.data, chunk.data + 40000, chunk.used - 40000);
		chunk.used -= 40000;
		check_chunk();
	}
	CHECK_EQ(took, RING_EMPTY);
	CHECK_EQ(expected, serial);
	end();
}

/* Nothing behind it is read: it comes first when it is committed. */
static void a_record_that_is_busy_is_waited_for(void)
{
	uint8_t *busy;

	begin(0);
	CHECK(put());
	busy = reserve();
	CHECK(put());
	(void)ring__begin(ring);
	CHECK_EQ(take(), RING_EMPTY);
	CHECK_EQ(counter__read(&ring->samples), 1);
	CHECK_EQ(ring_map__tail(&fake.map), ring->position);
	fake_bpf__commit(busy, false);
	(void)ring__begin(ring);
	CHECK_EQ(take(), RING_EMPTY);
	CHECK_EQ(counter__read(&ring->samples), 3);
	check_chunk();
	CHECK_EQ(expected, 3);
	end();
}

static void what_the_program_took_back_is_passed_over(void)
{
	uint8_t *record;

	begin(0);
	CHECK(put());
	record = fake_bpf__reserve(&fake, 5);
	fake_bpf__commit(record, true);
	CHECK(put());
	(void)ring__begin(ring);
	CHECK_EQ(take(), RING_EMPTY);
	CHECK_EQ(counter__read(&ring->samples), 2);
	check_chunk();
	end();
}

/* Too short for its fields, too long for a sample, longer than the ring, and a head that is none. */
static void what_cannot_be_is_passed_over(void)
{
	const uint32_t lengths[] = {FIELDS_BYTES - 1, 65528, 1u << 29};

	for (uint32_t i = 0; i < 4; i++) {
		begin(0);
		if (i < 2) {
			fake_bpf__deinit(&fake);
			fake_bpf__init(&fake, 32);
			bpf_ring__of(ring)->perf.map = &fake.map;
		}
		CHECK(put());
		if (i < 2)
			fake_bpf__commit(fake_bpf__reserve(&fake, lengths[i]), false);
		else if (i == 2)
			fake_bpf__commit(memset(fake_bpf__reserve(&fake, 64), 0, 64), false);
		if (i == 2)
			memcpy(fake_bpf__reserve(&fake, 64) - 8, &lengths[i], 4);
		if (i == 3)
			fake_bpf__set_head(&fake, fake.map.data_bytes + 8);
		CHECK_EQ(ring__begin(ring) > 0, i < 3);
		if (i < 3)
			CHECK_EQ(take(), RING_FAULTY);
		CHECK_EQ(counter__read(&ring->faults), 1);
		CHECK_EQ(ring->position, fake.head);
		CHECK_EQ(ring_map__tail(&fake.map), fake.head);
		CHECK_EQ(counter__read(&ring->samples), i == 3 ? 0 : 1 + (i == 2));
		end();
	}
}

/* Killed between its note and the tail, it leaves what is unread to the next one, and no more. */
static void a_successor_goes_on_behind_what_is_noted(void)
{
	struct ring_note note = {0};
	uint64_t position = 0;
	uint64_t samples = 0;

	begin(0);
	for (int life = 1; life <= 3; life++) {
		ring->ops->free(ring);
		make_ring(&fake.map, &note);
		ring_note__read(&note, &position, &samples);
		CHECK_EQ(ring->position, position);
		CHECK_EQ(samples, expected);
		/* The time of the one that the last life has left. */
		CHECK_EQ(counter__read(&ring->left_ns), life > 1 ? 1000 + expected : UINT64_MAX);
		CHECK(put());
		CHECK(put());
		(void)ring__begin(ring);
		CHECK_EQ(take(), RING_EMPTY);
		check_chunk();
		CHECK_EQ(expected, serial);
		CHECK(put());
		(void)ring__begin(ring);
		ring->ops->leave(ring, false);
		CHECK_EQ(counter__read(&ring->abandoned), 0);
		__atomic_store_n(fake.map.tail, 0, __ATOMIC_RELEASE);
	}
	end();
}

static void a_ring_that_is_left_counts_what_is_lost(void)
{
	begin(0);
	for (int i = 0; i < 10; i++)
		CHECK(put());
	fake_bpf__commit(fake_bpf__reserve(&fake, 5), true);
	(void)ring__begin(ring);
	ring->ops->leave(ring, false);
	CHECK_EQ(counter__read(&ring->samples), 10);
	CHECK_EQ(counter__read(&ring->abandoned), 10);
	CHECK_EQ(ring_map__tail(&fake.map), 0);
	end();
}

static void *produce(void *unused)
{
	(void)unused;
	while (serial < SERIALS)
		if (!put())
			sched_yield();
	return NULL;
}

static void a_producer_and_a_consumer_agree(void)
{
	pthread_t thread;

	begin(0);
	CHECK_EQ(pthread_create(&thread, NULL, produce, NULL), 0);
	while (expected < SERIALS) {
		(void)ring__begin(ring);
		(void)take();
		check_chunk();
	}
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(counter__read(&ring->samples), SERIALS);
	end();
}

static int bpf(int command, union bpf_attr *attr)
{
	return (int)syscall(SYS_bpf, command, attr, sizeof(*attr));
}

/* A program that hands out 32 bytes of a register's value, with these flags, each time that it runs. */
static int load_program(int map_fd, int flags)
{
	const struct bpf_insn program[] = {
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_6, .imm = 7},
		{.code = BPF_STX | BPF_MEM | BPF_DW, .dst_reg = 10, .src_reg = 6, .off = -8},
		{.code = BPF_STX | BPF_MEM | BPF_DW, .dst_reg = 10, .src_reg = 6, .off = -16},
		{.code = BPF_STX | BPF_MEM | BPF_DW, .dst_reg = 10, .src_reg = 6, .off = -24},
		{.code = BPF_STX | BPF_MEM | BPF_DW, .dst_reg = 10, .src_reg = 6, .off = -32},
		{.code = BPF_LD | BPF_DW | BPF_IMM,
		 .dst_reg = 1,
		 .src_reg = BPF_PSEUDO_MAP_FD,
		 .imm = map_fd},
		{0},
		{.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = 2, .src_reg = 10},
		{.code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = 2, .imm = -32},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = 32},
		{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 4, .imm = flags},
		{.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_ringbuf_output},
		{.code = BPF_JMP | BPF_EXIT},
	};
	union bpf_attr attr = {
		.prog_type = BPF_PROG_TYPE_SOCKET_FILTER,
		.insns = (uintptr_t)program,
		.insn_cnt = sizeof(program) / sizeof(program[0]),
		.license = (uintptr_t)"GPL",
	};

	return bpf(BPF_PROG_LOAD, &attr);
}

static int make_map(uint64_t bytes)
{
	union bpf_attr made = {.map_type = BPF_MAP_TYPE_RINGBUF, .max_entries = (uint32_t)bytes};

	return bpf(BPF_MAP_CREATE, &made);
}

static void run_program(int fd, uint32_t times)
{
	uint8_t packet[64] = {0};
	union bpf_attr run = {.test = {.prog_fd = (uint32_t)fd,
				       .data_in = (uintptr_t)packet,
				       .data_size_in = sizeof(packet),
				       .repeat = times}};

	CHECK_EQ(bpf(BPF_PROG_TEST_RUN, &run), 0);
}

static void a_ring_of_the_kernel_is_read(void)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const int map_fd = make_map(page);
	const int program_fd = load_program(map_fd, 0);
	struct ring_map map;

	CHECK(map_fd >= 0 && program_fd >= 0);
	CHECK_EQ(-ring_map__init_bpf(&map, map_fd, page / 2), EINVAL);
	CHECK_EQ(-ring_map__init_bpf(&map, -1, page), EBADF);
	CHECK_EQ(ring_map__init_bpf(&map, map_fd, page), 0);
	open_ring(&map);
	for (uint64_t runs = 1; runs <= 10; runs++) {
		run_program(program_fd, 50);
		CHECK_EQ(ring__begin(ring), 50 * 40);
		CHECK_EQ(take(), RING_EMPTY);
		CHECK_EQ(counter__read(&ring->samples), runs * 50);
		CHECK_EQ(walk__load(chunk.data + 24), 7);
		records__chunk(&chunk, staging.data);
	}
	ring->ops->free(ring);
	guarded__deinit(&staging);
	ring_map__deinit(&map);
	close(program_fd);
	close(map_fd);
}

static struct core *core_with(struct ring_map *map, int wakeup_fd)
{
	const struct core_options options = {.shards = 1,
					     .chunks = 4,
					     .chunk_bytes = RIG_CHUNK_BYTES,
					     .flush_ns = RIG_NEVER_NS,
					     .floor_bytes = 8192};
	const struct bpf_ring_options ring_options = {
		.perf = {.map = map, .wakeup_fd = wakeup_fd, .layout = {.time_offset = 24}},
		.id = ID,
		.fields_bytes = FIELDS_BYTES,
	};
	struct stream *stream;
	struct core *core;

	CHECK_EQ(core__new(&options, &core), 0);
	CHECK_EQ(rig__add_stream(core, 65536, 0, false, &stream), 0);
	CHECK_EQ(bpf_ring__new(&ring_options, &ring), 0);
	CHECK_EQ(core__add_ring(core, 0, stream, ring), 0);
	CHECK_EQ(core__start(core), 0);
	return core;
}

static void await_samples(uint64_t count)
{
	while (counter__read(&ring->samples) < count)
		sched_yield();
	CHECK_EQ(counter__read(&ring->samples), count);
}

/* And then all that is there is taken. */
static void the_program_says_when_to_wake(void)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	const int map_fd = make_map(page);
	const int quiet_fd = load_program(map_fd, BPF_RB_NO_WAKEUP);
	const int loud_fd = load_program(map_fd, BPF_RB_FORCE_WAKEUP);
	struct core *core;
	struct ring_map map;

	CHECK(map_fd >= 0 && quiet_fd >= 0 && loud_fd >= 0);
	CHECK_EQ(ring_map__init_bpf(&map, map_fd, page), 0);
	core = core_with(&map, map_fd);
	for (uint64_t woken = 1; woken <= 10; woken++) {
		run_program(quiet_fd, 20);
		run_program(loud_fd, 1);
		await_samples(woken * 21);
		CHECK_EQ(counter__read(&ring->wakeups_watermark), woken);
	}
	core__stop(core);
	core__free(core);
	ring_map__deinit(&map);
	close(loud_fd);
	close(quiet_fd);
	close(map_fd);
}

/* The fd of a ring into which CPUs write without a pause. */
static void an_fd_that_stays_ready_wakes_once(void)
{
	const int ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct core *core;

	fake_bpf__init(&fake, 16);
	serial = 0;
	core = core_with(&fake.map, ready_fd);
	for (uint64_t woken = 1; woken <= 10; woken++) {
		CHECK(put());
		eventfd_write(ready_fd, 1);
		await_samples(woken);
		/* Whole passes follow. */
		for (int i = 0; i < 10; i++) {
			const uint64_t generation = writer__issue(&core->writer);

			while (writer__drained(&core->writer) < generation)
				sched_yield();
		}
		CHECK_EQ(counter__read(&ring->wakeups_watermark), woken);
	}
	core__stop(core);
	core__free(core);
	fake_bpf__deinit(&fake);
	close(ready_fd);
}

int main(void)
{
	RUN(records_come_out_as_samples_across_every_wrap);
	RUN(a_full_ring_takes_as_many_chunks_as_it_needs);
	RUN(a_record_that_is_busy_is_waited_for);
	RUN(what_the_program_took_back_is_passed_over);
	RUN(what_cannot_be_is_passed_over);
	RUN(a_successor_goes_on_behind_what_is_noted);
	RUN(a_ring_that_is_left_counts_what_is_lost);
	RUN(a_producer_and_a_consumer_agree);
	RUN(a_ring_of_the_kernel_is_read);
	RUN(the_program_says_when_to_wake);
	RUN(an_fd_that_stays_ready_wakes_once);
	return 0;
}

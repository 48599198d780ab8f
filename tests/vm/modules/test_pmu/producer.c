// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Bytes and transactions: what the timer of a CPU writes into the AUX buffer of its event.
 *
 * The stream of a CPU is addressed by its position in bytes, so what is lost is a jump of the
 * position and what is written late (flush_on_stop) is written from an older one.
 */
#include <linux/hrtimer.h>
#include <linux/math64.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/timekeeping.h>
#include <linux/smp.h>

#include "test_pmu.h"

#define PERIOD_MIN_US 20u
#define CHUNK_MAX_BYTES (1u << 20)
#define COUNTER_BITS 56

static u64 period_ns(void)
{
	return (u64)max(READ_ONCE(knobs.period_us), PERIOD_MIN_US) * NSEC_PER_USEC;
}

static u64 chunk_bytes(void)
{
	return round_down(min(READ_ONCE(knobs.chunk_bytes), CHUNK_MAX_BYTES), WORD_BYTES);
}

static u64 *position(struct trace_cpu *tc)
{
	return tc->uploading ? &tc->upload_bytes : &tc->counter_bytes;
}

/* How much of `want` the source has: an upload ends, the counter does not. */
static u64 available(const struct trace_cpu *tc, u64 want)
{
	if (!tc->uploading)
		return want;
	if (!tc->upload || !tc->upload->bytes)
		return 0;
	if (READ_ONCE(knobs.upload_repeat))
		return want;
	if (tc->upload_bytes >= tc->upload->bytes)
		return 0;
	return min(want, tc->upload->bytes - tc->upload_bytes);
}

/* The next `bytes` of the stream were produced. */
static void advance(struct trace_cpu *tc, u64 bytes)
{
	*position(tc) += bytes;
	tc->tally.produced_bytes += bytes;
	if (identity.count_bytes)
		local64_add(bytes, &tc->event->count);
}

/* The next `bytes` of the stream were produced and there is nowhere to put them. */
static void lose(struct trace_cpu *tc, u64 bytes)
{
	advance(tc, bytes);
	tc->tally.truncated_bytes += bytes;
}

static void copy_upload(const struct upload *upload, u64 from, u8 *to, u64 bytes)
{
	u64 offset, part;

	div64_u64_rem(from, upload->bytes, &offset);
	while (bytes) {
		part = min(bytes, upload->bytes - offset);
		memcpy(to, upload->data + offset, part);
		to += part;
		bytes -= part;
		offset = 0;
	}
}

static void count_words(u64 from, u64 *to, u64 bytes)
{
	const u64 first = ((u64)smp_processor_id() << COUNTER_BITS) | (from / WORD_BYTES);
	const u64 words = bytes / WORD_BYTES;
	u64 i;

	for (i = 0; i < words; i++)
		to[i] = first + i;
}

/* Writes [from, from + bytes) of the stream at byte `at` of the buffer, which wraps. */
static void put(struct trace_cpu *tc, struct trace_buffer *buffer, u64 at, u64 from, u64 bytes)
{
	u64 offset, part;
	u8 *to;

	tc->tally.written_bytes += bytes;
	while (bytes) {
		offset = at & (buffer->bytes - 1);
		part = min(bytes, PAGE_SIZE - offset_in_page(offset));
		to = (u8 *)buffer->pages[offset >> PAGE_SHIFT] + offset_in_page(offset);
		if (tc->uploading)
			copy_upload(tc->upload, from, to, part);
		else
			count_words(from, (u64 *)to, part);
		at += part;
		from += part;
		bytes -= part;
	}
}

static void pad(struct trace_buffer *buffer, u64 at, u64 bytes)
{
	u64 offset;

	for (; bytes; at++, bytes--) {
		offset = at & (buffer->bytes - 1);
		*((u8 *)buffer->pages[offset >> PAGE_SHIFT] + offset_in_page(offset)) = (u8)PAD_WORD;
	}
}

static bool is_forced(struct trace_cpu *tc, enum forced_flag flag)
{
	const int every = READ_ONCE(knobs.forced[flag]);
	const unsigned int writes = READ_ONCE(knobs.forced_writes[flag]);

	if (every > 0)
		return tc->tally.transactions % every == 0;
	if (every == 0 || tc->forced_seen[flag] == writes)
		return false;
	tc->forced_seen[flag] = writes;
	return true;
}

/*
 * Ends the open transaction. True if it raised TRUNCATED, on which the kernel is to disable the
 * event: nothing may be written any more.
 */
static bool close_transaction(struct trace_cpu *tc, struct trace_buffer *buffer, u64 flags)
{
	const u64 format = READ_ONCE(knobs.format_flags) & PERF_AUX_FLAG_PMU_FORMAT_TYPE_MASK;
	u64 bytes = tc->filled;

	tc->tally.transactions++;
	flags |= tc->pending_flags;
	tc->pending_flags = 0;
	if (is_forced(tc, FORCED_TRUNCATED))
		flags |= PERF_AUX_FLAG_TRUNCATED;
	if (is_forced(tc, FORCED_PARTIAL))
		flags |= PERF_AUX_FLAG_PARTIAL;
	if (is_forced(tc, FORCED_COLLISION))
		flags |= PERF_AUX_FLAG_COLLISION;
	if (flags & PERF_AUX_FLAG_TRUNCATED)
		tc->tally.truncated_flags++;
	if (flags & PERF_AUX_FLAG_PARTIAL)
		tc->tally.partial_flags++;
	if (flags & PERF_AUX_FLAG_COLLISION)
		tc->tally.collision_flags++;

	if (buffer->overwrite) {
		bytes = identity.head == HEAD_WHOLE ? buffer->bytes : min(bytes, buffer->bytes);
		tc->handle.head =
			identity.head == HEAD_MONOTONIC ? tc->head : tc->head & (buffer->bytes - 1);
	}
	if (bytes || flags)
		tc->tally.records++;
	if (flags | format)
		perf_aux_output_flag(&tc->handle, flags | format);
	tc->filled = 0;
	/* The data before aux_head, which perf_aux_output_end() stores plainly. Pairs with the
	 * consumer's acquire of aux_head. */
	smp_wmb();
	perf_aux_output_end(&tc->handle, bytes);
	return flags & PERF_AUX_FLAG_TRUNCATED;
}

/*
 * Bytes that may be written before the transaction must end: the buffer's room, the size that is
 * wanted for a record, and where user space wants to be woken, which only the end of one does.
 */
static u64 transaction_limit(const struct trace_cpu *tc, u64 room)
{
	const u64 record = READ_ONCE(knobs.aux_record_bytes);
	const u64 to_wakeup = tc->handle.wakeup - tc->handle.head;
	u64 limit = room;

	if (record)
		limit = min(limit, max(record, WORD_BYTES));
	if ((s64)to_wakeup > 0)
		limit = min(limit, round_up(to_wakeup, WORD_BYTES));
	return tc->uploading ? limit : round_down(limit, WORD_BYTES);
}

/* Room for whole words; an upload fills to the last byte. */
static u64 room_of(const struct trace_cpu *tc)
{
	return tc->uploading ? tc->handle.size : round_down(tc->handle.size, WORD_BYTES);
}

/* Steps over bytes that no AUX record covers: to the next word, and by skip_bytes. */
static void skip(struct trace_cpu *tc, struct trace_buffer *buffer)
{
	const u64 head = tc->handle.head;
	u64 bytes = 0;

	if (!tc->uploading)
		bytes = round_up(head, WORD_BYTES) - head;
	bytes += round_down(READ_ONCE(knobs.skip_bytes), WORD_BYTES);
	if (!bytes || bytes > tc->handle.size)
		return;
	pad(buffer, head, bytes);
	/* The padding before aux_head, as in close_transaction(). */
	smp_wmb();
	if (perf_aux_output_skip(&tc->handle, bytes) == 0)
		tc->tally.skipped_bytes += bytes;
}

/* The kernel was told that the buffer is full: silent until the event is started again. */
static void fall_silent(struct trace_cpu *tc)
{
	tc->event->hw.state |= PERF_HES_STOPPED | PERF_HES_UPTODATE;
	tc->halted_event = tc->event;
	tc->halted_at_ns = ktime_get_ns();
	tc->tally.halts++;
}

static void end_halt(struct trace_cpu *tc)
{
	u64 halted_ns;

	if (tc->halted_event == tc->event) {
		halted_ns = ktime_get_ns() - tc->halted_at_ns;
		tc->tally.halted_ns += halted_ns;
		tc->uploading = READ_ONCE(knobs.upload);
		if (READ_ONCE(knobs.produce_while_stopped))
			lose(tc, available(tc, div64_u64(halted_ns, period_ns()) * chunk_bytes()));
	}
	tc->halted_event = NULL;
}

/*
 * Begins a transaction. NULL if there is no buffer, or no room: then the kernel was told so in a
 * record without data, and the event is halted.
 */
static struct trace_buffer *open_transaction(struct trace_cpu *tc)
{
	struct trace_buffer *buffer = perf_aux_output_begin(&tc->handle, tc->event);

	if (!buffer) {
		tc->tally.begin_failed++;
		return NULL;
	}
	tc->uploading = READ_ONCE(knobs.upload);
	tc->flushing = READ_ONCE(knobs.flush_on_stop) && !buffer->overwrite;
	tc->filled = 0;
	tc->limit = U64_MAX;
	if (buffer->overwrite) {
		tc->head = tc->uploading ? tc->handle.head : round_up(tc->handle.head, WORD_BYTES);
		return buffer;
	}
	skip(tc, buffer);
	tc->head = tc->handle.head;
	tc->limit = transaction_limit(tc, room_of(tc));
	if (tc->limit || !READ_ONCE(knobs.stop_on_full))
		return buffer;
	close_transaction(tc, buffer, PERF_AUX_FLAG_TRUNCATED);
	fall_silent(tc);
	return NULL;
}

/* flush_on_stop: the newest of what was produced since the start, as much as there is room for. */
static void write_backlog(struct trace_cpu *tc, struct trace_buffer *buffer)
{
	const u64 bytes = min(tc->backlog, room_of(tc));

	if (bytes < tc->backlog) {
		tc->tally.truncated_bytes += tc->backlog - bytes;
		tc->pending_flags |= PERF_AUX_FLAG_TRUNCATED;
	}
	put(tc, buffer, tc->head, *position(tc) - bytes, bytes);
	tc->filled = bytes;
	tc->backlog = 0;
}

/* The buffer was full and its event goes on: the gap is told with the next data. */
static void leave_gap(struct trace_cpu *tc, u64 bytes)
{
	lose(tc, bytes);
	tc->pending_flags |= PERF_AUX_FLAG_PARTIAL;
	perf_aux_output_end(&tc->handle, 0);
}

/*
 * Produces `want` bytes into a buffer that user space empties, over as many transactions as that
 * takes. False when the event is halted; what was still wanted is lost then.
 */
static bool produce(struct trace_cpu *tc, struct trace_buffer *buffer, u64 want)
{
	const bool flag_full = READ_ONCE(knobs.stop_on_full) && READ_ONCE(knobs.flag_full_record);
	bool full;
	u64 bytes;

	while (want) {
		if (!buffer) {
			buffer = open_transaction(tc);
			if (!buffer)
				goto silent;
		}
		if (tc->limit == 0) {
			leave_gap(tc, want);
			return true;
		}
		bytes = min(want, tc->limit - tc->filled);
		put(tc, buffer, tc->head + tc->filled, *position(tc), bytes);
		advance(tc, bytes);
		tc->filled += bytes;
		want -= bytes;
		if (tc->filled < tc->limit)
			continue;
		full = want && tc->limit == room_of(tc);
		if (close_transaction(tc, buffer, full && flag_full ? PERF_AUX_FLAG_TRUNCATED : 0))
			goto silent;
		buffer = NULL;
	}
	return true;

silent:
	lose(tc, want);
	if (!(tc->event->hw.state & PERF_HES_STOPPED))
		fall_silent(tc);
	return false;
}

static void overwrite(struct trace_cpu *tc, struct trace_buffer *buffer, u64 want)
{
	put(tc, buffer, tc->head, *position(tc), want);
	advance(tc, want);
	tc->head += want;
	tc->filled += want;
}

enum hrtimer_restart producer__tick(struct hrtimer *timer)
{
	struct trace_cpu *tc = container_of(timer, struct trace_cpu, timer);
	const u64 periods = hrtimer_forward_now(timer, ns_to_ktime(period_ns()));
	const u64 ticks = min(periods, max(READ_ONCE(knobs.catch_up_ticks), 1u));
	struct trace_buffer *buffer;
	u64 want;

	if (!tc->event || tc->event->hw.state & PERF_HES_STOPPED)
		return HRTIMER_NORESTART;
	tc->tally.ticks++;
	tc->tally.missed_ticks += periods - ticks;
#ifdef PERF_PMU_CAP_AUX_PAUSE
	if (READ_ONCE(tc->event->hw.aux_paused))
		return HRTIMER_RESTART;
#endif
	if (!READ_ONCE(knobs.running))
		return HRTIMER_RESTART;

	buffer = perf_get_aux(&tc->handle);
	want = ticks * chunk_bytes();
	if (!buffer)
		tc->uploading = READ_ONCE(knobs.upload);
	want = available(tc, want);
	if (!buffer || (!buffer->overwrite && !tc->flushing))
		return produce(tc, buffer, want) ? HRTIMER_RESTART : HRTIMER_NORESTART;
	if (buffer->overwrite) {
		overwrite(tc, buffer, want);
	} else {
		advance(tc, want);
		tc->backlog += want;
	}
	return HRTIMER_RESTART;
}

static void report_hw_id(struct trace_cpu *tc, struct trace_buffer *buffer)
{
	const int cpu = smp_processor_id();
	u64 hw_id = READ_ONCE(knobs.hw_id);

	if (!hw_id || cpumask_test_and_set_cpu(cpu, &buffer->hw_id_done))
		return;
	if (READ_ONCE(knobs.hw_id_per_cpu))
		hw_id += cpu;
	perf_report_aux_output_id(tc->event, hw_id);
}

/* Starts tc->event, which was stopped. False if there is no buffer or no room in it. */
bool producer__start(struct trace_cpu *tc)
{
	struct trace_buffer *buffer;
	u64 first_ns;

	end_halt(tc);
	buffer = open_transaction(tc);
	if (!buffer)
		return false;
	report_hw_id(tc, buffer);
	/* A thread that is stopped before each tick would never produce anything: the period goes
	 * on where the last stop on this CPU left it. */
	first_ns = clamp_t(u64, tc->rest_ns, NSEC_PER_USEC, period_ns());
	hrtimer_start(&tc->timer, ns_to_ktime(first_ns), HRTIMER_MODE_REL_PINNED_HARD);
	return true;
}

/* Stops tc->event. The timer is this CPU's, and interrupts are off: its function does not run. */
void producer__stop(struct trace_cpu *tc)
{
	struct trace_buffer *buffer;

	tc->rest_ns = max_t(s64, hrtimer_get_remaining(&tc->timer), 0);
	hrtimer_cancel(&tc->timer);
	buffer = perf_get_aux(&tc->handle);
	if (!buffer)
		return;
	if (tc->backlog)
		write_backlog(tc, buffer);
	close_transaction(tc, buffer, 0);
}

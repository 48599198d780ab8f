/* SPDX-License-Identifier: Apache-2.0 */
#include "order.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>

#include "../walk.h"

/* More are in a file that nobody has written in rounds, or damaged: they are taken before others
 * come, and are out of order from there on. */
#define RUNS_MAX (2u << 20)
#define SETTLED_BYTES (256u << 10)

int order__init(struct order *order, const struct source *source, const struct span *span)
{
	*order = (struct order){
		.source = source,
		.at = span->offset,
	};
	return blocks__init(&order->blocks, source);
}

void order__deinit(struct order *order)
{
	blocks__deinit(&order->blocks);
	free(order->run);
	tasks__deinit(&order->tasks);
	cgroups__deinit(&order->cgroups);
	*order = (struct order){0};
}

/* Find the record at an offset. Returns 1, 0 with a fault if there is none, or -ENOMEM. */
static int record_at(struct order *order, uint64_t offset, uint64_t end, const uint8_t **record,
		     enum fault *fault)
{
	const uint64_t left = end - offset;
	uint64_t header;
	int ret;

	*fault = WALK_PAST_HEAD;
	if (left < WALK_HEADER_BYTES)
		return 0;
	ret = blocks__view(&order->blocks, offset, WALK_HEADER_BYTES, record);
	if (ret <= 0)
		return ret;
	header = walk__load(*record);
	*fault = perf__check(header, left < RECORD_MAX_BYTES ? (size_t)left : RECORD_MAX_BYTES);
	if (*fault != FAULT_NONE)
		return 0;
	ret = blocks__view(&order->blocks, offset, walk__size(header), record);
	if (ret == 0)
		*fault = WALK_PAST_HEAD;
	return ret;
}

/* Whether a record is of interest, and its time. An unknown sample is, to be reported. */
static bool has_time(const struct perf_events *events, const uint8_t *record, uint64_t *time_ns)
{
	const uint64_t header = walk__load(record);
	const uint16_t size = walk__size(header);
	const struct perf_event *event;

	switch (walk__type(header)) {
	case PERF_RECORD_SAMPLE:
		event = perf__sampled(events, record, size);
		if (event != NULL && !event->is_wanted)
			return false;
		*time_ns = event != NULL ? perf__sample_time(event, record, size) : 0;
		return true;
	case PERF_RECORD_COMM:
	case PERF_RECORD_FORK:
	case PERF_RECORD_CGROUP:
	case PERF_RECORD_LOST:
	case PERF_RECORD_LOST_SAMPLES:
		*time_ns = perf__trailer_time(perf__noted(events, record, size), record, size);
		return true;
	case WALK_COMPRESSED: /* to be reported */
	case WALK_COMPRESSED2:
		*time_ns = 0;
		return true;
	default:
		return false;
	}
}

static bool is_before(const struct run *a, const struct run *b)
{
	return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->at < b->at;
}

static void sink(struct order *order, size_t at)
{
	const struct run run = order->run[at];

	for (size_t child; (child = 2 * at + 1) < order->runs; at = child) {
		if (child + 1 < order->runs && is_before(&order->run[child + 1], &order->run[child]))
			child++;
		if (!is_before(&order->run[child], &run))
			break;
		order->run[at] = order->run[child];
	}
	order->run[at] = run;
}

static int push(struct order *order, struct run run)
{
	size_t at = order->runs;

	if (at == order->run_room) {
		const size_t room = at > 0 ? 2 * at : 64;
		struct run *const more = realloc(order->run, room * sizeof(*more));

		if (more == NULL)
			return -ENOMEM;
		order->run = more;
		order->run_room = room;
	}
	order->runs++;
	for (; at > 0 && is_before(&run, &order->run[(at - 1) / 2]); at = (at - 1) / 2)
		order->run[at] = order->run[(at - 1) / 2];
	order->run[at] = run;
	return 0;
}

/* Returns the next chunk behind a damaged place that begins with a sound record, or the end. */
static int resume(struct order *order, uint64_t end)
{
	uint64_t at = order->at + PERF_CHUNK_BYTES - order->at % PERF_CHUNK_BYTES;
	int ret = 1;

	for (; at < end; at += PERF_CHUNK_BYTES) {
		const uint8_t *record;
		enum fault fault;

		/* Wherever a damaged file says that its data end, there are none behind its own. */
		ret = blocks__view(&order->blocks, at, WALK_HEADER_BYTES, &record);
		if (ret == 0)
			at = end;
		if (ret <= 0)
			break;
		ret = record_at(order, at, end, &record, &fault);
		if (ret < 0)
			return ret;
		if (ret > 0 && walk__size(walk__load(record)) >= 2 * sizeof(uint64_t) &&
		    perf__begins_chunk(&order->source->perf, record, walk__size(walk__load(record))))
			break;
	}
	order->at = at < end ? at : end;
	return ret < 0 ? ret : 0;
}

/* Find the whole record at the place of the walk. Returns 1, 0 with a fault, or -errno. */
static int step(struct order *order, uint64_t end, const uint8_t **record, uint64_t *whole,
		struct order_fault *fault)
{
	enum fault found;
	int ret = record_at(order, order->at, end, record, &found);

	if (ret > 0 && !perf__whole(*record, whole)) {
		found = WALK_BAD_SIZE;
		ret = 0;
	}
	if (ret != 0)
		return ret;
	*fault = (struct order_fault){order->at, fault_names[found]};
	ret = resume(order, end);
	return ret;
}

int order__walk(struct order *order, uint64_t end, const uint8_t **record, uint64_t *offset,
		struct order_fault *fault)
{
	uint64_t whole = 0, time_ns;

	*fault = (struct order_fault){0};
	while (order->at < end) {
		const int ret = step(order, end, record, &whole, fault);

		if (ret <= 0)
			return ret < 0 ? ret : 1;
		*offset = order->at;
		order->at += whole;
		if (has_time(&order->source->perf, *record, &time_ns))
			return 1;
	}
	return 0;
}

/* Walk up to behind the next round, or `end`. */
static int walk(struct order *order, uint64_t end, struct order_fault *fault)
{
	struct run run = {0};
	uint64_t last_ns = 0, time_ns, whole = 0;
	bool has_run = false, is_round = false;
	int ret = 1;

	while (order->at < end && !is_round && order->runs < RUNS_MAX) {
		const uint64_t at = order->at;
		const uint8_t *record = NULL;

		ret = step(order, end, &record, &whole, fault);
		if (ret <= 0 || record == NULL) {
			run.end = at;
			break;
		}
		if (whole != walk__size(walk__load(record))) {
			/* A payload follows, which is no record: a run does not lead across it. */
			if (has_run) {
				ret = push(order, run);
				if (ret < 0)
					return ret;
			}
			has_run = false;
			order->at += whole;
			continue;
		}
		is_round = walk__type(walk__load(record)) == WALK_FINISHED_ROUND;
		if (has_time(&order->source->perf, record, &time_ns)) {
			if (has_run && time_ns < last_ns) {
				run.end = at;
				ret = push(order, run);
				if (ret < 0)
					return ret;
			}
			if (!has_run || time_ns < last_ns)
				run = (struct run){.time_ns = time_ns, .at = at};
			has_run = true;
			last_ns = time_ns;
			if (time_ns > order->newest_ns)
				order->newest_ns = time_ns;
		}
		order->at += whole;
		run.end = order->at;
	}
	if (ret >= 0 && has_run)
		ret = push(order, run);
	if (ret < 0)
		return ret;
	if (is_round) {
		/* The newest time before the last round is due. */
		order->until_ns = order->has_due ? order->due_ns : 0;
		order->has_due = true;
		order->due_ns = order->newest_ns;
	} else if (order->runs >= RUNS_MAX) {
		order->until_ns = UINT64_MAX;
	}
	return 0;
}

/* Move the first run on to its next record of interest. Returns -errno. */
static int go_on(struct order *order, uint64_t bytes)
{
	struct run *const run = &order->run[0];
	const uint8_t *record;
	enum fault fault;
	int ret = 1;

	for (run->at += bytes; run->at < run->end; run->at += walk__size(walk__load(record))) {
		ret = record_at(order, run->at, run->end, &record, &fault);
		if (ret <= 0)
			break;
		if (has_time(&order->source->perf, record, &run->time_ns)) {
			sink(order, 0);
			return 0;
		}
	}
	if (ret < 0)
		return ret;
	/* It is over, or the file has changed. */
	order->run[0] = order->run[--order->runs];
	if (order->runs > 0)
		sink(order, 0);
	return 0;
}

int order__next(struct order *order, uint64_t end, bool everything, const uint8_t **record,
		uint64_t *offset, struct order_fault *fault)
{
	int ret = 0;

	*fault = (struct order_fault){0};
	if (order->end != end) {
		/* Blocks were read when what is in them now was half written. */
		blocks__forget(&order->blocks);
		order->end = end;
	}
	if (order->taken > 0) {
		ret = go_on(order, order->taken);
		order->taken = 0;
	}
	while (ret >= 0) {
		const uint64_t until_ns =
			everything && order->at >= end ? UINT64_MAX : order->until_ns;
		enum fault found;

		if (order->runs == 0 || order->run[0].time_ns > until_ns) {
			if (order->at >= end)
				return 0;
			ret = walk(order, end, fault);
			if (ret == 0 && fault->reason != NULL)
				return 1;
			continue;
		}
		*offset = order->run[0].at;
		ret = record_at(order, *offset, order->run[0].end, record, &found);
		if (ret > 0) {
			order->taken = walk__size(walk__load(*record));
			return 1;
		}
		/* The file has changed since: the run is over. */
		if (ret == 0)
			ret = go_on(order, order->run[0].end - order->run[0].at);
	}
	return ret;
}

int64_t order__end(int fd, uint64_t offset, bool of_rounds)
{
	uint8_t *const data = malloc(SETTLED_BYTES);
	uint64_t at = offset, end = offset;
	size_t walked;

	if (data == NULL)
		return -ENOMEM;
	do {
		const struct source source = {.fd = fd};
		const char *fault;
		const size_t bytes = source__read(&source, data, SETTLED_BYTES, at, &fault);

		for (walked = 0; walked < bytes && bytes - walked >= WALK_HEADER_BYTES;) {
			const uint64_t header = walk__load(data + walked);
			uint64_t whole;

			if (perf__check(header, bytes - walked) != FAULT_NONE ||
			    !perf__whole(data + walked, &whole))
				break;
			walked += whole; /* perhaps beyond what was read */
			if (!of_rounds || walk__type(header) == WALK_FINISHED_ROUND)
				end = at + walked;
		}
		at += walked;
	} while (walked > 0);
	free(data);
	return (int64_t)end;
}

int order__tell(struct order *order, const uint8_t *record)
{
	const uint64_t header = walk__load(record);
	const uint16_t size = walk__size(header);
	const struct perf_event *const event = perf__noted(&order->source->perf, record, size);
	const uint32_t least = PERF_AT_COMM + event->trailer_bytes;

	if (walk__type(header) == PERF_RECORD_FORK && size >= PERF_TASK_BYTES) {
		const int32_t tid = (int32_t)load32(record + PERF_AT_TASK_TID);
		const int32_t from = (int32_t)load32(record + PERF_AT_TASK_PARENT);
		const struct task *const parent = tasks__find(&order->tasks, from);
		const struct task copy = parent != NULL ? *parent : (struct task){0};

		return parent != NULL ? tasks__name(&order->tasks, tid, copy.name, copy.bytes) : 0;
	}
	if (walk__type(header) == PERF_RECORD_COMM && size >= least)
		return tasks__name(&order->tasks, (int32_t)load32(record + PERF_AT_TID),
				   record + PERF_AT_COMM, size - least);
	if (walk__type(header) == PERF_RECORD_CGROUP)
		return perf__take_cgroup(&order->cgroups, &order->source->perf, record);
	return 0;
}

bool order__tells(const uint8_t *record)
{
	const uint32_t type = walk__type(walk__load(record));

	return type == PERF_RECORD_COMM || type == PERF_RECORD_FORK || type == PERF_RECORD_CGROUP;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "sideband.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>

#include "sideband_table.h"

#define LOG_SHARE 4 /* the log has this fraction of the bytes */

int sideband__init(struct sideband *sideband, size_t bytes)
{
	memset(sideband, 0, sizeof(*sideband));
	sideband->log_bytes = bytes / LOG_SHARE;
	sideband->behind_ns = sideband->behind_before_ns = INT64_MAX;
	pthread_mutex_init(&sideband->log_lock, NULL);
	pthread_mutex_init(&sideband->table_lock, NULL);
	sideband->log = malloc(sideband->log_bytes);
	sideband->scratch = malloc(sideband->log_bytes);
	sideband->table = sideband_table__new(bytes - sideband->log_bytes);
	if (mapped_files__init(&sideband->files) == 0 && sideband->log != NULL &&
	    sideband->scratch != NULL && sideband->table != NULL)
		return 0;
	sideband__deinit(sideband);
	return -ENOMEM;
}

void sideband__deinit(struct sideband *sideband)
{
	mapped_files__deinit(&sideband->files);
	sideband_table__free(sideband->table);
	free(sideband->scratch);
	free(sideband->log);
	pthread_mutex_destroy(&sideband->table_lock);
	pthread_mutex_destroy(&sideband->log_lock);
	memset(sideband, 0, sizeof(*sideband));
}

int sideband__join_layout(struct sideband *sideband, const struct walk_layout *layout)
{
	struct walk_layout *const own = &sideband->layout;

	HOLD(&sideband->log_lock);
	if (own->time_trailer == 0) {
		*own = *layout;
		own->ids = NULL; /* the ring's */
	}
	return own->time_trailer == layout->time_trailer && own->cpu_trailer == layout->cpu_trailer
		       ? 0
		       : -EINVAL;
}

/* Returns where the log has the last switch of the CPU of `record`; NULL: it is no switch. */
static uint32_t *last_switch(struct sideband *sideband, const uint8_t *record)
{
	const uint32_t type = walk__type(walk__load(record));
	uint32_t cpu;

	if ((type != PERF_RECORD_SWITCH && type != PERF_RECORD_SWITCH_CPU_WIDE) ||
	    !walk__trailer_cpu(record, &sideband->layout, &cpu) || cpu >= SIDEBAND_CPUS)
		return NULL;
	return &sideband->switches[cpu];
}

/* Returns where `record` goes in the log, NULL if it is full. */
static uint8_t *log__place(struct sideband *sideband, const uint8_t *record, size_t size)
{
	uint32_t *const last = last_switch(sideband, record);
	uint8_t *place = sideband->log + sideband->log_used;

	if (last != NULL && *last != 0 && sideband->log_used >= sideband->log_bytes / 2 &&
	    walk__size(walk__load(sideband->log + *last - 1)) == size)
		return sideband->log + *last - 1;
	if (sideband->log_bytes - sideband->log_used < size)
		return NULL;
	if (last != NULL)
		*last = (uint32_t)sideband->log_used + 1;
	sideband->log_used += size;
	return place;
}

void sideband__append(struct sideband *sideband, const uint8_t *records, size_t bytes)
{
	const uint64_t now_ns = sideband->foreign_clock ? clock__now_ns() : 0;
	size_t at, size;

	HOLD(&sideband->log_lock);
	for (at = 0; at < bytes; at += size) {
		const uint64_t header = walk__load(records + at);
		const uint64_t time_ns = walk__trailer_time(records + at, &sideband->layout);
		uint8_t *place;

		size = walk__size(header);
		if (!sideband_table__takes(header, &sideband->layout))
			continue;
		if (sideband->foreign_clock && time_ns != 0 &&
		    (int64_t)(now_ns - time_ns) < sideband->behind_ns)
			sideband->behind_ns = (int64_t)(now_ns - time_ns);
		mapped_files__note(&sideband->files, records + at);
		place = log__place(sideband, records + at, size);
		if (place != NULL)
			memcpy(place, records + at, size);
		else
			counter__add(&sideband->log_dropped, 1);
	}
}

void sideband__append_past(struct sideband *sideband, const uint8_t *records, size_t bytes)
{
	size_t at, size;

	HOLD(&sideband->table_lock);
	for (at = 0; at < bytes; at += size) {
		const uint64_t header = walk__load(records + at);

		size = walk__size(header);
		if (!sideband_table__takes(header, &sideband->layout) ||
		    !sideband_table__has_task_of(sideband->table, records + at))
			sideband__append(sideband, records + at, size);
	}
}

/* Lock the table, for records of the present layout. */
static void sideband__lock_table(struct sideband *sideband)
{
	pthread_mutex_lock(&sideband->table_lock);
	HOLD(&sideband->log_lock);
	sideband->table->layout = sideband->layout;
}

struct dated {
	uint64_t time_ns;
	size_t at;
};

static int dated__compare(const void *left, const void *right)
{
	const struct dated *a = left, *b = right;

	if (a->time_ns != b->time_ns)
		return a->time_ns < b->time_ns ? -1 : 1;
	return a->at < b->at ? -1 : a->at > b->at; /* one ring's records keep their order */
}

/* Returns `until_ns` in the time of the records; under `log_lock`. */
static uint64_t log__until(struct sideband *sideband, uint64_t until_ns)
{
	const int64_t behind_ns = sideband->behind_ns < sideband->behind_before_ns
					  ? sideband->behind_ns
					  : sideband->behind_before_ns;

	if (!sideband->foreign_clock)
		return until_ns;
	/* Clocks drift: so only recent records count, or the last ones if there are none. */
	if (sideband->behind_ns != INT64_MAX) {
		sideband->behind_before_ns = sideband->behind_ns;
		sideband->behind_ns = INT64_MAX;
	}
	if (behind_ns == INT64_MAX || (behind_ns > 0 && (uint64_t)behind_ns > until_ns))
		return 0;
	return until_ns - (uint64_t)behind_ns;
}

/* Move records older than `until_ns` from the log into `scratch`; returns their length. */
static size_t log__cut(struct sideband *sideband, uint64_t until_ns)
{
	size_t at, size, kept = 0, cut = 0;

	HOLD(&sideband->log_lock);
	until_ns = log__until(sideband, until_ns);
	if (sideband->log_used > 0)
		memset(sideband->switches, 0, sizeof(sideband->switches));
	for (at = 0; at < sideband->log_used; at += size) {
		const uint8_t *record = sideband->log + at;

		size = walk__size(walk__load(record));
		if (walk__trailer_time(record, &sideband->layout) < until_ns) {
			memcpy(sideband->scratch + cut, record, size);
			cut += size;
		} else {
			uint32_t *const last = last_switch(sideband, record);

			if (last != NULL)
				*last = (uint32_t)kept + 1;
			memmove(sideband->log + kept, record, size);
			kept += size;
		}
	}
	sideband->log_used = kept;
	return cut;
}

/* Returns those of whole records that the table takes, in the order of time, `*count` of them; or NULL.
 * The caller frees it. Called under `table_lock`. */
static struct dated *in_order(const struct sideband *sideband, const uint8_t *records, size_t bytes,
			      size_t *count)
{
	const struct walk_layout *const layout = &sideband->table->layout;
	struct dated *order;
	size_t at, i = 0;

	*count = 0;
	for (at = 0; at < bytes; at += walk__size(walk__load(records + at)))
		*count += sideband_table__takes(walk__load(records + at), layout);
	order = malloc((*count + 1) * sizeof(*order));
	if (order == NULL)
		return NULL;
	for (at = 0; at < bytes; at += walk__size(walk__load(records + at)))
		if (sideband_table__takes(walk__load(records + at), layout))
			order[i++] = (struct dated){
				.time_ns = walk__trailer_time(records + at, layout),
				.at = at,
			};
	qsort(order, *count, sizeof(*order), dated__compare);
	return order;
}

/* Put the newest of these records into the log: those from `until_ns` on that fit into half of it.
 * Returns the number of the others. */
static size_t log__keep(struct sideband *sideband, const uint8_t *records,
			const struct dated *order, size_t count, uint64_t until_ns)
{
	size_t bytes = 0, older = count;

	HOLD(&sideband->log_lock);
	while (older > 0 && order[older - 1].time_ns >= until_ns) {
		bytes += walk__size(walk__load(records + order[older - 1].at));
		if (sideband->log_used + bytes > sideband->log_bytes / 2)
			break;
		older--;
	}
	for (size_t i = older; i < count; i++) {
		const uint8_t *const record = records + order[i].at;
		const uint16_t size = walk__size(walk__load(record));

		memcpy(log__place(sideband, record, size), record, size);
	}
	return older;
}

int sideband__load(struct sideband *sideband, const uint8_t *records, size_t bytes,
		   uint64_t until_ns)
{
	struct walk_tally tally = {0};
	struct dated *order = NULL;
	size_t last, count, older;
	enum fault fault;
	int ret = -EINVAL;

	sideband__lock_table(sideband);
	if (walk__file(records, bytes, &sideband->table->layout, &tally, &fault, &last) == bytes &&
	    tally.aux_pieces == 0) {
		order = in_order(sideband, records, bytes, &count);
		ret = order != NULL ? 0 : -ENOMEM;
	}
	if (ret == 0) {
		for (size_t i = 0; i < count; i++)
			mapped_files__note(&sideband->files, records + order[i].at);
		older = log__keep(sideband, records, order, count, until_ns);
		for (size_t i = 0; i < older; i++)
			sideband_table__apply(sideband->table, records + order[i].at);
	}
	pthread_mutex_unlock(&sideband->table_lock);
	free(order);
	return ret;
}

void sideband__settle(struct sideband *sideband, uint64_t until_ns)
{
	const size_t bytes = log__cut(sideband, until_ns);
	struct dated *order;
	size_t count;

	sideband__lock_table(sideband);
	order = in_order(sideband, sideband->scratch, bytes, &count);
	for (size_t i = 0; order != NULL && i < count; i++)
		sideband_table__apply(sideband->table, sideband->scratch + order[i].at);
	if (order == NULL)
		counter__add(&sideband->table->dropped, count);
	pthread_mutex_unlock(&sideband->table_lock);
	free(order);
}

bool sideband__is_crowded(struct sideband *sideband)
{
	HOLD(&sideband->log_lock);
	return sideband->log_used > sideband->log_bytes / 2;
}

static int emit_raw(const struct sideband *sideband, size_t bytes, const struct sideband_replay *to)
{
	uint16_t size;
	int ret = 0;

	for (size_t at = 0; ret == 0 && at < bytes; at += size) {
		size = walk__size(walk__load(sideband->scratch + at));
		ret = to->emit(to->context, sideband->scratch + at, size);
	}
	return ret;
}

/* Emit the changes made by the first `bytes` of `scratch`, one after the other. Under
 * `table_lock`. */
static int emit_changes(const struct sideband *sideband, size_t bytes, struct sideband_replay to)
{
	struct dated *order = NULL;
	size_t count;
	int ret = 0;

	to.table = sideband_table__copy_tasks(sideband->table);
	if (to.table != NULL)
		order = in_order(sideband, sideband->scratch, bytes, &count);
	/* Without memory for it, a duplicate record is better than none. */
	if (order == NULL)
		ret = emit_raw(sideband, bytes, &to);
	for (size_t i = 0; order != NULL && ret == 0 && i < count; i++)
		ret = sideband_replay__change(&to, sideband->scratch + order[i].at);
	free(order);
	sideband_table__free(to.table);
	return ret;
}

int sideband__replay(struct sideband *sideband, bool stored, sideband_emit_fn *emit, void *context)
{
	const struct sideband_replay to = {sideband->table, emit, context};
	size_t bytes;
	int ret;

	sideband__lock_table(sideband);
	pthread_mutex_lock(&sideband->log_lock);
	bytes = sideband->log_used;
	memcpy(sideband->scratch, sideband->log, bytes);
	pthread_mutex_unlock(&sideband->log_lock);
	ret = sideband_replay__all(&to);
	if (ret == 0)
		ret = stored && bytes > 0 ? emit_changes(sideband, bytes, to)
					  : emit_raw(sideband, bytes, &to);
	pthread_mutex_unlock(&sideband->table_lock);
	return ret;
}

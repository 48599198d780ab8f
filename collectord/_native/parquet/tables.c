/* SPDX-License-Identifier: Apache-2.0 */
#include "tables.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>

#include "../walk.h"

/* Engines pass over groups of rows whose smallest and largest values tell that none is asked for. */
#define GROUP_ROWS 122880u
#define GROUP_BYTES (16u << 20) /* of one column */
/* Beyond this the largest table makes a smaller group. */
#define HELD_BYTES (96u << 20)
#define RECORDS_BYTES (256u << 10)
#define PIECE_BYTES (64u << 10)
#define SMALL_PIECE_BYTES (16u << 10) /* of many CPUs, each of which has one */
#define FEW_SPANS 16u
#define KEYS_MAX 65536u

static int begin(struct tables *tables)
{
	const struct scan *const scan = tables->scan;
	int ret;

	if (scan->source_count == 0 || scan->span_count == 0) {
		tables->is_read = true;
		return 0;
	}
	if (scan->sources[0]->kind != &source_kind__perf)
		return tracks__init(&tables->tracks, scan,
				    scan->span_count <= FEW_SPANS ? PIECE_BYTES : SMALL_PIECE_BYTES);
	tables->end = scan->spans[0].offset + scan->spans[0].bytes;
	tables->records.data = malloc(RECORDS_BYTES + RECORD_MAX_BYTES);
	if (tables->records.data == NULL)
		return -ENOMEM;
	ret = order__init(&tables->order, scan->sources[0], &scan->spans[0]);
	return ret == 0 ? scan__names(scan, 0, &tables->names, &tables->cgroups) : ret;
}

struct tables *tables__new(struct scan *scan)
{
	struct tables *const tables = calloc(1, sizeof(*tables));

	if (tables == NULL)
		return NULL;
	tables->scan = scan__hold(scan);
	if (begin(tables) < 0) {
		tables__free(tables);
		return NULL;
	}
	return tables;
}

static void free_columns(struct column *columns, size_t count)
{
	for (size_t i = 0; columns != NULL && i < count; i++)
		column__deinit(&columns[i]);
	free(columns);
}

void tables__free(struct tables *tables)
{
	for (size_t i = 0; i < tables->count; i++) {
		free_columns(tables->table[i].columns, tables->table[i].scan->column_count);
		rows__deinit(&tables->table[i].rows);
		scan__drop(tables->table[i].scan);
	}
	for (size_t i = 0; i < tables->chunks; i++)
		chunk__deinit(&tables->chunk[i]);
	free(tables->chunk);
	chunk_maker__deinit(&tables->maker);
	tracks__deinit(&tables->tracks);
	order__deinit(&tables->order);
	names__deinit(&tables->names);
	cgroups__deinit(&tables->cgroups);
	free(tables->records.data);
	free(tables->table);
	free(tables->branch);
	scan__drop(tables->scan);
	free(tables);
}

static int set_branch(struct tables *tables, uint32_t key, size_t table, const struct source *source)
{
	if (key >= KEYS_MAX)
		return -EINVAL;
	if (key >= tables->branches) {
		struct branch *const more = realloc(tables->branch, (key + 1) * sizeof(*more));

		if (more == NULL)
			return -ENOMEM;
		memset(more + tables->branches, 0, (key + 1 - tables->branches) * sizeof(*more));
		tables->branch = more;
		tables->branches = key + 1;
	}
	if (tables->branch[key].source == NULL)
		tables->branch[key] = (struct branch){
			.source = source,
			.table = table,
			.clocks = {.reading = source->readings, .count = source->reading_count},
		};
	return 0;
}

/* Know the records of a source by the numbers of its events. */
static int add_source(struct tables *tables, size_t table, const struct source *source)
{
	int ret = 0;

	if (source->kind != &source_kind__perf)
		return set_branch(tables, source->event, table, source);
	for (size_t i = 0; i < source->perf.count && ret == 0; i++)
		if (source->perf.event[i].is_wanted)
			ret = set_branch(tables, (uint32_t)i, table, source);
	return ret;
}

static int reserve_chunks(struct tables *tables, size_t count)
{
	struct chunk *more;

	if (count <= tables->chunks)
		return 0;
	more = realloc(tables->chunk, count * sizeof(*more));
	if (more == NULL)
		return -ENOMEM;
	memset(more + tables->chunks, 0, (count - tables->chunks) * sizeof(*more));
	tables->chunk = more;
	tables->chunks = count;
	return 0;
}

int tables__add(struct tables *tables, struct scan *scan)
{
	struct column *const columns = calloc(scan->column_count + 1, sizeof(*columns));
	int ret = columns != NULL ? reserve_chunks(tables, scan->column_count) : -ENOMEM;

	if (ret == 0)
		ret = array__grow(&tables->table, tables->count, sizeof(*tables->table));
	for (size_t i = 0; i < scan->source_count && ret == 0; i++)
		ret = add_source(tables, tables->count, scan->sources[i]);
	if (ret < 0) {
		free(columns);
		return ret;
	}
	for (size_t i = 0; i < scan->column_count; i++)
		columns[i].kind = scan->columns[i].kind;
	tables->table[tables->count++] =
		(struct event_table){.scan = scan__hold(scan), .columns = columns};
	return 0;
}

static size_t room_of(const struct event_table *table)
{
	size_t room = 0;

	for (size_t i = 0; i < table->scan->column_count; i++) {
		const struct column *const column = &table->columns[i];

		room += column->values.room + column->offsets.room + column->valid.room;
	}
	return room;
}

/* Put the rows that wait into the columns. */
static int fill(struct tables *tables, struct event_table *table)
{
	const struct source *const source = table->branch->source;
	const bool tells_names = source->kind->tells_names;
	const struct fill fill = {
		.rows = &table->rows,
		.names = tells_names ? &tables->names : &tables->scan->sources[0]->names,
		.cgroups = tells_names ? &tables->cgroups : NULL,
		.labels = source->labels,
		.label_count = source->label_count,
		.clocks = &table->branch->clocks,
	};
	int ret = 0;

	for (size_t i = 0; i < table->scan->column_count && ret == 0; i++)
		ret = table->columns[i].kind->fill(&table->columns[i], &source->fields[i], &fill);
	table->count += table->rows.count;
	table->rows.count = 0;
	tables->held_bytes -= table->room_bytes;
	table->room_bytes = room_of(table);
	tables->held_bytes += table->room_bytes;
	return ret;
}

/* Put all rows that wait into columns: what they point at is about to go. */
static int fill_all(struct tables *tables)
{
	int ret = 0;

	for (size_t i = 0; i < tables->count && ret == 0; i++)
		if (tables->table[i].rows.count > 0)
			ret = fill(tables, &tables->table[i]);
	tables->records.bytes = 0;
	return ret;
}

/* Have a row wait, if a table has its event. */
static inline int take(struct tables *tables, uint32_t key, const struct row *row)
{
	struct branch *const branch = key < tables->branches ? &tables->branch[key] : NULL;
	struct event_table *table;
	struct row *to;
	int ret = 0;

	if (branch == NULL || branch->source == NULL)
		return 0;
	table = &tables->table[branch->table];
	if (table->branch != branch && table->rows.count > 0)
		ret = fill(tables, table);
	table->branch = branch;
	to = ret == 0 ? rows__add(&table->rows) : NULL;
	if (to == NULL)
		return ret < 0 ? ret : -ENOMEM;
	*to = *row;
	table->is_unordered |= row->stamp_ns < table->last_ns;
	table->last_ns = row->stamp_ns;
	return 0;
}

/* Take rows up to where the next piece of a track is read. Returns 1, 0 at the end, or -errno. */
static int take_rows(struct tables *tables)
{
	const struct source *source;
	const struct row *row;
	int ret;

	do {
		ret = tracks__next(&tables->tracks, &row, &source);
		if (ret <= 0)
			return ret;
		if (row->label < 0)
			tables->is_odd = true;
		else
			ret = take(tables, (uint32_t)row->label, row);
	} while (ret >= 0 && !tracks__is_last(&tables->tracks));
	return ret < 0 ? ret : 1;
}

/* Take a sample of a perf.data, which is copied. */
static int take_sample(struct tables *tables, const uint8_t *data)
{
	const struct source *const source = tables->scan->sources[0];
	const uint16_t size = walk__size(walk__load(data));
	const struct perf_event *const event = perf__sampled(&source->perf, data, size);
	uint8_t *const record = tables->records.data + tables->records.bytes;
	struct perf_parts parts;
	struct row row;

	if (event == NULL || !perf__find_parts(event, data, size, &parts)) {
		tables->is_odd = true;
		return 0;
	}
	if (event->label < 0 || (size_t)event->label >= tables->branches ||
	    tables->branch[event->label].source == NULL)
		return 0;
	memcpy(record, data, size);
	tables->records.bytes += size;
	row = (struct row){
		.payload = record + parts.raw,
		.bytes = parts.raw_bytes,
		.stamp_ns = perf__sample_time(event, record, size),
		.loose = parts.cgroup != 0 ? parts.cgroup - parts.raw : 0,
		.label = event->label,
	};
	perf__place(event, record, &row.cpu, &row.pid, &row.tid);
	return take(tables, (uint32_t)event->label, &row);
}

/* Take records until there is no room for another. Returns 1, 0 at the end, or -errno. */
static int take_records(struct tables *tables)
{
	struct order_fault fault;
	const uint8_t *record;
	uint64_t at;
	int ret = 1;

	while (ret >= 0 && tables->records.bytes < RECORDS_BYTES) {
		ret = order__next(&tables->order, tables->end, true, &record, &at, &fault);
		if (ret <= 0)
			return ret;
		if (fault.reason == NULL && walk__type(walk__load(record)) == PERF_RECORD_SAMPLE)
			ret = take_sample(tables, record);
		else if (fault.reason != NULL || !order__tells(record))
			tables->is_odd = true;
	}
	return ret < 0 ? ret : 1;
}

/* Lay out the columns of a table as chunks, and have it begin anew. Returns 1, or -errno. */
static int make(struct tables *tables, struct event_table *table, size_t *rows)
{
	const bool is_large = tables->held_bytes > HELD_BYTES;
	int ret = 0;

	for (size_t i = 0; i < table->scan->column_count && ret == 0; i++) {
		struct column *const column = &table->columns[i];

		ret = chunk__make(&tables->chunk[i], &tables->maker, column);
		column->rows = column->nulls = 0;
		column->valid.bytes = column->offsets.bytes = column->values.bytes = 0;
		if (is_large) {
			column__deinit(column);
			column->kind = table->scan->columns[i].kind;
		}
	}
	*rows = table->count;
	table->count = 0;
	tables->held_bytes -= table->room_bytes;
	table->room_bytes = room_of(table);
	tables->held_bytes += table->room_bytes;
	return ret < 0 ? ret : 1;
}

static bool is_full(const struct event_table *table)
{
	if (table->count >= GROUP_ROWS)
		return true;
	for (size_t i = 0; i < table->scan->column_count; i++)
		if (column__bytes(&table->columns[i]) >= GROUP_BYTES)
			return true;
	return false;
}

/* Returns a table whose rows are to be a group now, NULL if there is none. */
static struct event_table *due(struct tables *tables)
{
	struct event_table *largest = NULL;

	for (size_t i = 0; i < tables->count; i++) {
		struct event_table *const table = &tables->table[i];

		if (table->count > 0 && (tables->is_read || is_full(table)))
			return table;
		if (table->count > 0 && (largest == NULL || table->room_bytes > largest->room_bytes))
			largest = table;
	}
	return tables->held_bytes > HELD_BYTES ? largest : NULL;
}

int tables__next(struct tables *tables, size_t *number, size_t *rows)
{
	struct event_table *table;
	int ret = 1;

	while ((table = due(tables)) == NULL && !tables->is_read) {
		if (tables->tracks.track != NULL)
			ret = take_rows(tables);
		else
			ret = take_records(tables);
		tables->is_read = ret == 0;
		if (ret >= 0)
			ret = fill_all(tables);
		if (ret < 0)
			return ret;
	}
	if (table == NULL)
		return 0;
	*number = (size_t)(table - tables->table);
	return make(tables, table, rows);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "scan.h"

/* A piece stays in the cache while the columns are filled from it. */
#define PIECE_BYTES (128u << 10)
/* A batch ends with the piece in which it gets so many rows, or so much in one column. Small ones
 * stay in the cache, and are given back to the heap instead of to the kernel. */
#define BATCH_ROWS (8u << 10)
#define BATCH_BYTES (16u << 20)
#define IDLE_NAME "<idle>"

/* The place where a stream is. */
struct stream {
	struct scan *scan;
	struct column *columns;
	struct spares *spares;
	struct counts *counts; /* one for each source */
	struct rows rows;
	struct names names;	/* of the source `names_of`, if its records tell them */
	struct cgroups cgroups; /* likewise */
	size_t names_of;
	struct incident *incidents;
	uint8_t *data;
	size_t data_bytes;
	size_t span;
	uint64_t at;	    /* bytes of the span that were read */
	struct carry carry; /* from them */
	struct clocks clocks;
	size_t clocks_of; /* the source that they are of */
	size_t batch_rows;
	char error[64];
};

static int reserve(struct stream *stream, size_t bytes)
{
	uint8_t *data;
	struct incident *incidents;

	if (bytes <= stream->data_bytes)
		return 0;
	data = realloc(stream->data, bytes);
	if (data == NULL)
		return -ENOMEM;
	stream->data = data;
	if (stream->scan->wanted != WANT_EVENTS) {
		incidents = realloc(stream->incidents, (bytes / 8 + 2) * sizeof(*incidents));
		if (incidents == NULL)
			return -ENOMEM;
		stream->incidents = incidents;
	}
	stream->data_bytes = bytes;
	return 0;
}

/* Append the rows to all columns. */
static int fill(struct stream *stream, size_t source_at)
{
	const struct source *const source = stream->scan->sources[source_at];
	const struct fill fill = {
		.rows = &stream->rows,
		.names = source->kind->tells_names ? &stream->names : &source->names,
		.cgroups = source->kind->tells_names ? &stream->cgroups : NULL,
		.labels = source->labels,
		.label_count = source->label_count,
		.clocks = &stream->clocks,
	};
	int ret = 0;

	if (stream->clocks_of != source_at) {
		stream->clocks_of = source_at;
		stream->clocks = (struct clocks){.reading = source->readings,
						 .count = source->reading_count};
	}
	for (size_t i = 0; i < stream->scan->column_count && ret == 0; i++) {
		struct column *const column = &stream->columns[i];

		ret = column->kind->fill(column, &source->fields[i], &fill);
	}
	stream->batch_rows += stream->rows.count;
	stream->counts[source_at].rows += stream->rows.count;
	stream->rows.count = 0;
	return ret;
}

/* Read the piece of a span at `*at`, find what is wanted in it, and set `*at` to the next one. */
static int read_piece(struct stream *stream, const struct span *span, uint64_t *at,
		      enum wanted wanted, struct counts *counts)
{
	const struct source *const source = stream->scan->sources[span->source];
	const uint64_t left = span->bytes - *at;
	struct piece piece = {
		.source = source,
		.wanted = wanted,
		.cpu = span->cpu,
		.offset = span->offset + *at,
		.rows = &stream->rows,
		.names = &stream->names,
		.cgroups = &stream->cgroups,
		.carry = &stream->carry,
		.counts = counts,
	};
	size_t bytes = source->page_bytes > PIECE_BYTES ? source->page_bytes : PIECE_BYTES;
	const char *fault;
	uint64_t used = 0;
	int ret = reserve(stream, bytes);

	if (ret < 0)
		return ret;
	if (bytes > left)
		bytes = (size_t)left;
	piece.bytes = source__read(source, stream->data, bytes, piece.offset, &fault);
	piece.data = stream->data;
	piece.incidents = stream->incidents;
	piece.is_last = piece.bytes == left || fault != NULL;
	if (piece.bytes > 0)
		ret = source->kind->find(&piece, &used);
	if (ret == 0 && fault != NULL)
		ret = piece__damaged(&piece, piece.bytes, 0, fault);
	*at = piece.is_last || used == 0 || used > left ? span->bytes : *at + used;
	return ret;
}

/* Whether a column has the names of tasks or cgroups. */
static bool needs_names(const struct scan *scan, const struct source *source)
{
	for (size_t i = 0; i < scan->column_count; i++)
		if (source->fields[i].place == FIELD_COMM ||
		    source->fields[i].place == FIELD_COMM_OF ||
		    source->fields[i].place == FIELD_CGROUP)
			return true;
	return false;
}

static int find_names(struct stream *stream, size_t source_at)
{
	const struct scan *const scan = stream->scan;
	struct counts ignored = {0};
	int ret;

	names__deinit(&stream->names);
	cgroups__deinit(&stream->cgroups);
	stream->names_of = source_at;
	ret = names__add(&stream->names, 0, 0, IDLE_NAME, strlen(IDLE_NAME));
	for (size_t i = 0; i < scan->span_count; i++) {
		const struct span *const span = &scan->spans[i];

		for (uint64_t at = 0; span->source == source_at && at < span->bytes && ret == 0;)
			ret = read_piece(stream, span, &at, WANT_NAMES, &ignored);
	}
	return ret == 0 ? names__settle(&stream->names) : ret;
}

int scan__names(const struct scan *scan, size_t source, struct names *names, struct cgroups *cgroups)
{
	struct stream stream = {.scan = (struct scan *)scan}; /* which is only read */
	const int ret = find_names(&stream, source);

	*names = stream.names;
	*cgroups = stream.cgroups;
	rows__deinit(&stream.rows);
	free(stream.incidents);
	free(stream.data);
	return ret;
}

/* Read the next piece of a span, and append what is found in it. */
static int take(struct stream *stream, const struct span *span)
{
	const struct scan *const scan = stream->scan;
	const struct source *const source = scan->sources[span->source];
	int ret = 0;

	if (source->kind->tells_names && stream->names_of != span->source &&
	    needs_names(scan, source))
		ret = find_names(stream, span->source);
	if (ret == 0)
		ret = read_piece(stream, span, &stream->at, scan->wanted,
				 &stream->counts[span->source]);
	return ret == 0 ? fill(stream, span->source) : ret;
}

static bool is_full(const struct stream *stream)
{
	if (stream->batch_rows >= BATCH_ROWS)
		return true;
	for (size_t i = 0; i < stream->scan->column_count; i++)
		if (column__bytes(&stream->columns[i]) >= BATCH_BYTES)
			return true;
	return false;
}

static int next(struct ArrowArrayStream *handle, struct ArrowArray *array)
{
	struct stream *const stream = handle->private_data;
	const struct scan *const scan = stream->scan;
	int ret = 0;

	*array = (struct ArrowArray){0};
	if (stream->batch_rows == 0)
		for (size_t i = 0; i < scan->column_count; i++)
			column__begin(&stream->columns[i]);
	while (ret == 0 && stream->span < scan->span_count && !is_full(stream)) {
		const struct span *const span = &scan->spans[stream->span];

		if (stream->at >= span->bytes) {
			stream->span++;
			stream->at = 0;
			stream->carry = (struct carry){0};
		} else {
			ret = take(stream, span);
		}
	}
	if (ret == 0 && stream->batch_rows > 0) {
		ret = batch__export(stream->columns, scan->column_count, stream->batch_rows, array);
		stream->batch_rows = 0;
	}
	if (ret < 0)
		(void)strncpy(stream->error, strerror(-ret), sizeof(stream->error) - 1);
	return -ret;
}

static void release(struct ArrowArrayStream *handle)
{
	struct stream *const stream = handle->private_data;
	struct scan *const scan = stream->scan;

	for (size_t i = 0; stream->counts != NULL && i < scan->source_count; i++)
		source__note(scan->sources[i], &stream->counts[i]);
	for (size_t i = 0; stream->columns != NULL && i < scan->column_count; i++)
		column__deinit(&stream->columns[i]);
	if (stream->spares != NULL)
		spares__drop(stream->spares);
	free(stream->columns);
	free(stream->counts);
	names__deinit(&stream->names);
	cgroups__deinit(&stream->cgroups);
	rows__deinit(&stream->rows);
	free(stream->incidents);
	free(stream->data);
	free(stream);
	scan__drop(scan);
	handle->release = NULL;
}

static int get_schema(struct ArrowArrayStream *handle, struct ArrowSchema *schema)
{
	const struct stream *const stream = handle->private_data;

	return -scan__schema(stream->scan, schema);
}

static const char *get_last_error(struct ArrowArrayStream *handle)
{
	const struct stream *const stream = handle->private_data;

	return stream->error[0] != '\0' ? stream->error : NULL;
}

int scan__stream(struct scan *scan, struct ArrowArrayStream *handle)
{
	const size_t columns = scan->column_count;
	const size_t sources = scan->source_count > 0 ? scan->source_count : 1;
	struct stream *const stream = calloc(1, sizeof(*stream));
	int ret = 0;

	if (stream == NULL)
		return -ENOMEM;
	stream->scan = scan__hold(scan);
	stream->clocks_of = stream->names_of = SIZE_MAX;
	stream->columns = calloc(columns > 0 ? columns : 1, sizeof(*stream->columns));
	stream->spares = spares__new(columns);
	stream->counts = calloc(sources, sizeof(*stream->counts));
	*handle = (struct ArrowArrayStream){
		.get_schema = get_schema,
		.get_next = next,
		.get_last_error = get_last_error,
		.release = release,
		.private_data = stream,
	};
	if (stream->columns == NULL || stream->counts == NULL || stream->spares == NULL)
		ret = -ENOMEM;
	for (size_t i = 0; i < columns && ret == 0; i++) {
		stream->columns[i].kind = scan->columns[i].kind;
		stream->columns[i].spares = stream->spares;
		stream->columns[i].slot = SPARES_EACH * i;
	}
	if (ret < 0) {
		free(stream->counts);
		stream->counts = NULL; /* nothing was counted */
		release(handle);
	}
	return ret;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "cut.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../walk.h"

/* A piece stays in the cache, and is no smaller than a record or a sub-buffer. */
#define PIECE_BYTES (128u << 10)
#define WORD_BYTES 8u

static int flush(struct cut *cut)
{
	size_t done = 0;

	while (done < cut->used) {
		const ssize_t put = pwrite(cut->out, cut->buffer + done, cut->used - done,
					   (off_t)(cut->at + done));

		if (put < 0 && errno != EINTR)
			return -errno;
		done += put > 0 ? (size_t)put : 0;
	}
	cut->at += cut->used;
	cut->used = 0;
	return 0;
}

/* Returns room for so many bytes, behind which `cut->used` may move; NULL: the file cannot be
 * written, for which `ret` says why. */
static uint8_t *room(struct cut *cut, size_t bytes, int *ret)
{
	if (cut->buffer_bytes - cut->used < bytes)
		*ret = flush(cut);
	return *ret == 0 ? cut->buffer + cut->used : NULL;
}

static void note(struct cut *cut, uint64_t stamp_ns)
{
	cut->records++;
	note_times(&cut->first_ns, &cut->last_ns, stamp_ns, stamp_ns);
}

static int put_records(struct cut *cut, const struct source *source)
{
	int ret = 0;

	for (size_t i = 0; i < cut->rows.count; i++) {
		const struct row *const row = &cut->rows.row[i];
		const uint32_t type = walk__type(walk__load(row->payload));
		uint8_t *to;
		size_t bytes;

		if (type == WALK_AUXTRACE || type == PERF_RECORD_AUX) {
			cut->aux++;
			continue;
		}
		if (type == WALK_FINISHED_ROUND && !cut->keeps_rounds)
			continue;
		to = room(cut, (size_t)row->bytes + WORD_BYTES, &ret);
		if (to == NULL)
			return ret;
		bytes = perf_cut__put(&cut->ids, &source->perf, row->payload, to);
		if (bytes == 0)
			cut->counts.damaged++;
		else if (type == PERF_RECORD_SAMPLE)
			note(cut, row->stamp_ns);
		cut->used += bytes;
	}
	return 0;
}

static int put_page(struct cut *cut, const struct piece *piece, bool is_sound)
{
	const uint32_t page_bytes = piece->source->page_bytes;
	/* A loss is of the time at which its page begins. */
	const bool keeps_start = piece__in_time(piece, subbuf__timestamp(piece->data));
	const bool has_loss = (subbuf__commit(piece->data) & SUBBUF_LOST) != 0;
	size_t made = cut->rows.count;
	struct subbuf_tally tally = {0};
	struct subbuf_walk walk;
	uint8_t *to;
	int ret = 0;

	if (cut->rows.count == 0)
		return 0;
	to = room(cut, page_bytes, &ret);
	if (to == NULL)
		return ret;
	if (is_sound && (keeps_start || !has_loss) &&
	    subbuf__page(piece->data, page_bytes, &walk, &tally) == FAULT_NONE &&
	    tally.events == cut->rows.count)
		memcpy(to, piece->data, page_bytes);
	else
		made = page_cut__make(to, piece->data, page_bytes, &cut->rows, keeps_start);
	cut->counts.damaged += made < cut->rows.count;
	for (size_t i = 0; i < made; i++)
		note(cut, cut->rows.row[i].stamp_ns);
	if (made > 0)
		cut->used += page_bytes;
	return 0;
}

/* Find what is in a piece, and append it to the new file. */
static int take(struct cut *cut, struct piece *piece, uint64_t *used)
{
	const uint64_t damaged = cut->counts.damaged;
	int ret;

	cut->rows.count = 0;
	ret = piece->source->kind->find(piece, used);
	if (ret < 0)
		return ret;
	if (piece->source->kind == &source_kind__perf)
		return put_records(cut, piece->source);
	return put_page(cut, piece, cut->counts.damaged == damaged);
}

/* Take the pages of a piece one by one, each with the beginning of the next, which tells when it
 * ends. */
static int take_pages(struct cut *cut, struct piece *whole, uint64_t *used)
{
	const size_t step = whole->source->page_bytes;
	size_t at = 0;
	int ret = 0;

	while (ret == 0 && at < whole->bytes) {
		struct piece piece = *whole;
		const size_t left = whole->bytes - at;
		uint64_t ignored;

		if (left < step && !whole->is_last)
			break;
		piece.offset += at;
		piece.data += at;
		piece.bytes = left < step + SUBBUF_HEADER_BYTES ? left : step + SUBBUF_HEADER_BYTES;
		piece.is_last = left < step;
		/* A piece that is shorter than a page has no sound rows. */
		if (left < step)
			ret = piece__damaged(&piece, 0, 0, fault_names[SUBBUF_SHORT_HEADER]);
		else
			ret = take(cut, &piece, &ignored);
		at += left < step ? left : step;
	}
	*used = at;
	return ret;
}

static int copy(struct cut *cut, const struct span *span, const struct source *source)
{
	int ret = 0;

	for (uint64_t at = 0; ret == 0 && at < span->bytes;) {
		const uint64_t left = span->bytes - at;
		struct piece piece = {
			.source = source,
			.wanted = WANT_CUT,
			.cpu = span->cpu,
			.offset = span->offset + at,
			.data = cut->data,
			.rows = &cut->rows,
			.counts = &cut->counts,
		};
		uint64_t used = 0;
		const char *fault;

		piece.bytes = source__read(source, cut->data,
					   left < cut->data_bytes ? (size_t)left : cut->data_bytes,
					   piece.offset, &fault);
		piece.is_last = piece.bytes == left || fault != NULL;
		if (piece.bytes > 0)
			ret = source->kind == &source_kind__perf ? take(cut, &piece, &used)
								 : take_pages(cut, &piece, &used);
		if (ret == 0 && fault != NULL)
			ret = piece__damaged(&piece, piece.bytes, 0, fault);
		at = piece.is_last || used == 0 || used > left ? span->bytes : at + used;
	}
	return ret;
}

int cut__run(struct cut *cut, const struct scan *scan)
{
	int ret = 0;

	cut->data_bytes = PIECE_BYTES;
	for (size_t i = 0; i < scan->source_count; i++) {
		const uint32_t page_bytes = scan->sources[i]->page_bytes;

		if (page_bytes < SUBBUF_BYTES_MIN || page_bytes > SUBBUF_BYTES_MAX)
			return -EINVAL;
		if (page_bytes > cut->data_bytes)
			cut->data_bytes = page_bytes;
	}
	cut->buffer_bytes = 2 * cut->data_bytes;
	cut->data = malloc(cut->data_bytes);
	cut->buffer = malloc(cut->buffer_bytes);
	if (cut->data == NULL || cut->buffer == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < scan->span_count && ret == 0; i++)
		ret = copy(cut, &scan->spans[i], scan->sources[scan->spans[i].source]);
	return ret == 0 ? flush(cut) : ret;
}

void cut__deinit(struct cut *cut)
{
	free(cut->ids.id);
	free(cut->data);
	free(cut->buffer);
	rows__deinit(&cut->rows);
	*cut = (struct cut){0};
}

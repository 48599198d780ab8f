/* SPDX-License-Identifier: Apache-2.0 */
#include "tracks.h"

#include <errno.h>
#include <stdlib.h>

int tracks__init(struct tracks *tracks, const struct scan *scan, size_t piece_bytes)
{
	const size_t count = scan->span_count > 0 ? scan->span_count : 1;

	*tracks = (struct tracks){.track = calloc(count, sizeof(*tracks->track)),
				  .heap = calloc(count, sizeof(*tracks->heap)),
				  .piece_bytes = piece_bytes};
	if (tracks->track == NULL || tracks->heap == NULL)
		return -ENOMEM;
	tracks->count = scan->span_count;
	for (size_t i = 0; i < scan->span_count; i++)
		tracks->track[i] = (struct track){.source = scan->sources[scan->spans[i].source],
						  .span = &scan->spans[i]};
	return 0;
}

void tracks__deinit(struct tracks *tracks)
{
	for (size_t i = 0; i < tracks->count; i++) {
		free(tracks->track[i].data);
		free(tracks->track[i].incidents);
		rows__deinit(&tracks->track[i].rows);
	}
	free(tracks->track);
	free(tracks->heap);
	*tracks = (struct tracks){0};
}

static int reserve(struct track *track, size_t piece_bytes)
{
	const uint32_t page = track->source->page_bytes;
	/* Whole pages. */
	const size_t bytes = page >= piece_bytes || page == 0 ? page : piece_bytes / page * page;

	if (track->data != NULL)
		return 0;
	track->data = malloc(bytes > 0 ? bytes : 1);
	track->incidents = malloc((bytes / 8 + 2) * sizeof(*track->incidents));
	if (track->data == NULL || track->incidents == NULL)
		return -ENOMEM;
	track->room = bytes;
	return 0;
}

int tracks__fill(struct tracks *tracks, size_t number)
{
	struct track *const track = &tracks->track[number];
	const uint64_t bytes = track->span->bytes;
	int ret = reserve(track, tracks->piece_bytes);

	track->row = track->rows.count = 0;
	while (ret == 0 && track->rows.count == 0 && track->at < bytes) {
		const uint64_t left = bytes - track->at;
		struct piece piece = {
			.source = track->source,
			.wanted = WANT_ALL,
			.cpu = track->span->cpu,
			.offset = track->span->offset + track->at,
			.data = track->data,
			.rows = &track->rows,
			.incidents = track->incidents,
			.carry = &track->carry,
			.counts = &tracks->counts,
		};
		const uint64_t damaged = tracks->counts.damaged;
		uint64_t used = 0;
		const char *fault;

		piece.bytes = source__read(track->source, track->data,
					   left < track->room ? (size_t)left : track->room,
					   piece.offset, &fault);
		piece.is_last = piece.bytes == left || fault != NULL;
		if (piece.bytes > 0)
			ret = track->source->kind->find(&piece, &used);
		/* A record that the end has cut is damaged for this reason. */
		if (ret == 0 && fault != NULL && tracks->counts.damaged == damaged)
			ret = piece__damaged(&piece, piece.bytes, 0, fault);
		track->at = piece.is_last || used == 0 || used > left ? bytes : track->at + used;
	}
	return ret < 0 ? ret : track->rows.count > 0;
}

static bool is_before(const struct tracks *tracks, size_t a, size_t b)
{
	const struct track *const first = &tracks->track[a], *const second = &tracks->track[b];
	const uint64_t x = first->rows.row[first->row].stamp_ns;
	const uint64_t y = second->rows.row[second->row].stamp_ns;

	return x != y ? x < y : a < b;
}

/* Put the track at a place of the heap where it belongs below it. */
static void sink(struct tracks *tracks, size_t at)
{
	const size_t track = tracks->heap[at];

	for (size_t child; (child = 2 * at + 1) < tracks->waiting; at = child) {
		if (child + 1 < tracks->waiting &&
		    is_before(tracks, tracks->heap[child + 1], tracks->heap[child]))
			child++;
		if (!is_before(tracks, tracks->heap[child], track))
			break;
		tracks->heap[at] = tracks->heap[child];
	}
	tracks->heap[at] = track;
}

static int begin(struct tracks *tracks)
{
	for (size_t i = 0; i < tracks->count; i++) {
		const int ret = tracks__fill(tracks, i);

		if (ret < 0)
			return ret;
		if (ret > 0)
			tracks->heap[tracks->waiting++] = i;
	}
	for (size_t i = tracks->waiting; i-- > 0;)
		sink(tracks, i);
	tracks->is_begun = true;
	return 0;
}

/* Go on from the row that was returned last, which is the first of the heap. */
static int go_on(struct tracks *tracks)
{
	struct track *const track = &tracks->track[tracks->heap[0]];
	int ret = 1;

	if (++track->row == track->rows.count)
		ret = tracks__fill(tracks, tracks->heap[0]);
	if (ret < 0)
		return ret;
	if (ret == 0)
		tracks->heap[0] = tracks->heap[--tracks->waiting];
	if (tracks->waiting > 0)
		sink(tracks, 0);
	return 0;
}

int tracks__next(struct tracks *tracks, const struct row **row, const struct source **source)
{
	const struct track *track;
	int ret = 0;

	if (!tracks->is_begun)
		ret = begin(tracks);
	else if (tracks->waiting > 0)
		ret = go_on(tracks);
	if (ret < 0 || tracks->waiting == 0)
		return ret;
	track = &tracks->track[tracks->heap[0]];
	*row = &track->rows.row[track->row];
	*source = track->source;
	return 1;
}

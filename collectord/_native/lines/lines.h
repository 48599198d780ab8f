/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../columns/scan.h"
#include "machine.h"
#include "order.h"
#include "tracks.h"

/*
 * The records of one file in the order of time, each made into a line by the program of its event;
 * or their numbers.
 *
 *   scan ──► tracks (ftrace, blktrace) or order (perf) ──► record ──► program ──► text
 *
 * The scan is one for WANT_ALL: it has no columns, and sources of one kind. A loss is a record with
 * the payload `struct incident`, of a program of its own. What is damaged is noted.
 */

enum note_kind {
	NOTE_DAMAGED,
	NOTE_LOST, /* in a count, or if no line is made of losses */
	NOTE_LOST_UNTOLD,
	NOTE_LOST_IN_ALL,
};

struct note {
	enum note_kind kind;
	uint64_t offset; /* of damage */
	uint64_t lost;	 /* events of `label` in the whole file */
	int32_t cpu, label;
	char reason[INCIDENT_REASON_BYTES];
};

/* An event, or what else there is a program for. */
struct line {
	struct program program;
	bool of_raw;	  /* the payload is the raw data of perf samples, not the whole record */
	uint32_t least;	  /* bytes of a sound payload */
	uint64_t *counts; /* by CPU + 1 */
	size_t cpus;
};

/* CPUs are counted alone up to this one; others together, as CPU -1. */
#define LINES_CPUS_MAX 8192u

struct lines {
	struct scan *scan;
	struct machine machine;
	struct store out;
	struct line *line;
	size_t count;
	uint32_t *by_key; /* common_type, or the label of the event: number of its line + 1 */
	size_t keys;
	uint32_t loss, unknown; /* numbers of lines, from 1 on; 0: none is made */
	struct note *note;
	size_t notes, note_room;
	uint64_t left; /* lines that may still be made */
	struct tracks tracks;
	struct order order;
};

/* Returns lines of a scan, which is held, NULL without memory. */
struct lines *lines__new(struct scan *scan);
void lines__free(struct lines *lines);
/* Texts, tables and widths come before the programs that name them. */
int lines__add(struct lines *lines, const struct line *line, const struct op *op, size_t count,
	       uint32_t *number);
/* Say that records with a key are of the last line. */
int lines__add_key(struct lines *lines, uint32_t key);

/* Say that what is lost of an event with a key is none of the events. */
int lines__mute(struct lines *lines, uint32_t key);

/* Make lines until `out` has `bytes` bytes. Of perf.data up to `end` of the file; what later records
 * may be older than is kept back without `everything`. Returns 1 if there may be more, 0, or
 * -errno. */
int lines__read(struct lines *lines, size_t bytes, uint64_t end, bool everything);
/* Count all records, in no order, up to `end` as above: programs run, and their text is thrown away. */
int lines__count(struct lines *lines, uint64_t end);
/* Note damage. */
int lines__note(struct lines *lines, const struct note *note);

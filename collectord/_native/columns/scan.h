/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "blktrace.h"
#include "column.h"
#include "perf.h"

/*
 * A scan reads spans of files and makes a table of what it wants of them: records of one event, the
 * losses that the files tell of, or their damage.
 *
 *   scan ──► stream ──► piece of a span ──► source_kind.find ──► rows ──► column_kind.fill ──► batch
 *
 * A scan is described once and does not change; any number of streams read by it, each with buffers
 * of its own. Files are read by pread(2), never mapped: one that is being written may be cut.
 * Nothing in a file ends a stream: what cannot be read is counted, and is a row of the table of
 * damage.
 */

enum wanted {
	WANT_EVENTS,
	WANT_LOSSES,
	WANT_DAMAGE,
	WANT_NAMES, /* of tasks and cgroups, for a stream */
	WANT_ALL,   /* records of all events, losses and damage, for lines: see `lines/lines.h` */
	WANT_CUT,   /* records for another file: see `cut.h` */
};

/* The labels of rows of losses and damage among others. */
#define ROW_LOST (-2)
#define ROW_DAMAGED (-3)

#define CPU_WORDS 16u
#define CPU_WORD_BITS 64u

/* CPUs by their numbers. */
struct cpu_set {
	uint64_t word[CPU_WORDS];
	bool has_unknown; /* one without a number, or with a larger one than there is room for */
};

/* What one source held within the time that is asked for. */
struct counts {
	uint64_t rows;
	uint64_t lost;	      /* records */
	uint64_t lost_in_all; /* records of events that say it at their end */
	uint64_t lost_untold; /* losses without a number */
	uint64_t damaged;     /* places that could not be read */
	struct cpu_set cpus;	    /* that lost records at places that are told */
	struct cpu_set cpus_in_all; /* those of `lost_in_all` */
};

#define INCIDENT_REASON_BYTES 24u

/* The payload of a row of losses or damage; fields are read out of it as out of any record. */
struct incident {
	uint64_t offset; /* in the file */
	union {
		uint64_t lost; /* not a part of the payload if the number is not told */
		char reason[INCIDENT_REASON_BYTES];
	};
};

/* A loss that a file tells of. */
struct loss {
	uint64_t offset, stamp_ns;
	uint64_t lost;
	int32_t cpu;
	int32_t label; /* ROW_NONE: at this place; else in all, of the event that it names */
	bool is_known; /* the number */
};

/* A set of CPUs that several threads add to. */
struct shared_cpus {
	atomic_uint_least64_t word[CPU_WORDS];
	atomic_bool has_unknown;
};

struct source;

/* What the pieces of a span before one say of it; zeroes at the start of a span. */
struct carry {
	uint32_t sequence; /* of the last numbered record of blktrace */
	bool has_sequence;
	bool is_lost; /* they end in damage */
};

/* A piece of a span, and what is found in it. */
struct piece {
	const struct source *source;
	enum wanted wanted;
	int32_t cpu;	 /* of the span; ROW_NONE: its records tell theirs */
	uint64_t offset; /* of its first byte, in the file */
	const uint8_t *data;
	size_t bytes;
	bool is_last; /* the span ends here */
	struct rows *rows;
	struct incident *incidents; /* room for one for each 8 bytes, and 2 more; NULL if unwanted */
	size_t incident_count;
	struct names *names; /* if they are wanted */
	struct cgroups *cgroups; /* likewise */
	struct carry *carry;
	struct counts *counts;
};

/* The ways in which records lie in files. */
struct source_kind {
	const char *name;
	/* Find what is wanted in the whole units of a piece. `used`: how far the next piece is
	 * behind the start of this one, which may be behind its end; 0 only if nothing of the last
	 * piece is of use. Returns -errno. */
	int (*find)(struct piece *piece, uint64_t *used);
	bool tells_names; /* records tell the names of tasks and cgroups, which are found before
			   * others */
};

extern const struct source_kind source_kind__ftrace, source_kind__perf, source_kind__blktrace;

const struct source_kind *source_kind__find(const char *name);

/* A file. What it owns is freed with its scan. */
struct source {
	const struct source_kind *kind;
	int fd;
	uint64_t since_ns, until_ns; /* in stamps: the rows that are asked for, both included */
	struct field *fields;	     /* one for each column */
	char **texts;		     /* of constants, one for each column */
	struct names names;	     /* unless its records tell them */
	struct label *labels;
	size_t label_count;
	struct clock_reading *readings;
	size_t reading_count;
	atomic_uint_least64_t rows, lost, lost_untold, damaged; /* of the stream that saw the most */
	struct shared_cpus cpus, cpus_in_all;			/* of all streams together */
	uint32_t page_bytes; /* of ftrace; of others, what a piece has at least */
	/* ftrace: */
	uint32_t event;	     /* common_type of the records */
	uint32_t tid_offset; /* of common_pid */
	/* perf: */
	struct perf_events perf;
	enum perf_rows perf_rows;
	/* blktrace: */
	enum blk_rows blk_rows;
};

struct span {
	size_t source;
	int32_t cpu;
	uint64_t offset, bytes;
};

struct scan {
	atomic_size_t holders;
	enum wanted wanted;
	size_t column_count, source_count, span_count;
	struct {
		const struct column_kind *kind;
		char *name;
	} *columns;
	struct source **sources;
	struct span *spans;
};

/* Returns a scan that its caller holds, NULL without memory. */
struct scan *scan__new(enum wanted wanted);
struct scan *scan__hold(struct scan *scan);
void scan__drop(struct scan *scan);
/* All columns come first, then the sources, with their spans. Returns -errno; -EINVAL: there is no
 * such kind. */
int scan__add_column(struct scan *scan, const char *kind, const char *name);
/* The descriptor is copied; `source` receives the source, whose fields are missing. */
int scan__add_source(struct scan *scan, const char *kind, int fd, struct source **source);
int scan__add_span(struct scan *scan, int32_t cpu, uint64_t offset, uint64_t bytes);
/* Make the field a constant. */
int source__set_text(struct source *source, size_t column, const char *text, size_t bytes);
/* Add the text of the next label. */
int source__add_label(struct source *source, const char *text, size_t bytes);
int source__set_readings(struct source *source, const struct clock_reading *readings, size_t count);
struct counts source__counts(const struct source *source);

/* Begin to read. The stream holds the scan. Returns -errno. */
int scan__stream(struct scan *scan, struct ArrowArrayStream *stream);
int scan__schema(const struct scan *scan, struct ArrowSchema *schema);

/* Used by the kinds of sources: */

static inline bool piece__in_time(const struct piece *piece, uint64_t stamp_ns)
{
	return stamp_ns >= piece->source->since_ns && stamp_ns <= piece->source->until_ns;
}

/* Read up to `bytes` bytes. Returns their number; fewer: the file ends, or cannot be read, as
 * `fault` says. */
size_t source__read(const struct source *source, uint8_t *to, size_t bytes, uint64_t offset,
		    const char **fault);
/* Returns -errno. */
int piece__lost(struct piece *piece, const struct loss *loss);
/* Note damage `at` bytes behind the piece's start. Returns -errno. */
int piece__damaged(struct piece *piece, uint64_t at, uint64_t stamp_ns, const char *reason);

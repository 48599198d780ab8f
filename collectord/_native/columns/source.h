/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blktrace.h"
#include "clocks.h"
#include "column.h"
#include "names.h"
#include "perf.h"

struct piece;

#define CPU_WORDS 16u
#define CPU_WORD_BITS 64u

/* CPUs by their numbers. */
struct cpu_set {
	uint64_t word[CPU_WORDS];
	bool has_unknown; /* one without a number, or with a larger one than there is room for */
};

/* One source held this within the time that is asked for. */
struct counts {
	uint64_t rows;
	uint64_t lost;		    /* records */
	uint64_t lost_in_all;	    /* records of events that say it at their end */
	uint64_t lost_untold;	    /* losses without a number */
	uint64_t damaged;	    /* places that could not be read */
	struct cpu_set cpus;	    /* that lost records at places that are told */
	struct cpu_set cpus_in_all; /* those of `lost_in_all` */
};

/* A set of CPUs that several threads add to. */
struct shared_cpus {
	atomic_uint_least64_t word[CPU_WORDS];
	atomic_bool has_unknown;
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

/* The descriptor is copied. Returns -errno. */
int source__new(const struct source_kind *kind, int fd, size_t columns, struct source **source);
void source__free(struct source *source, size_t columns);
/* Make the field a constant. */
int source__set_text(struct source *source, size_t column, const char *text, size_t bytes);
/* Add the text of the next label. */
int source__add_label(struct source *source, const char *text, size_t bytes);
int source__set_readings(struct source *source, const struct clock_reading *readings, size_t count);
struct counts source__counts(const struct source *source);
/* Note what a stream counted, for all threads. */
void source__note(struct source *source, const struct counts *counts);
/* Read up to `bytes` bytes. Returns their number; fewer: the file ends, or cannot be read, as
 * `fault` says. */
size_t source__read(const struct source *source, uint8_t *to, size_t bytes, uint64_t offset,
		    const char **fault);

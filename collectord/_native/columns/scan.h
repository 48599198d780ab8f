/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "column.h"
#include "piece.h"
#include "source.h"

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

/* Begin to read. The stream holds the scan. Returns -errno. */
int scan__stream(struct scan *scan, struct ArrowArrayStream *stream);
int scan__schema(const struct scan *scan, struct ArrowSchema *schema);

/* Find the names of tasks and cgroups in all spans of a source whose records tell them. What they receive is
 * to be freed in any case. Returns -errno. */
int scan__names(const struct scan *scan, size_t source, struct names *names,
		struct cgroups *cgroups);

/* SPDX-License-Identifier: Apache-2.0 */
#include "scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct scan *scan__new(enum wanted wanted)
{
	struct scan *const scan = calloc(1, sizeof(*scan));

	if (scan != NULL) {
		atomic_init(&scan->holders, 1);
		scan->wanted = wanted;
	}
	return scan;
}

struct scan *scan__hold(struct scan *scan)
{
	atomic_fetch_add_explicit(&scan->holders, 1, memory_order_relaxed);
	return scan;
}

void scan__drop(struct scan *scan)
{
	/* Synchronizes with itself: what other holders did is seen by the last one. */
	if (atomic_fetch_sub_explicit(&scan->holders, 1, memory_order_acq_rel) != 1)
		return;
	for (size_t i = 0; i < scan->source_count; i++)
		source__free(scan->sources[i], scan->column_count);
	for (size_t i = 0; i < scan->column_count; i++)
		free(scan->columns[i].name);
	free(scan->columns);
	free(scan->sources);
	free(scan->spans);
	free(scan);
}

int scan__add_column(struct scan *scan, const char *kind, const char *name)
{
	const struct column_kind *const found = column_kind__find(kind);
	char *copy;

	if (found == NULL || scan->source_count > 0)
		return -EINVAL;
	if (array__grow(&scan->columns, scan->column_count, sizeof(*scan->columns)) < 0)
		return -ENOMEM;
	copy = strdup(name);
	if (copy == NULL)
		return -ENOMEM;
	scan->columns[scan->column_count].kind = found;
	scan->columns[scan->column_count++].name = copy;
	return 0;
}

int scan__add_source(struct scan *scan, const char *kind, int fd, struct source **source)
{
	const struct source_kind *const found = source_kind__find(kind);
	int ret;

	if (found == NULL)
		return -EINVAL;
	if (array__grow(&scan->sources, scan->source_count, sizeof(struct source *)) < 0)
		return -ENOMEM;
	ret = source__new(found, fd, scan->column_count, source);
	if (ret == 0)
		scan->sources[scan->source_count++] = *source;
	return ret;
}

int scan__add_span(struct scan *scan, int32_t cpu, uint64_t offset, uint64_t bytes)
{
	if (scan->source_count == 0 || offset > INT64_MAX || bytes > INT64_MAX - offset)
		return -EINVAL;
	if (array__grow(&scan->spans, scan->span_count, sizeof(*scan->spans)) < 0)
		return -ENOMEM;
	scan->spans[scan->span_count++] = (struct span){
		.source = scan->source_count - 1, .cpu = cpu, .offset = offset, .bytes = bytes};
	return 0;
}

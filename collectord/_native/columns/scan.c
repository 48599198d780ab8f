/* SPDX-License-Identifier: Apache-2.0 */
#include "scan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct source_kind *const kinds[] = {&source_kind__ftrace, &source_kind__perf,
						  &source_kind__blktrace};

const struct source_kind *source_kind__find(const char *name)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (strcmp(kinds[i]->name, name) == 0)
			return kinds[i];
	return NULL;
}

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

static void source__free(struct source *source, size_t columns)
{
	for (size_t i = 0; source->texts != NULL && i < columns; i++)
		free(source->texts[i]);
	free(source->texts);
	free(source->fields);
	free(source->readings);
	for (size_t i = 0; i < source->label_count; i++)
		free(source->labels[i].text);
	free(source->labels);
	names__deinit(&source->names);
	perf_events__deinit(&source->perf);
	if (source->fd >= 0)
		(void)close(source->fd);
	free(source);
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
	const size_t columns = scan->column_count > 0 ? scan->column_count : 1;
	struct source *made;

	if (found == NULL)
		return -EINVAL;
	if (array__grow(&scan->sources, scan->source_count, sizeof(struct source *)) < 0)
		return -ENOMEM;
	made = calloc(1, sizeof(*made));
	if (made == NULL)
		return -ENOMEM;
	made->kind = found;
	made->until_ns = UINT64_MAX;
	made->fields = calloc(columns, sizeof(*made->fields));
	made->texts = calloc(columns, sizeof(*made->texts));
	made->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (made->fields == NULL || made->texts == NULL || made->fd < 0) {
		const int error = made->fd < 0 ? errno : ENOMEM;

		source__free(made, columns);
		return -error;
	}
	scan->sources[scan->source_count++] = made;
	*source = made;
	return 0;
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

static char *copied(const char *text, size_t bytes)
{
	char *const copy = malloc(bytes > 0 ? bytes : 1);

	if (copy != NULL)
		memcpy(copy, text, bytes);
	return copy;
}

int source__add_label(struct source *source, const char *text, size_t bytes)
{
	char *copy;

	if (array__grow(&source->labels, source->label_count, sizeof(*source->labels)) < 0)
		return -ENOMEM;
	copy = copied(text, bytes);
	if (copy == NULL)
		return -ENOMEM;
	source->labels[source->label_count++] =
		(struct label){.text = copy, .bytes = (uint32_t)bytes};
	return 0;
}

int source__set_text(struct source *source, size_t column, const char *text, size_t bytes)
{
	char *const copy = copied(text, bytes);

	if (copy == NULL)
		return -ENOMEM;
	free(source->texts[column]);
	source->texts[column] = copy;
	source->fields[column] =
		(struct field){.place = FIELD_CONSTANT, .text = copy, .text_bytes = (uint32_t)bytes};
	return 0;
}

int source__set_readings(struct source *source, const struct clock_reading *readings, size_t count)
{
	struct clock_reading *const copy = malloc((count > 0 ? count : 1) * sizeof(*copy));

	if (copy == NULL)
		return -ENOMEM;
	if (count > 0)
		memcpy(copy, readings, count * sizeof(*copy));
	free(source->readings);
	source->readings = copy;
	source->reading_count = count;
	return 0;
}

static struct cpu_set cpus_of(const struct shared_cpus *shared)
{
	struct cpu_set set = {.has_unknown = atomic_load_explicit(&shared->has_unknown,
								  memory_order_relaxed)};

	for (size_t i = 0; i < CPU_WORDS; i++)
		set.word[i] = atomic_load_explicit(&shared->word[i], memory_order_relaxed);
	return set;
}

struct counts source__counts(const struct source *source)
{
	return (struct counts){
		.rows = atomic_load_explicit(&source->rows, memory_order_relaxed),
		.lost = atomic_load_explicit(&source->lost, memory_order_relaxed),
		.lost_untold = atomic_load_explicit(&source->lost_untold, memory_order_relaxed),
		.damaged = atomic_load_explicit(&source->damaged, memory_order_relaxed),
		.cpus = cpus_of(&source->cpus),
		.cpus_in_all = cpus_of(&source->cpus_in_all),
	};
}

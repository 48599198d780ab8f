/* SPDX-License-Identifier: Apache-2.0 */
#include "source.h"

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

int source__new(const struct source_kind *kind, int fd, size_t columns, struct source **source)
{
	struct source *const made = calloc(1, sizeof(*made));

	if (made == NULL)
		return -ENOMEM;
	made->kind = kind;
	made->until_ns = UINT64_MAX;
	made->fields = calloc(columns > 0 ? columns : 1, sizeof(*made->fields));
	made->texts = calloc(columns > 0 ? columns : 1, sizeof(*made->texts));
	made->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (made->fields == NULL || made->texts == NULL || made->fd < 0) {
		const int error = made->fd < 0 ? errno : ENOMEM;

		source__free(made, columns);
		return -error;
	}
	*source = made;
	return 0;
}

void source__free(struct source *source, size_t columns)
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

size_t source__read(const struct source *source, uint8_t *to, size_t bytes, uint64_t offset,
		    const char **fault)
{
	size_t have = 0;

	*fault = NULL;
	while (have < bytes) {
		const ssize_t got =
			pread(source->fd, to + have, bytes - have, (off_t)(offset + have));

		if (got > 0) {
			have += (size_t)got;
		} else if (got == 0) {
			*fault = "file_ends";
			break;
		} else if (errno != EINTR) {
			*fault = "unreadable";
			break;
		}
	}
	return have;
}

static struct cpu_set cpus_of(const struct shared_cpus *shared)
{
	struct cpu_set set = {
		.has_unknown = atomic_load_explicit(&shared->has_unknown, memory_order_relaxed)};

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

static void raise_to(atomic_uint_least64_t *most, uint64_t value)
{
	uint64_t before = atomic_load_explicit(most, memory_order_relaxed);

	while (before < value &&
	       !atomic_compare_exchange_weak_explicit(most, &before, value, memory_order_relaxed,
						      memory_order_relaxed))
		;
}

static void share(struct shared_cpus *shared, const struct cpu_set *set)
{
	for (size_t i = 0; i < CPU_WORDS; i++)
		atomic_fetch_or_explicit(&shared->word[i], set->word[i], memory_order_relaxed);
	if (set->has_unknown)
		atomic_store_explicit(&shared->has_unknown, true, memory_order_relaxed);
}

void source__note(struct source *source, const struct counts *counts)
{
	raise_to(&source->rows, counts->rows);
	/* Losses at the end of a ring have no place, and no loss is told twice. */
	raise_to(&source->lost, counts->lost);
	raise_to(&source->lost, counts->lost_in_all);
	raise_to(&source->lost_untold, counts->lost_untold);
	raise_to(&source->damaged, counts->damaged);
	share(&source->cpus, &counts->cpus);
	share(&source->cpus_in_all, &counts->cpus_in_all);
}

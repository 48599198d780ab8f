/* SPDX-License-Identifier: Apache-2.0 */
#include "lines.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>

#include "../walk.h"

#define KEYS_MAX 65536u /* common_type has 16 bits */
#define WORD_BYTES 8u
/* Small, as each CPU has a piece. */
#define PIECE_BYTES (16u << 10)
#define MUTED UINT32_MAX
#define IDLE_NAME "<idle>"
#define NO_NAME "<...>"

struct lines *lines__new(struct scan *scan)
{
	struct lines *const lines = calloc(1, sizeof(*lines));
	int ret = 0;

	if (lines == NULL)
		return NULL;
	lines->scan = scan__hold(scan);
	lines->machine.out = &lines->out;
	lines->left = UINT64_MAX;
	if (scan->source_count == 0 || scan->span_count == 0)
		return lines;
	if (scan->sources[0]->kind == &source_kind__perf)
		ret = order__init(&lines->order, scan->sources[0], &scan->spans[0]);
	else
		ret = tracks__init(&lines->tracks, scan, PIECE_BYTES);
	if (ret < 0) {
		lines__free(lines);
		return NULL;
	}
	return lines;
}

void lines__free(struct lines *lines)
{
	for (size_t i = 0; i < lines->count; i++) {
		program__deinit(&lines->line[i].program);
		free(lines->line[i].counts);
	}
	tracks__deinit(&lines->tracks);
	order__deinit(&lines->order);
	words__deinit(&lines->machine.words);
	free(lines->line);
	free(lines->by_key);
	free(lines->note);
	free(lines->out.data);
	scan__drop(lines->scan);
	free(lines);
}

int lines__add(struct lines *lines, const struct line *told, const struct op *op, size_t count,
	       uint32_t *number)
{
	struct line *line;
	int ret;

	if ((lines->count & (lines->count - 1)) == 0) {
		const size_t room = lines->count > 0 ? 2 * lines->count : 1;
		struct line *const more = realloc(lines->line, room * sizeof(*more));

		if (more == NULL)
			return -ENOMEM;
		lines->line = more;
	}
	line = &lines->line[lines->count];
	*line = (struct line){.of_raw = told->of_raw, .least = told->least};
	ret = program__init(&line->program, &lines->machine.words, op, count);
	if (ret == 0)
		*number = (uint32_t)++lines->count;
	return ret;
}

static int set_key(struct lines *lines, uint32_t key, uint32_t number)
{
	if (key >= KEYS_MAX)
		return -EINVAL;
	if (key >= lines->keys) {
		uint32_t *const more = realloc(lines->by_key, (key + 1) * sizeof(*more));

		if (more == NULL)
			return -ENOMEM;
		memset(more + lines->keys, 0, (key + 1 - lines->keys) * sizeof(*more));
		lines->by_key = more;
		lines->keys = key + 1;
	}
	lines->by_key[key] = number;
	return 0;
}

int lines__add_key(struct lines *lines, uint32_t key)
{
	return set_key(lines, key, (uint32_t)lines->count);
}

int lines__mute(struct lines *lines, uint32_t key)
{
	return set_key(lines, key, MUTED);
}

int lines__note(struct lines *lines, const struct note *note)
{
	if (lines->notes == lines->note_room) {
		const size_t room = lines->note_room > 0 ? 2 * lines->note_room : 16;
		struct note *const more = realloc(lines->note, room * sizeof(*more));

		if (more == NULL)
			return -ENOMEM;
		lines->note = more;
		lines->note_room = room;
	}
	lines->note[lines->notes++] = *note;
	return 0;
}

static int note_damage(struct lines *lines, uint64_t offset, int32_t cpu, int32_t label,
		       const char *reason)
{
	struct note note = {.kind = NOTE_DAMAGED, .offset = offset, .cpu = cpu, .label = label};

	memcpy(note.reason, reason, strnlen(reason, sizeof(note.reason) - 1));
	return lines__note(lines, &note);
}

/* Returns the line of the records with a key, NULL if none is made of them. */
static struct line *line_of(const struct lines *lines, int32_t key)
{
	uint32_t number = lines->unknown;

	if (key >= 0 && (size_t)key < lines->keys && lines->by_key[key] != 0)
		number = lines->by_key[key];
	return number != 0 && number != MUTED ? &lines->line[number - 1] : NULL;
}

static int count_at(struct line *line, int32_t cpu, uint64_t more)
{
	const size_t at = cpu >= 0 && (uint32_t)cpu < LINES_CPUS_MAX ? (size_t)cpu + 1 : 0;

	if (at >= line->cpus) {
		const size_t room = 2 * at + 8;
		uint64_t *const counts = realloc(line->counts, room * sizeof(*counts));

		if (counts == NULL)
			return -ENOMEM;
		memset(counts + line->cpus, 0, (room - line->cpus) * sizeof(*counts));
		line->counts = counts;
		line->cpus = room;
	}
	line->counts[at] += more;
	return 0;
}

/* Run the program of a record. Returns 1 if it made a line, 0, or -errno. */
static int make(struct lines *lines, struct line *line, const struct record *record, bool is_counted)
{
	const int ret =
		line->program.count > 0 ? machine__run(&lines->machine, &line->program, record) : 1;

	if (ret <= 0)
		return ret;
	if (!is_counted) {
		lines->left--;
		return 1;
	}
	lines->out.bytes = 0;
	return count_at(line, record->cpu, 1);
}

static int made_loss(struct lines *lines, const struct row *row, bool is_counted)
{
	const struct incident *const incident = (const struct incident *)row->payload;
	const bool is_told = row->bytes >= offsetof(struct incident, lost) + sizeof(incident->lost);
	const struct record record = {
		.payload = row->payload,
		.bytes = row->bytes,
		.cpu = row->cpu,
		.pid = ROW_NONE,
		.tid = ROW_NONE,
		.stamp_ns = row->stamp_ns,
	};

	if (is_counted || lines->loss == 0)
		return lines__note(lines,
				   &(struct note){.kind = is_told ? NOTE_LOST : NOTE_LOST_UNTOLD,
						  .lost = is_told ? incident->lost : 0,
						  .cpu = row->cpu,
						  .label = ROW_NONE});
	return make(lines, &lines->line[lines->loss - 1], &record, false);
}

static void set_comm(struct record *record, const char *text, size_t bytes)
{
	record->comm = (const uint8_t *)(text != NULL ? text : NO_NAME);
	record->comm_bytes = text != NULL ? (uint32_t)bytes : sizeof(NO_NAME) - 1;
}

static void set_cgroup(struct record *record, const struct cgroups *cgroups, uint64_t id)
{
	const struct cgroup *const cgroup = cgroups__find(cgroups, id);

	if (cgroup == NULL)
		return;
	record->cgroup = cgroups->text.data + cgroup->at;
	record->cgroup_bytes = cgroup->bytes;
}

/* Make what a row of a track stands for. */
static int made_row(struct lines *lines, const struct row *row, const struct source *source,
		    bool is_counted)
{
	const struct incident *const incident = (const struct incident *)row->payload;
	struct line *const line = line_of(lines, row->label);
	struct record record = {
		.payload = row->payload,
		.bytes = row->bytes,
		.cpu = row->cpu,
		.pid = ROW_NONE,
		.tid = row->tid,
		.stamp_ns = row->stamp_ns,
		.tail = row->loose,
	};

	if (row->label == ROW_LOST)
		return made_loss(lines, row, is_counted);
	if (row->label == ROW_DAMAGED)
		return note_damage(lines, incident->offset, row->cpu, ROW_NONE, incident->reason);
	if (line == NULL)
		return 0;
	if (!is_counted) {
		const struct named named = names__find(&source->names, row->tid, row->stamp_ns);

		set_comm(&record, named.text, named.bytes);
	}
	return make(lines, line, &record, is_counted);
}

/* Make what a sample of a perf.data stands for. */
static int made_sample(struct lines *lines, const uint8_t *data, uint64_t offset, bool is_counted)
{
	const struct source *const source = lines->scan->sources[0];
	const uint16_t size = walk__size(walk__load(data));
	const struct perf_event *const event = perf__sampled(&source->perf, data, size);
	struct perf_parts parts;
	struct record record = {.payload = data, .bytes = size};
	const struct task *task;
	struct line *line;

	if (event == NULL)
		return note_damage(lines, offset, ROW_NONE, ROW_NONE, PERF_UNKNOWN_ID);
	line = line_of(lines, event->label);
	record.stamp_ns = perf__sample_time(event, data, size);
	if (line == NULL || !event->is_wanted || record.stamp_ns < source->since_ns ||
	    record.stamp_ns > source->until_ns)
		return 0;
	if (!perf__find_parts(event, data, size, &parts))
		return note_damage(lines, offset, ROW_NONE, event->label,
				   fault_names[SUBBUF_SHORT_EVENT]);
	perf__place(event, data, &record.cpu, &record.pid, &record.tid);
	if (line->of_raw) {
		record.payload = data + parts.raw;
		record.bytes = parts.raw_bytes;
		if (record.bytes < line->least)
			return note_damage(lines, offset, record.cpu, event->label,
					   fault_names[SUBBUF_SHORT_EVENT]);
	}
	if (parts.chain != 0) {
		record.chain = data + parts.chain + WORD_BYTES;
		record.chain_bytes = (uint32_t)walk__load(data + parts.chain) * WORD_BYTES;
	}
	if (parts.cgroup != 0)
		set_cgroup(&record, &lines->order.cgroups, walk__load(data + parts.cgroup));
	if (record.tid == 0) {
		set_comm(&record, IDLE_NAME, sizeof(IDLE_NAME) - 1);
	} else {
		task = tasks__find(&lines->order.tasks, record.tid);
		set_comm(&record, task != NULL ? (const char *)task->name : NULL,
			 task != NULL ? task->bytes : 0);
	}
	return make(lines, line, &record, is_counted);
}

/* LOST tells what a ring lost before this record; LOST_SAMPLES what an event lost in all. */
static int made_lost(struct lines *lines, const uint8_t *data, uint64_t offset, bool is_counted)
{
	const struct source *const source = lines->scan->sources[0];
	const uint64_t header = walk__load(data);
	const uint16_t size = walk__size(header);
	const struct perf_event *const event = perf__noted(&source->perf, data, size);
	const bool is_total = walk__type(header) == PERF_RECORD_LOST_SAMPLES;
	const uint32_t bytes = is_total ? PERF_LOST_SAMPLES_BYTES : PERF_LOST_BYTES;
	struct incident incident = {.offset = offset};
	struct row row = {.payload = (const uint8_t *)&incident,
			  .bytes = offsetof(struct incident, lost) + sizeof(incident.lost)};

	if (event->label >= 0 && (size_t)event->label < lines->keys &&
	    lines->by_key[event->label] == MUTED)
		return 0;
	if (size < bytes)
		return note_damage(lines, offset, ROW_NONE, ROW_NONE,
				   fault_names[SUBBUF_SHORT_EVENT]);
	row.stamp_ns = perf__trailer_time(event, data, size);
	incident.lost = walk__load(data + bytes - WORD_BYTES);
	if (is_total)
		return lines__note(lines, &(struct note){.kind = NOTE_LOST_IN_ALL,
							 .lost = incident.lost,
							 .cpu = ROW_NONE,
							 .label = event->label});
	if (row.stamp_ns < source->since_ns || row.stamp_ns > source->until_ns)
		return 0;
	row.cpu = perf__trailer_cpu(event, data, size);
	return made_loss(lines, &row, is_counted);
}

/* Make what a record of a perf.data stands for. */
static int made_record(struct lines *lines, const uint8_t *data, uint64_t offset, bool is_counted)
{
	switch (walk__type(walk__load(data))) {
	case PERF_RECORD_SAMPLE:
		return made_sample(lines, data, offset, is_counted);
	case PERF_RECORD_LOST:
	case PERF_RECORD_LOST_SAMPLES:
		return made_lost(lines, data, offset, is_counted);
	case WALK_COMPRESSED:
	case WALK_COMPRESSED2:
		return note_damage(lines, offset, ROW_NONE, ROW_NONE, PERF_NOT_DECOMPRESSED);
	default:
		return order__tell(&lines->order, data);
	}
}

/* Make the next line in the order of time. Returns 1 if there may be more, 0, or -errno. */
static int next(struct lines *lines, uint64_t end, bool everything)
{
	const struct source *source;
	const struct row *row;
	struct order_fault fault;
	const uint8_t *data;
	uint64_t offset;
	int ret;

	if (lines->tracks.track != NULL) {
		ret = tracks__next(&lines->tracks, &row, &source);
		if (ret > 0)
			ret = made_row(lines, row, source, false);
		else
			return ret;
		return ret < 0 ? ret : 1;
	}
	if (lines->order.source == NULL)
		return 0;
	ret = order__next(&lines->order, end, everything, &data, &offset, &fault);
	if (ret <= 0)
		return ret;
	ret = fault.reason != NULL
		      ? note_damage(lines, fault.offset, ROW_NONE, ROW_NONE, fault.reason)
		      : made_record(lines, data, offset, false);
	return ret < 0 ? ret : 1;
}

int lines__read(struct lines *lines, size_t bytes, uint64_t end, bool everything)
{
	int ret = 1;

	while (ret > 0 && lines->left > 0 && lines->out.bytes < bytes &&
	       lines->notes < bytes / sizeof(*lines->note))
		ret = next(lines, end, everything);
	return lines->left > 0 ? ret : ret < 0 ? ret : 0;
}

/* Count the records of one piece. */
static int count_rows(struct lines *lines, const struct rows *rows, const struct source *source)
{
	int ret = 0;

	for (size_t i = 0; i < rows->count && ret >= 0; i++)
		ret = made_row(lines, &rows->row[i], source, true);
	return ret < 0 ? ret : 0;
}

static int count_pages(struct lines *lines)
{
	int ret = 0;

	/* In the order of the file, one track after the other. */
	for (size_t i = 0; i < lines->tracks.count; i++) {
		while ((ret = tracks__fill(&lines->tracks, i)) > 0) {
			const struct track *const track = &lines->tracks.track[i];

			ret = count_rows(lines, &track->rows, track->source);
			if (ret < 0)
				return ret;
		}
		if (ret < 0)
			return ret;
	}
	return 0;
}

static int count_records(struct lines *lines, uint64_t end)
{
	struct order_fault fault;
	const uint8_t *data;
	uint64_t offset;
	int ret;

	while ((ret = order__walk(&lines->order, end, &data, &offset, &fault)) > 0) {
		ret = fault.reason != NULL
			      ? note_damage(lines, fault.offset, ROW_NONE, ROW_NONE, fault.reason)
			      : made_record(lines, data, offset, true);
		if (ret < 0)
			return ret;
	}
	return ret;
}

int lines__count(struct lines *lines, uint64_t end)
{
	if (lines->tracks.track != NULL)
		return count_pages(lines);
	return lines->order.source != NULL ? count_records(lines, end) : 0;
}

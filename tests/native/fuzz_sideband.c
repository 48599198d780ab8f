/* SPDX-License-Identifier: Apache-2.0 */
#include <linux/perf_event.h>
#include <string.h>

#include "check.h"
#include "sideband_table.h"

#define TABLE_BYTES (16u << 10)
#define RECORD_BYTES 80u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int emitted(void *context, const uint8_t *record, uint16_t size)
{
	uint64_t *const sum = context;

	CHECK(size >= WALK_HEADER_BYTES && size % 8 == 0);
	CHECK_EQ(walk__size(walk__load(record)), size);
	for (uint16_t at = 0; at < size; at++)
		*sum += record[at];
	return 0;
}

/* Eight bytes become one record with small numbers, so that tasks and mappings meet again. */
static void apply_small(struct sideband_table *table, const uint8_t *bytes)
{
	static const uint8_t types[] = {PERF_RECORD_COMM,
					PERF_RECORD_FORK,
					PERF_RECORD_EXIT,
					PERF_RECORD_MMAP,
					PERF_RECORD_MMAP2,
					PERF_RECORD_KSYMBOL,
					PERF_RECORD_BPF_EVENT,
					PERF_RECORD_ITRACE_START,
					PERF_RECORD_SWITCH_CPU_WIDE,
					PERF_RECORD_AUX_OUTPUT_HW_ID,
					PERF_RECORD_CGROUP};
	const uint16_t size = (uint16_t)(8 + bytes[1] % (RECORD_BYTES / 8) * 8);
	uint8_t record[RECORD_BYTES + 8];

	for (uint32_t at = 8; at < sizeof(record); at += 4) {
		const uint32_t value = bytes[2 + at / 4 % 6] % 16;

		memcpy(record + at, &value, sizeof(value));
	}
	walk__store(record, walk__header(types[bytes[0] % (sizeof(types) / sizeof(types[0]))],
					 bytes[0] % 16 < 8 ? PERF_RECORD_MISC_COMM_EXEC : 0, size));
	sideband_table__apply(table, record);
}

/* {mode, u8 CPU trailer, u16 time trailer, ...}: raw records, or eight bytes for each. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct walk_layout layout = {0};
	struct walk_tally tally = {0};
	struct sideband_table *table;
	enum fault fault;
	uint64_t sum = 0;
	size_t last, end;

	if (size < 4)
		return 0;
	memcpy(&layout.time_trailer, data + 2, sizeof(layout.time_trailer));
	layout.cpu_trailer = data[1];
	table = sideband_table__new(TABLE_BYTES);
	CHECK(table != NULL);
	table->layout = layout;
	if (data[0] % 2 == 0) {
		end = walk__file(data + 4, size - 4, &layout, &tally, &fault, &last);
		if (tally.aux_pieces > 0) /* sideband__load() refuses them */
			end = 0;
		for (size_t at = 4; at < 4 + end; at += walk__size(walk__load(data + at))) {
			/* Of its own size: a read behind it traps. */
			const uint16_t bytes = walk__size(walk__load(data + at));
			uint8_t *const record = malloc(bytes);

			CHECK(record != NULL);
			memcpy(record, data + at, bytes);
			sideband_table__apply(table, record);
			free(record);
		}
	} else {
		for (size_t at = 4; at + 8 <= size; at += 8)
			apply_small(table, data + at);
	}
	CHECK_EQ(sideband_replay__all(&(struct sideband_replay){table, emitted, &sum}), 0);
	CHECK(table->bytes <= TABLE_BYTES);
	CHECK(table->task_count * 16 <= TABLE_BYTES && table->map_count <= TABLE_BYTES);
	sideband_table__free(table);
	return 0;
}

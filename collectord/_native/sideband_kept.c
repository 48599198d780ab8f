/* SPDX-License-Identifier: Apache-2.0 */
#include "sideband_kept.h"

#include <linux/perf_event.h>

#include "sideband_memory.h"

#define AT_KSYM_ADDR 8u /* KSYMBOL: u64 addr, u32 len, u16 type, u16 flags */
#define AT_KSYM_FLAGS 22u
#define KSYMBOL_UNREGISTER 0x1u /* PERF_RECORD_KSYMBOL_FLAGS_UNREGISTER */
#define AT_BPF_TYPE 8u		/* BPF_EVENT: u16 type, u16 flags, u32 id */
#define AT_BPF_ID 12u
#define AT_CGROUP_PATH 16u /* CGROUP: u64 id, path */

void kept__forget(struct sideband_table *table, uint32_t kind, uint64_t key)
{
	struct entries *const entries = &table->kept[kind];
	struct kept *const kept = (struct kept *)*entries__link(entries, key);

	if (kept == NULL)
		return;
	blob__put(table, kept->record);
	memory__drop(table, entries, &kept->entry, sizeof(*kept));
}

/* Keep the record, or forget what it says is `gone`. Returns whether something is kept: not without
 * memory. */
static bool keep(struct sideband_table *table, uint32_t kind, uint64_t key, const uint8_t *record,
		 bool gone)
{
	struct kept *kept;

	if (gone) {
		kept__forget(table, kind, key);
		return false;
	}
	kept = memory__find_or_new(table, &table->kept[kind], key, sizeof(*kept));
	if (kept == NULL)
		return false;
	blob__put(table, kept->record);
	kept->record = blob__new(table, record);
	return true;
}

void kept__take_symbol(struct sideband_table *table, const uint8_t *record)
{
	keep(table, KEPT_SYMBOLS, walk__load(record + AT_KSYM_ADDR), record,
	     (load16(record + AT_KSYM_FLAGS) & KSYMBOL_UNREGISTER) != 0);
}

void kept__take_program(struct sideband_table *table, const uint8_t *record)
{
	keep(table, KEPT_PROGRAMS, load32(record + AT_BPF_ID), record,
	     load16(record + AT_BPF_TYPE) == PERF_BPF_EVENT_PROG_UNLOAD);
}

/* Returns a hash of the path of a cgroup, which ends at its NUL or with the record's body (FNV-1a). */
static uint64_t path_hash(const struct sideband_table *table, const uint8_t *record)
{
	const uint16_t size = walk__size(walk__load(record));
	const uint32_t trailer = table->layout.time_trailer;
	const uint32_t end = size - AT_CGROUP_PATH > trailer ? size - trailer : size;
	uint64_t hash = 0xcbf29ce484222325u;

	for (uint32_t at = AT_CGROUP_PATH; at < end && record[at] != '\0'; at++)
		hash = (hash ^ record[at]) * 0x100000001b3u;
	return hash;
}

/* Forget the oldest cgroup that is not of the state at the start, which has the time 0. */
static void forget_cgroup(struct sideband_table *table)
{
	const struct entry *at = NULL, *oldest = NULL;
	uint64_t oldest_ns = UINT64_MAX;

	while ((at = entries__next(&table->kept[KEPT_CGROUPS], at)) != NULL) {
		const struct blob *const record = ((const struct kept *)at)->record;
		const uint64_t time_ns =
			record != NULL ? walk__trailer_time(record->bytes, &table->layout) : 1;

		if (time_ns != 0 && time_ns < oldest_ns) {
			oldest = at;
			oldest_ns = time_ns;
		}
	}
	if (oldest == NULL)
		return;
	kept__forget(table, KEPT_CGROUPS, oldest->key);
	table->cgroup_count--;
}

/* Keep a cgroup. Of two of the same path the first one is gone, and so are its tasks: records are
 * applied in the order of time, when all older samples have been written. */
void kept__take_cgroup(struct sideband_table *table, const uint8_t *record)
{
	const uint64_t key = path_hash(table, record);
	const bool is_new = *entries__link(&table->kept[KEPT_CGROUPS], key) == NULL;

	if (is_new && table->cgroup_count >= SIDEBAND_CGROUPS_MAX) {
		forget_cgroup(table);
		if (table->cgroup_count >= SIDEBAND_CGROUPS_MAX) {
			counter__add(&table->dropped, 1);
			return;
		}
	}
	table->cgroup_count += keep(table, KEPT_CGROUPS, key, record, false) && is_new;
}

void kept__take_switch(struct sideband_table *table, const uint8_t *record)
{
	uint32_t cpu;

	if (walk__trailer_cpu(record, &table->layout, &cpu))
		keep(table, KEPT_SWITCHES, cpu, record, false);
}

/* Apply the state of one event on one CPU, or of the CPU alone if records do not name the event. */
void kept__take_event(struct sideband_table *table, const uint8_t *record)
{
	const uint64_t header = walk__load(record);
	uint64_t key;
	uint32_t cpu;

	if (!walk__trailer_cpu(record, &table->layout, &cpu))
		return;
	key = cpu;
	/* PERF_SAMPLE_IDENTIFIER, the last word, is numbered from 1 while the host runs. */
	if (table->layout.cpu_trailer > sizeof(uint64_t))
		key = walk__load(record + walk__size(header) - sizeof(uint64_t)) << 16 |
		      (cpu & UINT16_MAX);
	keep(table, walk__type(header) == PERF_RECORD_ITRACE_START ? KEPT_STARTS : KEPT_HARDWARE_IDS,
	     key, record, false);
}

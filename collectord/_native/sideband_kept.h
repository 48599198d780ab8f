/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

#include "sideband_entries.h"

struct blob;
struct sideband_table;

/* The least of KSYMBOL, BPF_EVENT and CGROUP. */
#define SYMBOL_BODY_BYTES 24u
#define PROGRAM_BODY_BYTES 16u
#define CGROUP_BODY_BYTES 17u

/* State of which only the last record counts. */
struct kept {
	struct entry entry;
	struct blob *record;
};

/* Keys: address, id, hash of the path, event and CPU (twice), and CPU. */
enum {
	KEPT_SYMBOLS,
	KEPT_PROGRAMS,
	KEPT_CGROUPS,
	KEPT_HARDWARE_IDS,
	KEPT_STARTS,
	KEPT_SWITCHES,
	KEPT_KINDS
};

/* No record tells that a cgroup is gone. One of the same path takes its place; beyond this number the
 * oldest one that was made since the start goes. */
#define SIDEBAND_CGROUPS_MAX 16384u

void kept__forget(struct sideband_table *table, uint32_t kind, uint64_t key);
void kept__take_symbol(struct sideband_table *table, const uint8_t *record);
void kept__take_program(struct sideband_table *table, const uint8_t *record);
void kept__take_cgroup(struct sideband_table *table, const uint8_t *record);
void kept__take_switch(struct sideband_table *table, const uint8_t *record);
void kept__take_event(struct sideband_table *table, const uint8_t *record);

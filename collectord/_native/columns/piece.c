/* SPDX-License-Identifier: Apache-2.0 */
#include "piece.h"

#include <errno.h>
#include <string.h>

static struct row *add_incident(struct piece *piece, uint64_t stamp_ns, int32_t cpu, uint32_t bytes)
{
	struct row *const row = rows__add(piece->rows);

	if (row != NULL)
		*row = (struct row){
			.payload = (const uint8_t *)&piece->incidents[piece->incident_count++],
			.bytes = bytes,
			.cpu = cpu,
			.pid = ROW_NONE,
			.tid = ROW_NONE,
			.stamp_ns = stamp_ns,
			.label = ROW_NONE,
		};
	return row;
}

static void add_cpu(struct cpu_set *set, int32_t cpu)
{
	const uint32_t number = (uint32_t)cpu;

	if (cpu < 0 || number >= CPU_WORDS * CPU_WORD_BITS)
		set->has_unknown = true;
	else
		set->word[number / CPU_WORD_BITS] |= UINT64_C(1) << number % CPU_WORD_BITS;
}

int piece__lost(struct piece *piece, const struct loss *loss)
{
	const size_t bytes = offsetof(struct incident, lost) + (loss->is_known ? 8 : 0);
	struct row *row;

	if (!piece__in_time(piece, loss->stamp_ns))
		return 0;
	if (!loss->is_known || loss->lost != 0)
		add_cpu(loss->label != ROW_NONE ? &piece->counts->cpus_in_all : &piece->counts->cpus,
			loss->cpu);
	if (loss->label != ROW_NONE)
		piece->counts->lost_in_all += loss->lost;
	else if (loss->is_known)
		piece->counts->lost += loss->lost;
	else
		piece->counts->lost_untold++;
	if (piece->wanted != WANT_LOSSES && piece->wanted != WANT_ALL)
		return 0;
	piece->incidents[piece->incident_count] =
		(struct incident){.offset = loss->offset, .lost = loss->lost};
	row = add_incident(piece, loss->stamp_ns, loss->cpu, (uint32_t)bytes);
	if (row == NULL)
		return -ENOMEM;
	row->label = piece->wanted == WANT_ALL && loss->label == ROW_NONE ? ROW_LOST : loss->label;
	return 0;
}

int piece__damaged(struct piece *piece, uint64_t at, uint64_t stamp_ns, const char *reason)
{
	struct incident *incident;
	struct row *row;

	/* A time of damage is no sure thing: damage counts whatever time is asked for. */
	piece->counts->damaged++;
	if (piece->wanted != WANT_DAMAGE && piece->wanted != WANT_ALL)
		return 0;
	incident = &piece->incidents[piece->incident_count];
	*incident = (struct incident){.offset = piece->offset + at};
	strncpy(incident->reason, reason, sizeof(incident->reason) - 1);
	row = add_incident(piece, stamp_ns, piece->cpu, sizeof(*incident));
	if (row == NULL)
		return -ENOMEM;
	row->label = ROW_DAMAGED;
	return 0;
}

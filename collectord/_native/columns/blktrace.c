/* SPDX-License-Identifier: Apache-2.0 */
#include "blktrace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "../walk.h"
#include "scan.h"

#define AT_SEQUENCE 4u
#define AT_TIME 8u
#define AT_BYTES 24u
#define AT_ACTION 28u
#define AT_PID 32u
#define AT_CPU 40u
#define AT_EXTRA 46u
#define CGROUP (1u << 8) /* of an action: the id of a cgroup is before the data */
#define CGROUP_BYTES 8u
#define WHAT_MASK 0xffffu
#define CLASS(bit) (1u << ((bit) + 16))
#define MINOR_BITS 20u

size_t blk__rwbs(const uint8_t *record, size_t bytes, char *letters)
{
	/* Letters and their order are those of blkparse's fill_rwbs(). */
	static const struct {
		uint32_t class;
		char letter;
	} behind[] = {{CLASS(15), 'F'}, {CLASS(11), 'A'}, {CLASS(3), 'S'}, {CLASS(12), 'M'}};
	size_t count = 0;
	uint32_t action;

	if (bytes < BLK_HEADER_BYTES)
		return 0;
	action = load32(record + AT_ACTION);
	if ((action & CLASS(2)) != 0)
		letters[count++] = 'F';
	if ((action & CLASS(13)) != 0)
		letters[count++] = 'D';
	else if ((action & CLASS(1)) != 0)
		letters[count++] = 'W';
	else
		letters[count++] = load32(record + AT_BYTES) != 0 ? 'R' : 'N';
	for (size_t i = 0; i < sizeof(behind) / sizeof(behind[0]); i++)
		if ((action & behind[i].class) != 0)
			letters[count++] = behind[i].letter;
	return count;
}

size_t device__text(uint32_t device, char *text)
{
	return (size_t)snprintf(text, DEVICE_TEXT_MAX, "%u:%u", device >> MINOR_BITS,
				device & ((1u << MINOR_BITS) - 1));
}

static int32_t key_of(uint32_t action)
{
	const uint32_t what = action & WHAT_MASK & ~CGROUP;

	return (int32_t)((what < BLK_WHAT_MAX ? what : BLK_WHAT_MAX) +
			 ((action & BLK_CLASS_NOTIFY) != 0 ? BLK_KEY_NOTE : 0));
}

/* Note what is missing before a numbered record: numbers are modulo 2^32. */
static int take_number(struct piece *piece, size_t at)
{
	const uint8_t *const record = piece->data + at;
	const uint32_t sequence = load32(record + AT_SEQUENCE);
	const uint32_t missing = sequence - piece->carry->sequence - 1;
	const bool is_gap = piece->carry->has_sequence && missing > 0 && missing <= UINT32_MAX / 2;

	/* A number that is not behind the last one begins a trace anew. */
	piece->carry->sequence = sequence;
	piece->carry->has_sequence = true;
	if (!is_gap)
		return 0;
	return piece__lost(piece, &(struct loss){
					  .offset = piece->offset + at,
					  .stamp_ns = walk__load(record + AT_TIME),
					  .lost = missing,
					  .cpu = piece->cpu,
					  .label = ROW_NONE,
					  .is_known = true,
				  });
}

static int take(struct piece *piece, size_t at, uint32_t bytes)
{
	const struct source *const source = piece->source;
	const uint8_t *const record = piece->data + at;
	const uint32_t action = load32(record + AT_ACTION);
	const bool is_note = (action & BLK_CLASS_NOTIFY) != 0;
	const uint64_t stamp_ns = walk__load(record + AT_TIME);
	uint32_t tail = BLK_HEADER_BYTES;
	struct row *row;
	int ret = is_note ? 0 : take_number(piece, at);

	if (ret < 0 || !piece__in_time(piece, stamp_ns) ||
	    (piece->wanted != WANT_ALL &&
	     (piece->wanted != WANT_EVENTS || is_note != (source->blk_rows == BLK_ROWS_NOTES))))
		return ret;
	if ((action & CGROUP) != 0 && bytes - tail >= CGROUP_BYTES)
		tail += CGROUP_BYTES;
	row = rows__add(piece->rows);
	if (row == NULL)
		return -ENOMEM;
	*row = (struct row){
		.payload = record,
		.bytes = bytes,
		.cpu = (int32_t)load32(record + AT_CPU),
		.pid = ROW_NONE,
		.tid = (int32_t)load32(record + AT_PID),
		.stamp_ns = stamp_ns,
		.loose = tail,
		.label = key_of(action),
	};
	return 0;
}

/* Returns where the next magic of a record is from `at` on, or the last bytes that may begin one. */
static size_t next_magic(const struct piece *piece, size_t at)
{
	while (piece->bytes - at >= sizeof(uint32_t) && load32(piece->data + at) != BLK_MAGIC)
		at++;
	return at;
}

static int find(struct piece *piece, uint64_t *used)
{
	size_t at = 0;
	int ret = 0;

	while (ret == 0) {
		uint32_t bytes;

		if (piece->carry->is_lost)
			at = next_magic(piece, at);
		if (piece->bytes - at < sizeof(uint32_t))
			break;
		if (load32(piece->data + at) != BLK_MAGIC) {
			ret = piece__damaged(piece, at, 0, fault_names[BLK_NO_MAGIC]);
			piece->carry->is_lost = true;
			at++;
			continue;
		}
		piece->carry->is_lost = false;
		/* At the end of a file it may be one that is being written. */
		if (piece->bytes - at < BLK_HEADER_BYTES)
			break;
		bytes = BLK_HEADER_BYTES + load16(piece->data + at + AT_EXTRA);
		if (bytes > piece->bytes - at)
			break;
		ret = take(piece, at, bytes);
		at += bytes;
	}
	*used = at;
	return ret;
}

const struct source_kind source_kind__blktrace = {.name = "blktrace", .find = find};

/* SPDX-License-Identifier: Apache-2.0 */
#include "fault.h"

const char *const fault_names[FAULTS] = {
	[FAULT_NONE] = "ok",
	[WALK_BAD_SIZE] = "bad_size",
	[WALK_BAD_TYPE] = "bad_type",
	[WALK_PAST_HEAD] = "past_head",
	[WALK_BAD_HEAD] = "bad_head",
	[SUBBUF_SHORT_HEADER] = "short_header",
	[SUBBUF_DATA_BEYOND_PAGE] = "data_beyond_page",
	[SUBBUF_SHORT_EVENT] = "short_event",
	[SUBBUF_BAD_LENGTH] = "bad_length",
	[SUBBUF_EVENT_BEYOND_DATA] = "event_beyond_data",
	[BLK_NO_MAGIC] = "no_blktrace_magic",
	[BLK_STALE] = "stale_blktrace_record",
	[BLK_OLD_MAGIC] = "foreign_blktrace_version",
};

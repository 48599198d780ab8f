/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Reasons why the contents of a ring or file are invalid. */
enum fault {
	FAULT_NONE,

	/* Faults of perf records. */
	WALK_BAD_SIZE,	/* below 8, or not a multiple of 8 */
	WALK_BAD_TYPE,	/* 0, or not a kernel type */
	WALK_PAST_HEAD, /* the record would end behind the head */
	WALK_BAD_HEAD,	/* more unread bytes than the ring holds, or not a multiple of 8 */

	/* Faults of ftrace's sub-buffers. */
	SUBBUF_SHORT_HEADER,	  /* fewer bytes than the page's header */
	SUBBUF_DATA_BEYOND_PAGE,  /* more data than the page has room for */
	SUBBUF_SHORT_EVENT,	  /* the data end within an event's header */
	SUBBUF_BAD_LENGTH,	  /* an event's length does not include the length itself */
	SUBBUF_EVENT_BEYOND_DATA, /* an event ends behind the data */

	/* Faults of blktrace records. */
	BLK_NO_MAGIC,  /* no record begins here */
	BLK_STALE,     /* an old record */
	BLK_OLD_MAGIC, /* another version or byte order */
	FAULTS
};

static const char *const fault_names[FAULTS] = {
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

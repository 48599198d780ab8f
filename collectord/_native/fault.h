/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_FAULT_H
#define COLLECTORD_FAULT_H

/* Why what a ring or a file holds was refused. */
enum fault {
	FAULT_NONE,

	/* Of perf records. */
	WALK_BAD_SIZE,	/* below 8, or not a multiple of 8 */
	WALK_BAD_TYPE,	/* 0, or no kernel type at all */
	WALK_PAST_HEAD, /* the record would end behind the head */
	WALK_BAD_HEAD,	/* more unread bytes than the ring holds, or no multiple of 8 */

	/* Of ftrace's sub-buffers. */
	SUBBUF_SHORT_HEADER,	  /* fewer bytes than the page's header has */
	SUBBUF_DATA_BEYOND_PAGE,  /* more data than the page has room for */
	SUBBUF_SHORT_EVENT,	  /* the data end within an event's header */
	SUBBUF_BAD_LENGTH,	  /* an event's length does not include the length itself */
	SUBBUF_EVENT_BEYOND_DATA, /* an event ends behind the data */

	/* Of blktrace's records. */
	BLK_NO_MAGIC,  /* no record begins here */
	BLK_STALE,     /* a record that came before */
	BLK_OLD_MAGIC, /* a record of another version, or of a machine of the other byte order */
	FAULTS
};

extern const char *const fault_names[FAULTS];

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Records of blktrace (include/uapi/linux/blktrace_api.h): a CPU's follow each other in a file, each
 * with its data behind it. */

/* The rows that a scan makes of them. */
enum blk_rows {
	BLK_ROWS_REQUESTS, /* numbered, each of a request */
	BLK_ROWS_NOTES,	   /* names of processes, times and messages */
};

/* The keys of rows are the low half of the action without the cgroup's flag, at most BLK_WHAT_MAX, and
 * for notes BLK_KEY_NOTE more. */
#define BLK_WHAT_MAX 31u
#define BLK_KEY_NOTE 32u

#define BLK_RWBS_MAX 8u
/* Set the letters that blkparse has for the kind of request, at most BLK_RWBS_MAX. Returns their number, 0
 * if the record is too short. */
size_t blk__rwbs(const uint8_t *record, size_t bytes, char *letters);

#define DEVICE_TEXT_MAX 24u
/* Set the text MAJOR:MINOR of a device as the kernel has it, at most DEVICE_TEXT_MAX characters. Returns
 * their number. */
size_t device__text(uint32_t device, char *text);

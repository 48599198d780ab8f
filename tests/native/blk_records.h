/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_BLK_RECORDS_H
#define COLLECTORD_TEST_BLK_RECORDS_H

#include <stdint.h>

/* Put a record of blktrace at `to`, with `extra` bytes behind its header; returns its size. Number
 * 0: a note. */
uint32_t blk_record__put(uint8_t *to, uint32_t sequence, uint64_t time_ns, uint16_t extra);

#endif

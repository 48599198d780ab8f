/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_DUMMY_EVENT_H
#define COLLECTORD_TEST_DUMMY_EVENT_H

#include <stdint.h>

/* A real perf event of this process that counts nothing, and is disabled. */
int dummy_event__open(void);
/* For how long it has been enabled in all. */
uint64_t dummy_event__enabled_ns(int fd);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "dummy_event.h"

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

uint64_t dummy_event__enabled_ns(int fd)
{
	uint64_t values[2];

	CHECK(read(fd, values, sizeof(values)) == sizeof(values));
	return values[1];
}

int dummy_event__open(void)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_DUMMY,
		.read_format = PERF_FORMAT_TOTAL_TIME_ENABLED,
		.disabled = 1,
		.exclude_kernel = 1,
		.exclude_hv = 1,
	};
	const int fd = (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);

	CHECK(fd >= 0);
	CHECK_EQ(dummy_event__enabled_ns(fd), 0);
	return fd;
}

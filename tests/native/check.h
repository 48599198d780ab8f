/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTORD_TEST_CHECK_H
#define COLLECTORD_TEST_CHECK_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* A failed check ends the program: ctest shows its last line, the sanitizers their stacks. */
#define CHECK(condition)                                                                \
	do {                                                                            \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                        \
		}                                                                       \
	} while (0)

#define CHECK_EQ(left, right) \
	check__eq(__FILE__, __LINE__, #left, (uint64_t)(left), (uint64_t)(right))

static inline void check__eq(const char *file, int line, const char *text, uint64_t left,
			     uint64_t right)
{
	if (left == right)
		return;
	fprintf(stderr, "%s:%d: %s is %" PRIu64 ", expected %" PRIu64 "\n", file, line, text, left,
		right);
	abort();
}

/* Run one test function; its name is its sentence. */
#define RUN(test)                               \
	do {                                    \
		fprintf(stderr, "%s\n", #test); \
		test();                         \
	} while (0)

/* xorshift64: the same bytes in every run. */
static inline uint64_t random__next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

#endif

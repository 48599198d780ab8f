/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>

static inline pthread_mutex_t *lock__begin(pthread_mutex_t *lock)
{
	pthread_mutex_lock(lock);
	return lock;
}

static inline void lock__end(pthread_mutex_t *const *lock)
{
	pthread_mutex_unlock(*lock);
}

/* Hold a lock to the end of the block, wherever that is left. */
#define HOLD(lock) \
	pthread_mutex_t *const held_ __attribute__((cleanup(lock__end), unused)) = lock__begin(lock)

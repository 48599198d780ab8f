/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

/* Relaxed: it orders nothing else. */
#define load_relaxed(object) atomic_load_explicit(object, memory_order_relaxed)
#define store_relaxed(object, value) atomic_store_explicit(object, value, memory_order_relaxed)
#define load_acquire(object) atomic_load_explicit(object, memory_order_acquire)
#define store_release(object, value) atomic_store_explicit(object, value, memory_order_release)

/* A counter has one writing thread and any number of readers. A relaxed load and store costs as
 * much as a plain addition; readers see a recent value, never a torn one. */
typedef _Atomic uint64_t counter_t;

#define counter__read(counter) load_relaxed(counter)
#define counter__set(counter, value) store_relaxed(counter, value)

static inline void counter__add(counter_t *counter, uint64_t n)
{
	counter__set(counter, counter__read(counter) + n);
}

static inline void counter__sub(counter_t *counter, uint64_t n)
{
	counter__set(counter, counter__read(counter) - n);
}

static inline void counter__max(counter_t *counter, uint64_t value)
{
	if (value > counter__read(counter))
		counter__set(counter, value);
}

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

/* Start a thread, which inherits the mask: signals are the controlling thread's. */
static inline int thread__start(pthread_t *thread, void *(*run)(void *context), void *context)
{
	sigset_t all, before;
	int ret;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	ret = -pthread_create(thread, NULL, run, context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return ret;
}

/* CLOCK_MONOTONIC in ns: the clock that the rings' records carry (attr.clockid). */
static inline uint64_t clock__now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

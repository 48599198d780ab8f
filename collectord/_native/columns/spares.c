/* SPDX-License-Identifier: Apache-2.0 */
#include "spares.h"

#include <pthread.h>
#include <stdlib.h>

struct spares {
	pthread_mutex_t lock;
	size_t holders, count;
	struct store slot[];
};

struct spares *spares__new(size_t columns)
{
	const size_t count = SPARES_EACH * columns;
	struct spares *const spares = calloc(1, sizeof(*spares) + count * sizeof(spares->slot[0]));

	if (spares == NULL)
		return NULL;
	if (pthread_mutex_init(&spares->lock, NULL) != 0) {
		free(spares);
		return NULL;
	}
	spares->holders = 1;
	spares->count = count;
	return spares;
}

struct spares *spares__hold(struct spares *spares)
{
	pthread_mutex_lock(&spares->lock);
	spares->holders++;
	pthread_mutex_unlock(&spares->lock);
	return spares;
}

void spares__drop(struct spares *spares)
{
	size_t holders;

	pthread_mutex_lock(&spares->lock);
	holders = --spares->holders;
	pthread_mutex_unlock(&spares->lock);
	if (holders > 0)
		return;
	for (size_t i = 0; i < spares->count; i++)
		free(spares->slot[i].data);
	pthread_mutex_destroy(&spares->lock);
	free(spares);
}

void spares__take(struct spares *spares, size_t slot, struct store *store)
{
	pthread_mutex_lock(&spares->lock);
	*store = spares->slot[slot];
	spares->slot[slot] = (struct store){0};
	pthread_mutex_unlock(&spares->lock);
}

void spares__put(struct spares *spares, size_t slot, struct store store)
{
	pthread_mutex_lock(&spares->lock);
	if (spares->slot[slot].data == NULL) {
		spares->slot[slot] = (struct store){.data = store.data, .room = store.room};
		store.data = NULL;
	}
	pthread_mutex_unlock(&spares->lock);
	free(store.data);
}

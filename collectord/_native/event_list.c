/* SPDX-License-Identifier: Apache-2.0 */
#include "event_list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

int event_list__init(struct event_list *list)
{
	memset(list, 0, sizeof(*list));
	list->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (list->fd < 0)
		return -errno;
	pthread_mutex_init(&list->lock, NULL);
	list->last = &list->first;
	return 0;
}

void event_list__deinit(struct event_list *list)
{
	struct event *event;

	if (list->last == NULL)
		return;
	while ((event = event_list__pop(list)) != NULL)
		event__free(event);
	close(list->fd);
	pthread_mutex_destroy(&list->lock);
	memset(list, 0, sizeof(*list));
}

struct event *event__new(enum event_kind kind, uint32_t stream, uint32_t ring_count)
{
	struct event *event = calloc(1, sizeof(*event) + ring_count * sizeof(struct event_ring));

	if (event != NULL)
		*event = (struct event){.kind = kind, .stream = stream, .ring_count = ring_count};
	return event;
}

void event__free(struct event *event)
{
	if (event == NULL)
		return;
	for (uint32_t i = 0; i < event->ring_count; i++)
		free(event->rings[i].sums);
	free(event->sums);
	segment__forget(&event->segment);
	free(event);
}

void event_list__push(struct event_list *list, struct event *event)
{
	if (event == NULL)
		return;
	HOLD(&list->lock);
	*list->last = event;
	list->last = &event->next;
	event_list__poke(list);
}

struct event *event_list__pop(struct event_list *list)
{
	struct event *event;

	HOLD(&list->lock);
	event = list->first;
	if (event != NULL)
		list->first = event->next;
	if (list->first == NULL)
		list->last = &list->first;
	return event;
}

void event_list__poke(struct event_list *list)
{
	/* EAGAIN: the counter is at its maximum, so the fd is readable anyway. */
	(void)eventfd_write(list->fd, 1);
}

/* queue.c - mutex and condition; waits are always for a state, never for a time. */
#include "queue.h"

void list_init(struct list *list)
{
	list->first = NULL;
	list->last = NULL;
}

void list_push(struct list *list, struct link *item)
{
	item->next = NULL;
	if (list->first)
		*list->last = item;
	else
		list->first = item;
	list->last = &item->next;
}

struct link *list_pop(struct list *list)
{
	struct link *item = list->first;

	if (item)
		list->first = item->next;
	return item;
}

void queue_init(struct queue *queue)
{
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->not_empty, NULL);
	list_init(&queue->items);
	queue->closed = false;
}

void queue_destroy(struct queue *queue)
{
	pthread_cond_destroy(&queue->not_empty);
	pthread_mutex_destroy(&queue->lock);
}

void queue_push(struct queue *queue, struct link *item, void (*queued)(struct link *item))
{
	pthread_mutex_lock(&queue->lock);
	list_push(&queue->items, item);
	if (queued)
		queued(item);
	pthread_cond_signal(&queue->not_empty);
	pthread_mutex_unlock(&queue->lock);
}

static void wait_for_item(struct queue *queue)
{
	while (!queue->items.first && !queue->closed)
		pthread_cond_wait(&queue->not_empty, &queue->lock);
}

struct link *queue_pop(struct queue *queue)
{
	struct link *item;

	pthread_mutex_lock(&queue->lock);
	wait_for_item(queue);
	item = list_pop(&queue->items);
	pthread_mutex_unlock(&queue->lock);
	return item;
}

struct list queue_pop_all(struct queue *queue)
{
	struct list all;

	pthread_mutex_lock(&queue->lock);
	wait_for_item(queue);
	all = queue->items;
	list_init(&queue->items);
	pthread_mutex_unlock(&queue->lock);
	return all;
}

void queue_close(struct queue *queue)
{
	pthread_mutex_lock(&queue->lock);
	queue->closed = true;
	pthread_cond_broadcast(&queue->not_empty);
	pthread_mutex_unlock(&queue->lock);
}

/* queue.h - a first-in first-out queue between threads; the links are embedded in its items. */
#ifndef OBJSTORE_QUEUE_H
#define OBJSTORE_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct link {
	struct link *next;
};

#define ITEM_OF(link_ptr, type, member) ((type *)(void *)((char *)(link_ptr) - offsetof(type, member)))

/* A plain list, for one thread or under the caller's lock. */
struct list {
	struct link *first;
	struct link **last;
};

void list_init(struct list *list);
void list_push(struct list *list, struct link *item);
struct link *list_pop(struct list *list);

struct queue {
	pthread_mutex_t lock;
	pthread_cond_t not_empty;
	struct list items;
	bool closed;
};

void queue_init(struct queue *queue);
void queue_destroy(struct queue *queue);

/*
 * Appends item. `queued`, unless NULL, runs once the item is in the queue and before any thread can take it:
 * the place for an annotation that must come before those of the thread that takes the item.
 */
void queue_push(struct queue *queue, struct link *item, void (*queued)(struct link *item));

/* Waits for an item; NULL once the queue is closed and empty. */
struct link *queue_pop(struct queue *queue);

/* Waits for at least one item, then takes all items, in order; an empty list once the queue is closed and empty. */
struct list queue_pop_all(struct queue *queue);

/* Ends all waits: queue_pop() returns the items that are left, and then NULL. */
void queue_close(struct queue *queue);

#endif

// base/queue.h - a bounded queue of pointers between threads. Any thread may push or pop.
#ifndef LOAM_BASE_QUEUE_H
#define LOAM_BASE_QUEUE_H
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct queue;

// Room for `capacity` items (> 0). NULL when out of memory.
struct queue *queue_create(uint32_t capacity, struct err *err);
void queue_destroy(struct queue *queue); // items still inside are the caller's loss

// False if the queue is full or closed: the caller says BUSY, the list never grows.
bool queue_push(struct queue *queue, void *item);
// The oldest item, or NULL if there is none.
void *queue_try_pop(struct queue *queue);
// Wait up to timeout_ms (UINT32_MAX: for ever). NULL on timeout, or when closed and empty.
void *queue_pop(struct queue *queue, uint32_t timeout_ms);
// No more pushes; waiters wake.
void queue_close(struct queue *queue);
uint32_t queue_n(struct queue *queue);
#endif

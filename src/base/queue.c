#include "base/queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct queue {
    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t not_empty;
    bool closed;
    uint32_t head, n, capacity;
    void *items[];
};

struct queue *queue_create(uint32_t capacity, struct err *err) {
    struct queue *queue = calloc(1, sizeof *queue + (size_t)capacity * sizeof(void *));
    if (!queue) {
        err_set(err, ERR_NOMEM, "out of memory for a queue of %u", capacity);
        return NULL;
    }
    queue->capacity = capacity;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&queue->not_empty, &attr);
    pthread_condattr_destroy(&attr);
    return queue;
}

void queue_destroy(struct queue *queue) {
    if (!queue)
        return;
    pthread_cond_destroy(&queue->not_empty);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

bool queue_push(struct queue *queue, void *item) {
    pthread_mutex_lock(&queue->lock);
    bool room = !queue->closed && queue->n < queue->capacity;
    if (room) {
        queue->items[(queue->head + queue->n) % queue->capacity] = item;
        queue->n++;
        pthread_cond_signal(&queue->not_empty);
    }
    pthread_mutex_unlock(&queue->lock);
    return room;
}

static void *pop_locked(struct queue *queue) {
    if (queue->n == 0)
        return NULL;
    void *item = queue->items[queue->head];
    queue->head = (queue->head + 1) % queue->capacity;
    queue->n--;
    return item;
}

void *queue_try_pop(struct queue *queue) {
    pthread_mutex_lock(&queue->lock);
    void *item = pop_locked(queue);
    pthread_mutex_unlock(&queue->lock);
    return item;
}

void *queue_pop(struct queue *queue, uint32_t timeout_ms) {
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += timeout_ms / 1000;
    deadline.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_sec++;
        deadline.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&queue->lock);
    while (queue->n == 0 && !queue->closed) {
        int rc = timeout_ms == UINT32_MAX
                     ? pthread_cond_wait(&queue->not_empty, &queue->lock)
                     : pthread_cond_timedwait(&queue->not_empty, &queue->lock, &deadline);
        if (rc == ETIMEDOUT)
            break;
    }
    void *item = pop_locked(queue);
    pthread_mutex_unlock(&queue->lock);
    return item;
}

void queue_close(struct queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->closed = true;
    pthread_cond_broadcast(&queue->not_empty);
    pthread_mutex_unlock(&queue->lock);
}

uint32_t queue_n(struct queue *queue) {
    pthread_mutex_lock(&queue->lock);
    uint32_t n = queue->n;
    pthread_mutex_unlock(&queue->lock);
    return n;
}

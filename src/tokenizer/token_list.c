#include <stdlib.h>

#include "tokenizer/tokenizer.h"

void token_list_deinit(struct token_list *list) {
    free(list->ids);
    *list = (struct token_list){0};
}

void token_list_clear(struct token_list *list) {
    list->n = 0;
    list->failed = false;
}

void token_list_append(struct token_list *list, token_id id) {
    if (list->n == list->capacity) {
        size_t want = list->capacity ? 2 * list->capacity : 64;
        token_id *grown = list->failed || want > SIZE_MAX / sizeof *grown
                              ? NULL
                              : realloc(list->ids, want * sizeof *grown);
        if (!grown) {
            list->failed = true;
            return;
        }
        list->ids = grown;
        list->capacity = want;
    }
    list->ids[list->n++] = id;
}

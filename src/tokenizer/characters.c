#include "tokenizer/characters.h"

uint32_t char_lower(uint32_t c) {
    uint32_t low = 0, high = CHARACTER_N_LOWER;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (CHARACTER_LOWER[mid].from < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low < CHARACTER_N_LOWER && CHARACTER_LOWER[low].from == c ? CHARACTER_LOWER[low].to : c;
}

uint32_t char_script(uint32_t c) {
    uint32_t low = 0, high = CHARACTER_N_SCRIPTS;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (CHARACTER_SCRIPTS[mid].to < c)
            low = mid + 1;
        else
            high = mid;
    }
    bool found = low < CHARACTER_N_SCRIPTS && CHARACTER_SCRIPTS[low].from <= c;
    return found ? CHARACTER_SCRIPTS[low].script : 0;
}

// Brings rows into the cache while something else is computed, one row every few steps of the products: more at
// once would wait for one another, and the products for them. Heads that lie side by side, and tiles of a
// matrix, are short runs of memory, which the hardware does not foresee.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

namespace {

constexpr ptrdiff_t LINE = 64;      // bytes
constexpr ptrdiff_t ARRIVAL = 768;  // vector multiplications in the time that memory takes to answer

// A first-level cache of 48 KiB holds a short head beside the tiles in use, and in the second level some page
// layouts lose a part of it (up to 30 % at N = 16); elsewhere the first level cost a third.
bool has_large_first_level() {
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    return sysconf(_SC_LEVEL1_DCACHE_SIZE) >= 48 * 1024;
#else
    return false;
#endif
}
const bool INTO_FIRST_LEVEL = has_large_first_level();

void prefetch_line(const char *line) {
    if (INTO_FIRST_LEVEL)
        __builtin_prefetch(line, 0, 3);
    else
        __builtin_prefetch(line, 0, 2);
}

class Ahead {
    struct Part {
        const char *data;
        ptrdiff_t row, rows, width;  // in bytes, but for rows
    };
    Part parts[8];
    int count = 0, current = 0;
    ptrdiff_t rows = 0, work_per_row = PTRDIFF_MAX, credit = 0;

  public:
    template <typename T> void plan(const T *data, ptrdiff_t row, ptrdiff_t rows_of_part, ptrdiff_t width) {
        for (; row == width && rows_of_part % 2 == 0 && width * (ptrdiff_t)sizeof(T) <= 2 * LINE; rows_of_part /= 2)
            row *= 2, width *= 2;  // short rows that adjoin
        if (rows_of_part == 0) return;
        parts[count++] = {(const char *)data, row * (ptrdiff_t)sizeof(T), rows_of_part, width * (ptrdiff_t)sizeof(T)};
        rows += rows_of_part;
    }

    // All rows are spread over this much work, the last of them early enough to arrive within it.
    void divide(ptrdiff_t work) {
        ptrdiff_t before = work > 2 * ARRIVAL ? work - ARRIVAL : work / 2;
        if (rows > 0) work_per_row = before / rows + 1;
    }

    Ahead &or_else(Ahead &other) { return count > 0 ? *this : other; }

    void step(ptrdiff_t work) {
        for (credit += work; credit >= work_per_row && current < count; credit -= work_per_row) {
            Part &part = parts[current];
            for (ptrdiff_t c = 0; c < part.width; c += LINE) prefetch_line(part.data + c);
            part.data += part.row;
            current += --part.rows == 0;
        }
    }
};

}  // namespace

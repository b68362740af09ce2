// What attention works on: a step's segments, and the items that they are cut in.

#pragma once

#include <vector>

#include "vectors.h"

namespace {

// Of one segment, as `RowAttention` lays it out: its tokens, its KV rows, and what of them its tokens see.
struct Segment {
  int64_t start, length;        // tokens of the step
  int64_t kv_start, kv_length;  // rows they may see, their own included
  const uint8_t* mask;          // [length, columns]: of the last `columns` rows. Null: causal
  int64_t columns;
};

struct Shape {
  int64_t heads, kv_heads, dim, query_stride, window;  // window: 0: all
  const int64_t* positions;
  float scaling;
};

constexpr int64_t kChunk = 512;    // rows of an item: long contexts are shared among threads
constexpr int64_t kQueries = 64;   // of an item, about: what it works in stays in cache
constexpr int64_t kLine = 64;      // bytes that come together
constexpr int64_t kBundle = 8;     // heads that a thread takes at once, at most
constexpr int64_t kAheadBlocks = 2;  // of 16 rows, asked for before they are read
constexpr float kNothing = -1e30f;  // a score that is not seen; finite, so that differences are numbers

struct Item {
  const Segment* segment;
  int64_t head, first, count;  // KV head; tokens
  int64_t row, rows;
  int64_t partial;  // where [queries, 2 + padded dim] lie: largest score, sum, weighted values. -1: in the output
};

// Asks for what 16 rows from `row` on hold for a bundle's heads.
template <typename T>
inline void fetch_rows(const Item* items, int64_t count, const Shape& shape, const T* from, int64_t row, int64_t end) {
  for (const int64_t stop = row + kLanes < end ? row + kLanes : end; row < stop; ++row) {
    const T* own = from + ((items->segment->kv_start + row) * shape.kv_heads + items->head) * shape.dim;
    for (int64_t i = 0; i < count * shape.dim; i += kLine / (int64_t)sizeof(T)) __builtin_prefetch(own + i);
  }
}

// What a thread works in, kept from call to call.
struct Room {
  std::vector<float> floats;
  std::vector<Ints> lanes;
};

}  // namespace

// Attention in float32, of rows in either format and heads of any size.

#pragma once

#include "attention_items.h"

namespace {

// Which of `count` rows from `row` on a token sees, -1 in each lane.
inline Ints seen(const Segment& segment, const Shape& shape, int64_t token, int64_t row, int64_t count) {
  const int64_t plain = segment.mask ? segment.kv_length - segment.columns
                                     : segment.kv_length - segment.length + token + 1;
  const int64_t from = shape.window ? shape.positions[segment.start + token] - shape.window + 1 : 0;
  if (row + count <= plain && row >= from && count == kLanes) return ~Ints{};
  Ints lanes{};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = row + i;
    bool visible = at < plain || (segment.mask && segment.mask[token * segment.columns + at - plain]);
    lanes[i] = visible && at >= from ? -1 : 0;
  }
  return lanes;
}

// What an item's queries have come to so far, [queries] or [queries, padded dim] each.
struct Running {
  float *query, *values, *most, *total;
};

// 16 rows for Q queries from the n-th on. D: vectors of a head; lanes: which rows each query sees.
template <typename T, int D, int Q>
inline void attend_block(const Running& run, int64_t n, const T* const* keys, const T* const* values,
                         const Ints* lanes) {
  constexpr int64_t width = D * kLanes;
  const float* query = run.query + n * width;
  float* sums_of = run.values + n * width;
  Floats products[Q][kLanes];
  for (int r = 0; r < kLanes; ++r) {
    Floats key[D];
    for (int d = 0; d < D; ++d) key[d] = load(keys[r] + d * kLanes);
    for (int i = 0; i < Q; ++i) {
      Floats x = load(query + i * width) * key[0];
      for (int d = 1; d < D; ++d) x += load(query + i * width + d * kLanes) * key[d];
      products[i][r] = x;
    }
  }
  float weights[Q][kLanes];
  Floats x[Q][D];
  for (int i = 0; i < Q; ++i) {
    const Floats scores = lanes[i] ? sums(products[i]) : all(kNothing);
    const float highest = largest(scores);
    for (int d = 0; d < D; ++d) x[i][d] = load(sums_of + i * width + d * kLanes);
    if (highest > run.most[n + i]) {
      const float fade = exponential(all(run.most[n + i] - highest))[0];
      for (int d = 0; d < D; ++d) x[i][d] *= fade;
      run.total[n + i] *= fade;
      run.most[n + i] = highest;
    }
    // A row that is not seen weighs nothing even where none is: its score is no lower than `most` then.
    const Floats own = lanes[i] ? exponential(scores - run.most[n + i]) : Floats{};
    run.total[n + i] += sum(own);
    store(weights[i], own);
  }
  for (int r = 0; r < kLanes; ++r) {
    Floats value[D];
    for (int d = 0; d < D; ++d) value[d] = load(values[r] + d * kLanes);
    for (int i = 0; i < Q; ++i)
      for (int d = 0; d < D; ++d) x[i][d] += weights[i][r] * value[d];
  }
  for (int i = 0; i < Q; ++i)
    for (int d = 0; d < D; ++d) store(sums_of + i * width + d * kLanes, x[i][d]);
}

// As many queries at a time as registers hold.
template <typename T, int D>
inline void attend_blocks(const Running& run, int64_t queries, const T* const* keys, const T* const* values,
                          const Ints* lanes) {
  constexpr int most = D <= 4 ? 4 : D <= 8 ? 2 : 1;
  int64_t n = 0;
  for (; n + most <= queries; n += most) attend_block<T, D, most>(run, n, keys, values, lanes + n);
  if constexpr (most > 2)
    if (queries - n == 3) attend_block<T, D, 3>(run, n, keys, values, lanes + n), n += 3;
  if constexpr (most > 2)
    if (queries - n == 2) attend_block<T, D, 2>(run, n, keys, values, lanes + n), n += 2;
  if (queries - n == 1) attend_block<T, D, 1>(run, n, keys, values, lanes + n);
}

// An item on its way through its rows, 16 at a time. `memory`: `floats` of them, `lanes`: one for each query.
template <typename T, int D>
class ItemRun {
 public:
  static int64_t queries_of(const Item& item, const Shape& shape) {
    return item.count * (shape.heads / shape.kv_heads);
  }

  static int64_t floats(const Item& item, const Shape& shape) {
    return queries_of(item, shape) * (2 * kWidth + 2) + 2 * kLanes * kWidth;
  }

  ItemRun(const Item& item, const Shape& shape, const T* query, float* memory, Ints* lanes)
      : item_(item), shape_(shape), segment_(*item.segment), groups_(shape.heads / shape.kv_heads),
        queries_(queries_of(item, shape)), tail_(shape.dim - (D - 1) * kLanes), lanes_(lanes) {
    // Few queries read rows where they are; for many, or if heads are no whole vectors, they are widened once.
    widened_ = queries_ > 4 || tail_ != kLanes;
    run_.query = memory;
    run_.values = run_.query + queries_ * kWidth;
    run_.most = run_.values + queries_ * kWidth;
    run_.total = run_.most + queries_;
    wide_ = run_.total + queries_;
    for (int64_t n = 0; n < queries_; ++n) {
      const T* from = query + token(n) * shape.query_stride + head(n) * shape.dim;
      for (int d = 0; d < D; ++d) {
        Floats x = is_whole(d) ? load(from + d * kLanes) : load_some(from + d * kLanes, tail_);
        store(run_.query + n * kWidth + d * kLanes, x * shape.scaling);
        store(run_.values + n * kWidth + d * kLanes, Floats{});
      }
      run_.most[n] = kNothing;
      run_.total[n] = 0;
    }
  }

  // Up to 16 of its rows from `row` on.
  void advance(int64_t row, const T* keys, const T* values) {
    const int64_t end = item_.row + item_.rows, count = end - row < kLanes ? end - row : kLanes;
    for (int64_t n = 0; n < queries_; ++n)
      lanes_[n] = n % groups_ ? lanes_[n - 1] : seen(segment_, shape_, item_.first + n / groups_, row, count);
    const T *key[kLanes], *value[kLanes];
    for (int64_t r = 0; r < kLanes; ++r) {
      const int64_t at = segment_.kv_start + row + (r < count ? r : count - 1);
      key[r] = keys + (at * shape_.kv_heads + item_.head) * shape_.dim;
      value[r] = values + (at * shape_.kv_heads + item_.head) * shape_.dim;
    }
    if (!widened_) return attend_blocks<T, D>(run_, queries_, key, value, lanes_);
    const float *wide_key[kLanes], *wide_value[kLanes];
    for (int64_t r = 0; r < kLanes; ++r) {
      wide_key[r] = widen(wide_ + r * kWidth, key[r]);
      wide_value[r] = widen(wide_ + (kLanes + r) * kWidth, value[r]);
    }
    attend_blocks<float, D>(run_, queries_, wide_key, wide_value, lanes_);
  }

  void finish(T* out, float* partial) const {
    for (int64_t n = 0; n < queries_; ++n) {
      if (item_.partial >= 0) {
        float* to = partial + item_.partial + n * (2 + kWidth);
        to[0] = run_.most[n];
        to[1] = run_.total[n];
        std::memcpy(to + 2, run_.values + n * kWidth, kWidth * sizeof(float));
        continue;
      }
      T* to = out + (token(n) * shape_.heads + head(n)) * shape_.dim;
      for (int d = 0; d < D; ++d) {
        Floats x = load(run_.values + n * kWidth + d * kLanes) / run_.total[n];
        if (is_whole(d)) store(to + d * kLanes, x);
        else store_some(to + d * kLanes, x, tail_);
      }
    }
  }

 private:
  static constexpr int64_t kWidth = D * kLanes;

  int64_t token(int64_t n) const { return segment_.start + item_.first + n / groups_; }
  int64_t head(int64_t n) const { return item_.head * groups_ + n % groups_; }
  bool is_whole(int d) const { return d + 1 < D || tail_ == kLanes; }

  const float* widen(float* to, const T* from) const {
    for (int d = 0; d < D; ++d)
      store(to + d * kLanes, is_whole(d) ? load(from + d * kLanes) : load_some(from + d * kLanes, tail_));
    return to;
  }

  const Item& item_;
  const Shape& shape_;
  const Segment& segment_;
  int64_t groups_, queries_, tail_;  // tail: numbers in a head's last vector
  Ints* lanes_;
  bool widened_;
  Running run_;
  float* wide_;
};

// Items of the same rows and tokens, one for each head of a bundle, side by side: the heads of a row lie together,
// and what is read in order comes quicker from memory.
template <typename T, int D>
void attend_bundle(const Item* items, int64_t count, const Shape& shape, const T* query, const T* keys,
                   const T* values, T* out, float* partial, Room& room) {
  using Run = ItemRun<T, D>;
  const int64_t floats = Run::floats(*items, shape), queries = Run::queries_of(*items, shape);
  room.floats.resize(count * floats);
  room.lanes.resize(count * queries);
  std::vector<Run> runs;
  runs.reserve(count);
  for (int64_t i = 0; i < count; ++i)
    runs.emplace_back(items[i], shape, query, room.floats.data() + i * floats, room.lanes.data() + i * queries);
  const int64_t begin = items->row, end = begin + items->rows;
  const auto fetch = [&](int64_t row) {
    fetch_rows(items, count, shape, keys, row, end);
    fetch_rows(items, count, shape, values, row, end);
  };
  for (int64_t i = 0; i < kAheadBlocks; ++i) fetch(begin + i * kLanes);
  for (int64_t row = begin; row < end; row += kLanes) {
    fetch(row + kAheadBlocks * kLanes);
    for (Run& run : runs) run.advance(row, keys, values);
  }
  for (const Run& run : runs) run.finish(out, partial);
}

}  // namespace

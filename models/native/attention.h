// Attention over the KV memory's rows where they lie, of all requests of a step in one call.

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
                   const T* values, T* out, float* partial, std::vector<float>& memory, std::vector<Ints>& lanes) {
  using Run = ItemRun<T, D>;
  const int64_t floats = Run::floats(*items, shape), queries = Run::queries_of(*items, shape);
  memory.resize(count * floats);
  lanes.resize(count * queries);
  std::vector<Run> runs;
  runs.reserve(count);
  for (int64_t i = 0; i < count; ++i)
    runs.emplace_back(items[i], shape, query, memory.data() + i * floats, lanes.data() + i * queries);
  const int64_t begin = items->row, end = begin + items->rows;
  const int64_t row_size = shape.kv_heads * shape.dim, bundle_size = count * shape.dim;
  const auto fetch = [&](int64_t row) {
    for (const int64_t stop = row + kLanes < end ? row + kLanes : end; row < stop; ++row) {
      const int64_t at = (items->segment->kv_start + row) * row_size + items->head * shape.dim;
      for (int64_t i = 0; i < bundle_size; i += kLine / (int64_t)sizeof(T)) {
        __builtin_prefetch(keys + at + i);
        __builtin_prefetch(values + at + i);
      }
    }
  };
  for (int64_t i = 0; i < kAheadBlocks; ++i) fetch(begin + i * kLanes);
  for (int64_t row = begin; row < end; row += kLanes) {
    fetch(row + kAheadBlocks * kLanes);
    for (Run& run : runs) run.advance(row, keys, values);
  }
  for (const Run& run : runs) run.finish(out, partial);
}

// Chunks of a long context, in order, whoever made them when: the sum does not depend on threads.
template <typename T>
void join(const Item& item, const float* partial, int64_t chunks, int64_t width, const Shape& shape, T* out) {
  const int64_t groups = shape.heads / shape.kv_heads, queries = item.count * groups, dim = shape.dim;
  const int64_t stride = 2 + width;
  for (int64_t n = 0; n < queries; ++n) {
    const float* parts = partial + item.partial + n * stride;
    float most = kNothing, total = 0;
    for (int64_t c = 0; c < chunks; ++c) {
      const float own = parts[c * queries * stride];
      most = own > most ? own : most;
    }
    float sum_of[kLanes * kLanes] = {};
    for (int64_t c = 0; c < chunks; ++c) {
      const float* part = parts + c * queries * stride;
      const float share = exponential(all(part[0] - most))[0];
      total += part[1] * share;
      for (int64_t d = 0; d < width; d += kLanes) store(sum_of + d, load(sum_of + d) + load(part + 2 + d) * share);
    }
    const int64_t token = item.segment->start + item.first + n / groups, head = item.head * groups + n % groups;
    T* to = out + (token * shape.heads + head) * dim;
    for (int64_t d = 0; d < dim; d += kLanes) {
      const int64_t count = dim - d < kLanes ? dim - d : kLanes;
      store_some(to + d, load(sum_of + d) / total, count);
    }
  }
}

inline int64_t first_in_window(const Segment& segment, const Shape& shape, int64_t first, int64_t count) {
  if (!shape.window) return 0;
  int64_t least = INT64_MAX;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = shape.positions[segment.start + first + i];
    least = position < least ? position : least;
  }
  return least - shape.window + 1 > 0 ? least - shape.window + 1 : 0;
}

// What is to be attended, in items that threads take one by one.
struct AttentionPlan {
  std::vector<Item> items, joined;  // joined: made of several items each, `chunks_of` of them
  std::vector<int64_t> chunks_of;
  std::vector<float> partial;
  int64_t bundle = 1;           // items that a thread takes at once
  int64_t width = 0, work = 0;
};

inline AttentionPlan plan_attention(const Segment* segments, int64_t count, const Shape& shape, int threads) {
  AttentionPlan plan;
  const int64_t groups = shape.heads / shape.kv_heads, most = kQueries / groups > 0 ? kQueries / groups : 1;
  plan.width = whole(shape.dim, kLanes) * kLanes;
  int64_t memory = 0;
  plan.items.reserve(count * shape.kv_heads);
  // Heads apart where that keeps more threads busy.
  if (count >= 2 * threads && shape.kv_heads <= kBundle) plan.bundle = shape.kv_heads;
  for (int64_t s = 0; s < count; ++s) {
    const Segment& segment = segments[s];
    // A tree by itself is cut in as many items as keep all threads busy to the end.
    const int64_t share = whole(segment.length * shape.kv_heads * count, 4 * threads);
    const int64_t tokens = segment.mask && share < most ? share : most;  // of a mask's tokens all have the same rows
    plan.work += segment.length * shape.heads * segment.kv_length * shape.dim;
    for (int64_t first = 0; first < segment.length; first += tokens) {
      const int64_t own = segment.length - first < tokens ? segment.length - first : tokens;
      // Rows that any of these tokens sees: up to the last of them, and from the first window on.
      const int64_t end = segment.mask ? segment.kv_length : segment.kv_length - segment.length + first + own;
      const int64_t begin = first_in_window(segment, shape, first, own) / kLanes * kLanes;
      const int64_t before = begin / kChunk, chunks = end - begin > kChunk ? whole(end, kChunk) - before : 1;
      const int64_t size = own * groups * (2 + plan.width);
      for (int64_t c = 0; c < chunks; ++c) {
        const int64_t row = c ? (before + c) * kChunk : begin;
        const int64_t stop = c + 1 < chunks ? (before + c + 1) * kChunk : end;
        for (int64_t head = 0; head < shape.kv_heads; ++head)
          plan.items.push_back(
              {&segment, head, first, own, row, stop - row, chunks > 1 ? memory + (head * chunks + c) * size : -1});
      }
      if (chunks == 1) continue;
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        plan.joined.push_back({&segment, head, first, own, 0, 0, memory + head * chunks * size});
        plan.chunks_of.push_back(chunks);
      }
      memory += shape.kv_heads * chunks * size;
    }
  }
  plan.partial.resize(memory);
  return plan;
}

template <typename T>
using AttendBundle = void (*)(const Item*, int64_t, const Shape&, const T*, const T*, const T*, T*, float*,
                              std::vector<float>&, std::vector<Ints>&);

// Null for a size of head that is not built.
template <typename T>
AttendBundle<T> attend_bundle_for(int64_t dim) {
  switch (whole(dim, kLanes)) {
    case 1: return attend_bundle<T, 1>;
    case 2: return attend_bundle<T, 2>;
    case 4: return attend_bundle<T, 4>;
    case 5: return attend_bundle<T, 5>;
    case 6: return attend_bundle<T, 6>;
    case 8: return attend_bundle<T, 8>;
    case 16: return attend_bundle<T, 16>;
    default: return nullptr;
  }
}

// Shared among the threads of the region that it is called in, all of which must call it.
template <typename T>
void attend_shared(AttentionPlan& plan, AttendBundle<T> attend_some, const Shape& shape, const T* query, const T* keys,
                   const T* values, T* out) {
  std::vector<float> memory;
  std::vector<Ints> lanes;
  const int64_t total = plan.items.size() / plan.bundle, merged = plan.joined.size();
#pragma omp for schedule(dynamic)
  for (int64_t i = 0; i < total; ++i)
    attend_some(plan.items.data() + i * plan.bundle, plan.bundle, shape, query, keys, values, out,
                plan.partial.data(), memory, lanes);
  if (!merged) return;
#pragma omp for schedule(static)
  for (int64_t i = 0; i < merged; ++i)
    join(plan.joined[i], plan.partial.data(), plan.chunks_of[i], plan.width, shape, out);
}

template <typename T>
int attend(const Segment* segments, int64_t count, const Shape& shape, const void* query, const void* keys,
           const void* values, void* out, int threads) {
  const AttendBundle<T> attend_some = attend_bundle_for<T>(shape.dim);
  if (!attend_some) return 1;
  AttentionPlan plan = plan_attention(segments, count, shape, threads);
#pragma omp parallel num_threads(threads) if (plan.items.size() > 1 && plan.work > 3 * kWorth)
  attend_shared<T>(plan, attend_some, shape, (const T*)query, (const T*)keys, (const T*)values, (T*)out);
  return 0;
}

}  // namespace

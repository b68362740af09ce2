// Attention over the KV memory's rows where they lie, of all requests of a step in one call.

#pragma once

#include <type_traits>

#include "attention_dots.h"
#include "attention_floats.h"

namespace {

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
using AttendBundle = void (*)(const Item*, int64_t, const Shape&, const T*, const T*, const T*, T*, float*, Room&);

// Null for a size of head that is not built.
template <typename T>
AttendBundle<T> attend_bundle_for(int64_t dim) {
#ifdef RESISPEC_PRODUCTS
  if constexpr (std::is_same_v<T, BFloat16>)
    if (has_products()) switch (dim) {
      case 32: return attend_bundle_dots<1>;
      case 64: return attend_bundle_dots<2>;
      case 96: return attend_bundle_dots<3>;
      case 128: return attend_bundle_dots<4>;
      case 256: return attend_bundle_dots<8>;
    }
#endif
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
                   const T* values, T* out, Room& room) {
  const int64_t total = plan.items.size() / plan.bundle, merged = plan.joined.size();
#pragma omp for schedule(dynamic)
  for (int64_t i = 0; i < total; ++i)
    attend_some(plan.items.data() + i * plan.bundle, plan.bundle, shape, query, keys, values, out,
                plan.partial.data(), room);
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
  {
    Room room;
    attend_shared<T>(plan, attend_some, shape, (const T*)query, (const T*)keys, (const T*)values, (T*)out, room);
  }
  return 0;
}

}  // namespace

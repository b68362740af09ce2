// Kernels of a decoder layer for CPUs, over the KV memory's rows where they lie.
//
// Plain C functions on raw memory, called through ctypes: no header of Python's or torch's is needed to build
// them. Threads are torch's own: OpenMP is compiled in but not linked, so that its functions are those of the
// library that torch has loaded, whose threads wait on the cores already. `library.py` binds them and
// says what they take.
//
// Vectors are the compiler's, 16 floats at a time, in whatever registers the target has. Numbers are float32
// inside, of either storage type, and rounded once on their way out.

#include <vector>

#include "vectors.h"

namespace {

template <typename T>
void rms_norm(T* out, const T* x, const float* weight, int64_t rows, int64_t size, float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (rows > 1 && rows * size > kWorth)
  for (int64_t row = 0; row < rows; ++row) {
    const T* in = x + row * size;
    Floats squares[2] = {};
    int64_t i = 0;
    for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
      Floats a = load(in + i), b = load(in + i + kLanes);
      squares[0] += a * a;
      squares[1] += b * b;
    }
    for (; i < size; i += kLanes) {
      Floats a = size - i < kLanes ? load_some(in + i, size - i) : load(in + i);
      squares[0] += a * a;
    }
    float scale = 1.0f / __builtin_sqrtf(sum(squares[0] + squares[1]) / size + eps);
    for (i = 0; i + kLanes <= size; i += kLanes) store(out + row * size + i, load(in + i) * scale * load(weight + i));
    if (i < size) {
      Floats scaled = load_some(in + i, size - i) * scale * load_some(weight + i, size - i);
      store_some(out + row * size + i, scaled, size - i);
    }
  }
}

inline Floats silu(Floats x) {
  // x e^-x overflows for large negative x before the quotient is 0, so the exponent stays below 0.
  Floats e = exponential(x > 0.0f ? -x : x);
  return x * (x > 0.0f ? all(1.0f) : e) / (1.0f + e);
}

template <typename T>
void silu_mul(T* out, const T* gate_up, int64_t rows, int64_t size, int threads) {
  const int64_t blocks = whole(size, 512);
#pragma omp parallel for collapse(2) num_threads(threads) if (rows * size > kWorth / 4)
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t block = 0; block < blocks; ++block) {
      const T *gate = gate_up + 2 * row * size, *up = gate + size;
      const int64_t end = block + 1 < blocks ? (block + 1) * 512 : size;
      int64_t i = block * 512;
      for (; i + kLanes <= end; i += kLanes) store(out + row * size + i, silu(load(gate + i)) * load(up + i));
      if (i < end) {
        Floats y = silu(load_some(gate + i, end - i)) * load_some(up + i, end - i);
        store_some(out + row * size + i, y, end - i);
      }
    }
}

// Turns queries where they are; keys and values go to their rows of the KV memory.
template <typename T>
void rotate(T* qkv, const T* cos, const T* sin, const int64_t* rows, T* keys, T* values, int64_t tokens,
            int64_t heads, int64_t kv_heads, int64_t dim, int threads) {
  const int64_t half = dim / 2, width = (heads + 2 * kv_heads) * dim;
#pragma omp parallel for num_threads(threads) if (tokens > 1 && tokens * width > kWorth)
  for (int64_t token = 0; token < tokens; ++token) {
    T* own = qkv + token * width;
    const T *c = cos + token * dim, *s = sin + token * dim;
    T* key = keys + rows[token] * kv_heads * dim;
    for (int64_t head = 0; head < heads + kv_heads; ++head) {
      const T* in = own + head * dim;
      T* out = head < heads ? own + head * dim : key + (head - heads) * dim;
      for (int64_t i = 0; i < half; i += kLanes) {
        const int64_t count = half - i < kLanes ? half - i : kLanes;
        Floats a = load_some(in + i, count), b = load_some(in + half + i, count);
        Floats first = a * load_some(c + i, count) + b * load_some(s + i, count);
        Floats second = b * load_some(c + half + i, count) + a * load_some(s + half + i, count);
        store_some(out + i, first, count);
        store_some(out + half + i, second, count);
      }
    }
    std::memcpy(values + rows[token] * kv_heads * dim, own + (heads + kv_heads) * dim, kv_heads * dim * sizeof(T));
  }
}

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

template <typename T, int D>
void attend_item(const Item& item, const Shape& shape, const T* query, const T* keys, const T* values, T* out,
                 float* partial, std::vector<float>& memory, std::vector<Ints>& lanes) {
  const Segment& segment = *item.segment;
  const int64_t groups = shape.heads / shape.kv_heads, queries = item.count * groups, dim = shape.dim;
  constexpr int64_t width = D * kLanes;
  const int64_t tail = dim - (D - 1) * kLanes;  // numbers in a head's last vector
  // Few queries read rows where they are; for many, or if heads are no whole vectors, they are widened once.
  const bool widened = queries > 4 || tail != kLanes;
  memory.resize(queries * (2 * width + 2) + (widened ? 2 * kLanes * width : 0));
  lanes.resize(queries);
  Running run;
  run.query = memory.data();
  run.values = run.query + queries * width;
  run.most = run.values + queries * width;
  run.total = run.most + queries;
  float *wide_keys = run.total + queries, *wide_values = wide_keys + kLanes * width;
  for (int64_t n = 0; n < queries; ++n) {
    const int64_t token = segment.start + item.first + n / groups, head = item.head * groups + n % groups;
    const T* from = query + token * shape.query_stride + head * dim;
    for (int d = 0; d < D; ++d) {
      Floats x = d + 1 < D || tail == kLanes ? load(from + d * kLanes) : load_some(from + d * kLanes, tail);
      store(run.query + n * width + d * kLanes, x * shape.scaling);
      store(run.values + n * width + d * kLanes, Floats{});
    }
    run.most[n] = kNothing;
    run.total[n] = 0;
  }
  for (int64_t row = item.row; row < item.row + item.rows; row += kLanes) {
    const int64_t count = item.row + item.rows - row < kLanes ? item.row + item.rows - row : kLanes;
    for (int64_t n = 0; n < queries; ++n)
      lanes[n] = n % groups ? lanes[n - 1] : seen(segment, shape, item.first + n / groups, row, count);
    const T *key[kLanes], *value[kLanes];
    for (int64_t r = 0; r < kLanes; ++r) {
      const int64_t at = segment.kv_start + row + (r < count ? r : count - 1);
      key[r] = keys + (at * shape.kv_heads + item.head) * dim;
      value[r] = values + (at * shape.kv_heads + item.head) * dim;
    }
    if (!widened) {
      attend_blocks<T, D>(run, queries, key, value, lanes.data());
      continue;
    }
    const float *wide_key[kLanes], *wide_value[kLanes];
    for (int64_t r = 0; r < kLanes; ++r) {
      wide_key[r] = wide_keys + r * width;
      wide_value[r] = wide_values + r * width;
      for (int d = 0; d < D; ++d) {
        const int64_t i = d * kLanes;
        const bool is_whole = d + 1 < D || tail == kLanes;
        store(wide_keys + r * width + i, is_whole ? load(key[r] + i) : load_some(key[r] + i, tail));
        store(wide_values + r * width + i, is_whole ? load(value[r] + i) : load_some(value[r] + i, tail));
      }
    }
    attend_blocks<float, D>(run, queries, wide_key, wide_value, lanes.data());
  }
  for (int64_t n = 0; n < queries; ++n) {
    if (item.partial >= 0) {
      float* to = partial + item.partial + n * (2 + width);
      to[0] = run.most[n];
      to[1] = run.total[n];
      std::memcpy(to + 2, run.values + n * width, width * sizeof(float));
      continue;
    }
    const int64_t token = segment.start + item.first + n / groups, head = item.head * groups + n % groups;
    T* to = out + (token * shape.heads + head) * dim;
    for (int d = 0; d < D; ++d) {
      Floats x = load(run.values + n * width + d * kLanes) / run.total[n];
      if (d + 1 < D || tail == kLanes) store(to + d * kLanes, x);
      else store_some(to + d * kLanes, x, tail);
    }
  }
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

template <typename T, int D>
void attend(const Segment* segments, int64_t count, const Shape& shape, const T* query, const T* keys,
            const T* values, T* out, int threads) {
  const int64_t groups = shape.heads / shape.kv_heads, width = D * kLanes;
  std::vector<Item> items, joined;
  std::vector<int64_t> chunks_of;
  int64_t work = 0, memory = 0;
  for (int64_t s = 0; s < count; ++s) {
    const Segment& segment = segments[s];
    const int64_t tokens = kQueries / groups > 0 ? kQueries / groups : 1;
    work += segment.length * shape.heads * segment.kv_length;
    for (int64_t first = 0; first < segment.length; first += tokens) {
      const int64_t own = segment.length - first < tokens ? segment.length - first : tokens;
      // Rows that any of these tokens sees: up to the last of them, and from the first window on.
      const int64_t end = segment.mask ? segment.kv_length : segment.kv_length - segment.length + first + own;
      const int64_t begin = first_in_window(segment, shape, first, own) / kLanes * kLanes;
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        if (end - begin <= kChunk) {
          items.push_back({&segment, head, first, own, begin, end - begin, -1});
          continue;
        }
        const int64_t size = own * groups * (2 + width), before = begin / kChunk, needed = whole(end, kChunk);
        joined.push_back({&segment, head, first, own, 0, 0, memory});
        chunks_of.push_back(needed - before);
        for (int64_t c = before; c < needed; ++c, memory += size) {
          const int64_t row = c == before ? begin : c * kChunk;
          const int64_t stop = (c + 1) * kChunk < end ? (c + 1) * kChunk : end;
          items.push_back({&segment, head, first, own, row, stop - row, memory});
        }
      }
    }
  }
  std::vector<float> partial(memory);
  const int64_t total = items.size(), merged = joined.size();
#pragma omp parallel num_threads(threads) if (total > 1 && work * shape.dim > 3 * kWorth)
  {
    std::vector<float> memory_of;
    std::vector<Ints> lanes;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < total; ++i)
      attend_item<T, D>(items[i], shape, query, keys, values, out, partial.data(), memory_of, lanes);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < merged; ++i) join(joined[i], partial.data(), chunks_of[i], width, shape, out);
  }
}

template <typename T>
int attend_for(const Segment* segments, int64_t count, const Shape& shape, const void* query, const void* keys,
               const void* values, void* out, int threads) {
#define CASE(D)                                                                                            \
  case D:                                                                                                  \
    attend<T, D>(segments, count, shape, (const T*)query, (const T*)keys, (const T*)values, (T*)out, threads); \
    return 0
  switch (whole(shape.dim, kLanes)) {
    CASE(1);
    CASE(2);
    CASE(4);
    CASE(5);
    CASE(6);
    CASE(8);
    CASE(16);
    default: return 1;
  }
#undef CASE
}

}  // namespace

// `kind` is 0 for float32 and 1 for bfloat16; tensors are contiguous.
extern "C" {

// out, x: [rows, size]; weight: [size] float32.
void resispec_rms_norm(void* out, const void* x, const float* weight, int64_t rows, int64_t size, float eps,
                       int kind, int threads) {
  if (kind) rms_norm((BFloat16*)out, (const BFloat16*)x, weight, rows, size, eps, threads);
  else rms_norm((float*)out, (const float*)x, weight, rows, size, eps, threads);
}

// out: [rows, size]; gate_up: [rows, 2 * size], the gate first.
void resispec_silu_mul(void* out, const void* gate_up, int64_t rows, int64_t size, int kind, int threads) {
  if (kind) silu_mul((BFloat16*)out, (const BFloat16*)gate_up, rows, size, threads);
  else silu_mul((float*)out, (const float*)gate_up, rows, size, threads);
}

// qkv: [tokens, heads + 2 * kv_heads, dim]; cos, sin: [tokens, dim], the first half of the sines negated;
// rows: [tokens]; keys, values: a layer's [KV rows, kv_heads, dim].
void resispec_rotate(void* qkv, const void* cos, const void* sin, const int64_t* rows, void* keys, void* values,
                     int64_t tokens, int64_t heads, int64_t kv_heads, int64_t dim, int kind, int threads) {
  if (kind)
    rotate((BFloat16*)qkv, (const BFloat16*)cos, (const BFloat16*)sin, rows, (BFloat16*)keys, (BFloat16*)values,
           tokens, heads, kv_heads, dim, threads);
  else
    rotate((float*)qkv, (const float*)cos, (const float*)sin, rows, (float*)keys, (float*)values, tokens, heads,
           kv_heads, dim, threads);
}

// out: [tokens, heads, dim]; query: heads of a token side by side, tokens `query_stride` apart; segments: [count, 6];
// positions: [tokens]; keys, values as above. 0, or 1 for a size of head that is not built.
int resispec_attend(void* out, const void* query, const void* keys, const void* values, const void* segments,
                    int64_t count, const int64_t* positions, int64_t heads, int64_t kv_heads, int64_t dim,
                    int64_t query_stride, int64_t window, float scaling, int kind, int threads) {
  const Shape shape{heads, kv_heads, dim, query_stride, window, positions, scaling};
  const Segment* all_segments = (const Segment*)segments;
  return kind ? attend_for<BFloat16>(all_segments, count, shape, query, keys, values, out, threads)
              : attend_for<float>(all_segments, count, shape, query, keys, values, out, threads);
}
}

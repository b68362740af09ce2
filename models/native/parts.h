// The small parts of a decoder layer: norms, gates, rotary positions.

#pragma once

#include <vector>

#include "vectors.h"

namespace {

constexpr int64_t kWorthBytes = 1 << 20;  // fewer are moved sooner than a second thread may wake

template <typename T>
inline void norm_row(T* out, const T* in, const float* weight, int64_t size, float eps) {
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
  for (i = 0; i + kLanes <= size; i += kLanes) store(out + i, load(in + i) * scale * load(weight + i));
  if (i < size) {
    Floats scaled = load_some(in + i, size - i) * scale * load_some(weight + i, size - i);
    store_some(out + i, scaled, size - i);
  }
}

template <typename T>
void rms_norm(T* out, const T* x, const float* weight, int64_t rows, int64_t size, float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (rows > 1 && rows * size > kWorth)
  for (int64_t row = 0; row < rows; ++row) norm_row(out + row * size, x + row * size, weight, size, eps);
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

// How the heads of a token lie in one row of queries, keys and values.
struct Heads {
  int64_t queries, kv_heads, dim;
  int64_t width() const { return (queries + 2 * kv_heads) * dim; }
};

// Turns a token's queries where they are; its key and value go to row `row` of the KV memory.
template <typename T>
inline void rotate_token(T* own, const T* cos, const T* sin, int64_t row, T* keys, T* values, const Heads& heads) {
  const int64_t dim = heads.dim, half = dim / 2;
  T* key = keys + row * heads.kv_heads * dim;
  for (int64_t head = 0; head < heads.queries + heads.kv_heads; ++head) {
    const T* in = own + head * dim;
    T* out = head < heads.queries ? own + head * dim : key + (head - heads.queries) * dim;
    for (int64_t i = 0; i < half; i += kLanes) {
      const int64_t count = half - i < kLanes ? half - i : kLanes;
      if (count == kLanes) {
        Floats a = load(in + i), b = load(in + half + i);
        Floats first = a * load(cos + i) + b * load(sin + i);
        Floats second = b * load(cos + half + i) + a * load(sin + half + i);
        store(out + i, first);
        store(out + half + i, second);
        continue;
      }
      Floats a = load_some(in + i, count), b = load_some(in + half + i, count);
      Floats first = a * load_some(cos + i, count) + b * load_some(sin + i, count);
      Floats second = b * load_some(cos + half + i, count) + a * load_some(sin + half + i, count);
      store_some(out + i, first, count);
      store_some(out + half + i, second, count);
    }
  }
  const T* value = own + (heads.queries + heads.kv_heads) * dim;
  std::memcpy(values + row * heads.kv_heads * dim, value, heads.kv_heads * dim * sizeof(T));
}

template <typename T>
void rotate(T* qkv, const T* cos, const T* sin, const int64_t* rows, T* keys, T* values, int64_t tokens,
            const Heads& heads, int threads) {
  const int64_t dim = heads.dim, width = heads.width();
#pragma omp parallel for num_threads(threads) if (tokens > 1 && tokens * width > kWorth)
  for (int64_t token = 0; token < tokens; ++token)
    rotate_token(qkv + token * width, cos + token * dim, sin + token * dim, rows[token], keys, values, heads);
}

inline void move_rows(char* pools, int64_t layers, int64_t pool_stride, int64_t row_size, const int64_t* source,
                      const int64_t* destination, int64_t count, int threads) {
#pragma omp parallel for num_threads(threads) if (layers > 1 && layers * count * row_size > kWorthBytes)
  for (int64_t layer = 0; layer < layers; ++layer) {
    char* pool = pools + layer * pool_stride;
    std::vector<char> held(count * row_size);
    for (int64_t i = 0; i < count; ++i) std::memcpy(&held[i * row_size], pool + source[i] * row_size, row_size);
    for (int64_t i = 0; i < count; ++i) std::memcpy(pool + destination[i] * row_size, &held[i * row_size], row_size);
  }
}

}  // namespace

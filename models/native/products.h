// Products with a weight matrix, y = x W^T, for any number of rows, in bfloat16 with sums in float32.
//
// A few rows take as long as reading the weights, so these lie in the order in which they are read: panels of
// 32 outputs, of each the inputs two by two, as the processor's dot products of pairs want them (padded with
// zeros to whole panels):
//
//     W [outputs, inputs] -> [panels, inputs / 2, 32, 2]
//
// A row's result has the same bits alone and among any others: each output is one chain of sums.

#pragma once

#include "vectors.h"

#if defined(__AVX512F__) && defined(__GNUC__)
#include <immintrin.h>
#define RESISPEC_PRODUCTS 1
#define WITH_DOTS __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#endif

namespace {

constexpr int64_t kPanel = 2 * kLanes;  // outputs

// Where the results for a panel go: rows `stride` apart, `count` outputs of each.
struct Output {
  BFloat16* to;
  int64_t stride;
  const BFloat16* bias;   // or null
  const BFloat16* added;  // rows as of `to`, or null
};

// Of `rows` rows: what one call of a kernel works on.
struct Inputs {
  const BFloat16* rows;
  int64_t stride, pairs;
};

inline bool has_products() {
#ifdef RESISPEC_PRODUCTS
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

#ifdef RESISPEC_PRODUCTS

constexpr int kRows = 12;         // at a time: two sums each, and the registers are full
constexpr int64_t kAhead = 4096;  // bytes: memory answers later than the processor asks by itself

template <int R>
WITH_DOTS inline __attribute__((always_inline)) void dot(const Inputs& x, const BFloat16* panel, __m512 (&sum)[R][2]) {
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t k = 0; k < x.pairs; ++k) {
    const BFloat16* pairs = panel + k * 2 * kPanel;
    const __m512bh first = (__m512bh)_mm512_loadu_si512(pairs), second = (__m512bh)_mm512_loadu_si512(pairs + kPanel);
    __builtin_prefetch((const char*)pairs + kAhead);
    __builtin_prefetch((const char*)(pairs + kPanel) + kAhead);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      std::memcpy(&pair, x.rows + r * x.stride + 2 * k, sizeof pair);
      const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], first, both);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], second, both);
    }
  }
}

WITH_DOTS inline __m512 widened(const BFloat16* from, __mmask16 lanes) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from)), 16));
}

WITH_DOTS inline __mmask16 first_lanes(int64_t count) {
  return count >= kLanes ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

template <int R>
WITH_DOTS void multiply_rows(const Output& y, const Inputs& x, const BFloat16* panel, int64_t count) {
  __m512 sum[R][2];
  dot<R>(x, panel, sum);
  for (int half = 0; half < 2; ++half) {
    const __mmask16 lanes = first_lanes(count - half * kLanes);
    const __m512 bias = y.bias ? widened(y.bias + half * kLanes, lanes) : _mm512_setzero_ps();
    for (int r = 0; r < R; ++r) {
      const int64_t at = r * y.stride + half * kLanes;
      __m512 total = _mm512_add_ps(sum[r][half], bias);
      if (y.added) total = _mm512_add_ps(total, widened(y.added + at, lanes));
      _mm256_mask_storeu_epi16(y.to + at, lanes, (__m256i)_mm512_cvtneps_pbh(total));
    }
  }
}

// silu(gate) * up, for the panels of both.
template <int R>
WITH_DOTS void gate_rows(const Output& y, const Inputs& x, const BFloat16* gate, const BFloat16* up,
                         const BFloat16* up_bias) {
  __m512 first[R][2], second[R][2];
  dot<R>(x, gate, first);
  dot<R>(x, up, second);
  for (int half = 0; half < 2; ++half)
    for (int r = 0; r < R; ++r) {
      if (y.bias) first[r][half] = _mm512_add_ps(first[r][half], widened(y.bias + half * kLanes, 0xffff));
      if (up_bias) second[r][half] = _mm512_add_ps(second[r][half], widened(up_bias + half * kLanes, 0xffff));
      const __m512 inner = (__m512)(silu((Floats)first[r][half]) * (Floats)second[r][half]);
      _mm256_storeu_epi16(y.to + r * y.stride + half * kLanes, (__m256i)_mm512_cvtneps_pbh(inner));
    }
}

// Calls `body` with 1 to kRows as a constant until all rows are done.
#define IN_ROWS(body)                                                                      \
  switch (rows - row < kRows ? rows - row : kRows) {                                       \
    case 1: body(1); case 2: body(2); case 3: body(3); case 4: body(4); case 5: body(5);   \
    case 6: body(6); case 7: body(7); case 8: body(8); case 9: body(9); case 10: body(10); \
    case 11: body(11); default: body(12);                                                  \
  }

// One panel's outputs of all rows.
WITH_DOTS inline void multiply(Output y, Inputs x, int64_t rows, const BFloat16* panel, int64_t count) {
#define MULTIPLY(R) multiply_rows<R>(y, x, panel, count); break
  for (int64_t row = 0; row < rows; row += kRows) {
    IN_ROWS(MULTIPLY)
    y.to += kRows * y.stride;
    if (y.added) y.added += kRows * y.stride;
    x.rows += kRows * x.stride;
  }
#undef MULTIPLY
}

WITH_DOTS inline void multiply_gated(Output y, Inputs x, int64_t rows, const BFloat16* gate, const BFloat16* up,
                                     const BFloat16* up_bias) {
#define GATE(R) gate_rows<R>(y, x, gate, up, up_bias); break
  for (int64_t row = 0; row < rows; row += kRows) {
    IN_ROWS(GATE)
    y.to += kRows * y.stride;
    x.rows += kRows * x.stride;
  }
#undef GATE
}
#undef IN_ROWS

#else

inline void multiply(Output, Inputs, int64_t, const BFloat16*, int64_t) {}
inline void multiply_gated(Output, Inputs, int64_t, const BFloat16*, const BFloat16*, const BFloat16*) {}

#endif

// A layer's matrix as it lies: `size` inputs, an even number.
struct Matrix {
  const BFloat16 *panels, *bias;  // bias: or null
  int64_t size, outputs;
};

// Shared among the threads of the region that it is called in, all of which must call it.
// x: [rows, size]; y, added: [rows, outputs].
inline void multiply_shared(BFloat16* y, const BFloat16* x, int64_t rows, const Matrix& matrix, const BFloat16* added) {
  const int64_t panels = whole(matrix.outputs, kPanel);
#pragma omp for schedule(static)
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t at = panel * kPanel;
    const Output to{y + at, matrix.outputs, matrix.bias ? matrix.bias + at : nullptr, added ? added + at : nullptr};
    multiply(to, {x, matrix.size, matrix.size / 2}, rows, matrix.panels + at * matrix.size, matrix.outputs - at);
  }
}

// x: [rows, size]; y: [rows, outputs / 2], a whole number of panels: silu of the first half, times the second.
inline void multiply_gated_shared(BFloat16* y, const BFloat16* x, int64_t rows, const Matrix& matrix) {
  const int64_t inner = matrix.outputs / 2, panels = inner / kPanel;
#pragma omp for schedule(static)
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t at = panel * kPanel;
    const BFloat16 *gate = matrix.panels + at * matrix.size, *up = gate + inner * matrix.size;
    const BFloat16 *gate_bias = matrix.bias ? matrix.bias + at : nullptr, *up_bias = gate_bias ? gate_bias + inner : nullptr;
    multiply_gated({y + at, inner, gate_bias, nullptr}, {x, matrix.size, matrix.size / 2}, rows, gate, up, up_bias);
  }
}

}  // namespace

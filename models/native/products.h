// Products with a weight matrix, y = x W^T, for any number of rows, in bfloat16 with sums in float32.
//
// A few rows take as long as reading the weights, so these lie in the order in which they are read: panels of
// 32 outputs, of each the inputs two by two, as the processor's dot products of pairs want them (padded with
// zeros to whole panels):
//
//     W [outputs, inputs] -> [panels, inputs / 2, 32, 2]
//
// Weights of 8 bits lie in fours: codes.h. A row's result has the same bits alone and among any others: each
// output is one chain of sums.

#pragma once

#include <memory>

#include "codes.h"

namespace {

// Where the results for a panel go: rows `stride` apart, `count` outputs of each.
struct Output {
  BFloat16* to;
  int64_t stride;
  const BFloat16* bias;   // or null
  const BFloat16* added;  // rows as of `to`, or null
  const float* scales;    // of weights of 8 bits, or null
};

// What one call of a kernel works on.
struct Inputs {
  const BFloat16* rows;
  int64_t size;

  void skip(int64_t count) { rows += count * size; }
};

#ifdef RESISPEC_PRODUCTS

constexpr int kRows = 12;  // at a time, at most: two sums each, and the registers are full

// Rows that do not go in one pass go in several alike ones. The first waits for memory and the others do not, so the
// first two ask for the next panel meanwhile, half each. pass: -1: the only one.
inline int64_t rows_at_once(int64_t rows) { return rows > kRows ? whole(rows, whole(rows, kRows)) : kRows; }

template <typename W>
inline const W* half_next(const W* panel, int64_t size, int64_t pass) {
  return pass == 0 || pass == 1 ? panel + kPanel * size + pass * (kPanel / 2) * size : nullptr;
}

// soon: half a panel that is wanted soon, or null.
template <int R>
WITH_DOTS inline __attribute__((always_inline)) void dot(const Inputs& x, const BFloat16* panel, const BFloat16* soon,
                                                         __m512 (&sum)[R][2]) {
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t k = 0; k < x.size / 2; ++k) {
    const BFloat16* pairs = panel + k * 2 * kPanel;
    const __m512bh first = (__m512bh)_mm512_loadu_si512(pairs), second = (__m512bh)_mm512_loadu_si512(pairs + kPanel);
    __builtin_prefetch((const char*)pairs + kAhead);
    __builtin_prefetch((const char*)(pairs + kPanel) + kAhead);
    if (soon) __builtin_prefetch(soon + k * kPanel, 0, 2);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      std::memcpy(&pair, x.rows + r * x.size + 2 * k, sizeof pair);
      const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], first, both);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], second, both);
    }
  }
}

WITH_DOTS inline __m512 widened(const BFloat16* from, __mmask16 lanes) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from)), 16));
}

template <int R, typename X, typename W>
WITH_DOTS void multiply_rows(const Output& y, const X& x, const W* panel, int64_t count, int64_t pass) {
  __m512 sum[R][2];
  dot<R>(x, panel, half_next(panel, x.size, pass), sum);
  for (int half = 0; half < 2; ++half) {
    const __mmask16 lanes = first_lanes(count - half * kLanes);
    const __m512 scale = y.scales ? _mm512_loadu_ps(y.scales + half * kLanes) : _mm512_set1_ps(1);
    const __m512 bias = y.bias ? widened(y.bias + half * kLanes, lanes) : _mm512_setzero_ps();
    for (int r = 0; r < R; ++r) {
      const int64_t at = r * y.stride + half * kLanes;
      __m512 total = _mm512_add_ps(_mm512_mul_ps(sum[r][half], scale), bias);
      if (y.added) total = _mm512_add_ps(total, widened(y.added + at, lanes));
      _mm256_mask_storeu_epi16(y.to + at, lanes, (__m256i)_mm512_cvtneps_pbh(total));
    }
  }
}

// silu(gate) * up, for the panels of both. up: its bias and scales.
template <int R, typename X, typename W>
WITH_DOTS void gate_rows(const Output& y, const X& x, const W* gate_panel, const W* up_panel, const Output& up,
                         int64_t pass) {
  __m512 first[R][2], second[R][2];
  dot<R>(x, gate_panel, half_next(gate_panel, x.size, pass), first);
  dot<R>(x, up_panel, half_next(up_panel, x.size, pass), second);
  for (int half = 0; half < 2; ++half)
    for (int r = 0; r < R; ++r) {
      __m512 &a = first[r][half], &b = second[r][half];
      if (y.scales) a = _mm512_mul_ps(a, _mm512_loadu_ps(y.scales + half * kLanes));
      if (y.scales) b = _mm512_mul_ps(b, _mm512_loadu_ps(up.scales + half * kLanes));
      if (y.bias) a = _mm512_add_ps(a, widened(y.bias + half * kLanes, 0xffff));
      if (y.bias) b = _mm512_add_ps(b, widened(up.bias + half * kLanes, 0xffff));
      const __m512 inner = (__m512)(silu((Floats)a) * (Floats)b);
      _mm256_storeu_epi16(y.to + r * y.stride + half * kLanes, (__m256i)_mm512_cvtneps_pbh(inner));
    }
}

// Calls `body` with the number of rows that are next, 1 to kRows, as a constant.
#define IN_ROWS(body)                                                                      \
  switch (rows - row < most ? rows - row : most) {                                         \
    case 1: body(1); case 2: body(2); case 3: body(3); case 4: body(4); case 5: body(5);   \
    case 6: body(6); case 7: body(7); case 8: body(8); case 9: body(9); case 10: body(10); \
    case 11: body(11); default: body(12);                                                  \
  }

// One panel's outputs of all rows.
template <typename X, typename W>
WITH_DOTS inline void multiply(Output y, X x, int64_t rows, const W* panel, int64_t count) {
#define MULTIPLY(R) multiply_rows<R>(y, x, panel, count, pass); break
  const int64_t most = rows_at_once(rows);
  for (int64_t row = 0, pass = rows > most ? 0 : -1; row < rows; row += most, ++pass) {
    IN_ROWS(MULTIPLY)
    y.to += most * y.stride;
    if (y.added) y.added += most * y.stride;
    x.skip(most);
  }
#undef MULTIPLY
}

template <typename X, typename W>
WITH_DOTS inline void multiply_gated(Output y, X x, int64_t rows, const W* gate, const W* up, const Output& of_up) {
#define GATE(R) gate_rows<R>(y, x, gate, up, of_up, pass); break
  const int64_t most = rows_at_once(rows);
  for (int64_t row = 0, pass = rows > most ? 0 : -1; row < rows; row += most, ++pass) {
    IN_ROWS(GATE)
    y.to += most * y.stride;
    x.skip(most);
  }
#undef GATE
}
#undef IN_ROWS

#else

template <typename X, typename W>
void multiply(const Output&, const X&, int64_t, const W*, int64_t) {}
template <typename X, typename W>
void multiply_gated(const Output&, const X&, int64_t, const W*, const W*, const Output&) {}

#endif

// A layer's matrix as it lies. size: inputs, an even number, and whole groups for weights of 8 bits.
struct Matrix {
  const void* panels;
  const BFloat16* bias;  // or null
  const float* scales;   // of weights of 8 bits, for whole panels; null: bfloat16
  int64_t size, outputs;
};

template <typename W, typename X>
inline void multiply_panels(BFloat16* y, const X& x, int64_t rows, const Matrix& matrix, const BFloat16* added) {
  const int64_t panels = whole(matrix.outputs, kPanel);
#pragma omp for schedule(static)
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t at = panel * kPanel;
    const Output to{y + at, matrix.outputs, matrix.bias ? matrix.bias + at : nullptr, added ? added + at : nullptr,
                    matrix.scales ? matrix.scales + at : nullptr};
    multiply(to, x, rows, (const W*)matrix.panels + at * matrix.size, matrix.outputs - at);
  }
}

template <typename W, typename X>
inline void multiply_gated_panels(BFloat16* y, const X& x, int64_t rows, const Matrix& matrix) {
  const int64_t inner = matrix.outputs / 2, panels = inner / kPanel;
#pragma omp for schedule(static)
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t at = panel * kPanel;
    const auto part = [&](int64_t first) {
      return Output{y + at, inner, matrix.bias ? matrix.bias + first : nullptr, nullptr,
                    matrix.scales ? matrix.scales + first : nullptr};
    };
    const W* gate = (const W*)matrix.panels + at * matrix.size;
    multiply_gated(part(at), x, rows, gate, gate + inner * matrix.size, part(inner + at));
  }
}

// Products of one region of threads, all of which must call for each.
class Products {
 public:
  // Made outside the region. size: of the longest rows that meet weights of 8 bits; 0: none do.
  Products(int64_t rows, int64_t size) : rows_(rows), size_(size), shared_(rows > kOwnRows ? rows : 0, size) {}

  // A thread's own part.
  class Own {
   public:
    explicit Own(Products& all) : all_(all), own_(all.rows_ > kOwnRows ? 0 : all.rows_, all.size_) {}

    // x: [rows, size]; y, added: [rows, outputs].
    void multiply(BFloat16* y, const BFloat16* x, const Matrix& matrix, const BFloat16* added) {
      if (matrix.scales) multiply_panels<uint8_t>(y, coded(x, matrix.size), all_.rows_, matrix, added);
      else multiply_panels<BFloat16>(y, Inputs{x, matrix.size}, all_.rows_, matrix, added);
    }

    // x: [rows, size]; y: [rows, outputs / 2], whole panels: silu of the first half, times the second.
    void multiply_gated(BFloat16* y, const BFloat16* x, const Matrix& matrix) {
      if (matrix.scales) multiply_gated_panels<uint8_t>(y, coded(x, matrix.size), all_.rows_, matrix);
      else multiply_gated_panels<BFloat16>(y, Inputs{x, matrix.size}, all_.rows_, matrix);
    }

   private:
    CodedInputs coded(const BFloat16* x, int64_t size) {
      if (all_.rows_ <= kOwnRows) {
        for (int64_t row = 0; row < all_.rows_; ++row) own_.code(x, row, size);
        return own_.inputs(size);
      }
#pragma omp for schedule(static)
      for (int64_t row = 0; row < all_.rows_; ++row) all_.shared_.code(x, row, size);
      return all_.shared_.inputs(size);
    }

    Products& all_;
    CodedRows own_;
  };

 private:
  int64_t rows_, size_;
  CodedRows shared_;
};

}  // namespace

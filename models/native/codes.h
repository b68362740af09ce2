// Numbers of 8 bits for products: weights, and the rows that they are multiplied with.
//
// A weight is W = s (C - 128): a code C from 1 to 255, and one scale s for each output. A row is rounded as it
// comes, 32 inputs at a time with a scale of their own, to t X with whole X from -127 to 127. Then
//
//     y_o = s_o sum over groups g of t_g ( sum over k in g of C_ok X_k  -  128 sum over k in g of X_k )
//
// where the sums within a group are whole numbers, made by the processor's dot products of four, of which one
// factor has no sign. Panels are
//
//     C [outputs, inputs] -> [panels, inputs / 4, 32, 4]
//
// padded with 128, which stands for 0.

#pragma once

#include <memory>

#include "vectors.h"

#if defined(__AVX512F__) && defined(__GNUC__)
#include <immintrin.h>
#define RESISPEC_PRODUCTS 1
#define WITH_DOTS __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni")))
#endif

namespace {

constexpr int64_t kPanel = 2 * kLanes;  // outputs
constexpr int64_t kGroup = 32;          // inputs with a scale
constexpr int64_t kZero = 128;          // the code of a weight of 0
constexpr int64_t kOwnRows = 24;        // a thread prepares so many for itself sooner than it waits for others

inline bool has_products() {
#ifdef RESISPEC_PRODUCTS
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

// Rows as they are multiplied.
struct CodedInputs {
  const int8_t* codes;     // [rows, size]
  const float* scales;     // [rows, size / kGroup]
  const int32_t* offsets;  // as of the scales: what takes the codes' 128 away
  int64_t size;

  int64_t groups() const { return size / kGroup; }
  void skip(int64_t count) {
    codes += count * size;
    scales += count * groups();
    offsets += count * groups();
  }
};

#ifdef RESISPEC_PRODUCTS

constexpr int64_t kAhead = 4096;  // bytes: memory answers later than the processor asks by itself
constexpr float kLeast = 0x1p-100f;  // smaller groups are zeros: 127 through much less is beyond float32

WITH_DOTS inline __mmask16 first_lanes(int64_t count) {
  return count >= kLanes ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

// One group of a row. With an infinity or no number in it its scale is no number, nor are the results then.
WITH_DOTS inline void code_group(const BFloat16* x, int8_t* codes, float* scale, int32_t* offset) {
  constexpr int kParts = kGroup / kLanes;
  __m512 parts[kParts];
  __m512 most = _mm512_setzero_ps();
  __mmask16 finite = 0xffff;
  for (int i = 0; i < kParts; ++i) {
    parts[i] = (__m512)load(x + i * kLanes);
    const __m512 size = _mm512_abs_ps(parts[i]);
    most = _mm512_max_ps(most, size);
    finite &= _mm512_cmp_ps_mask(size, _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ);
  }
  const bool usable = finite == 0xffff;
  const float top = _mm512_reduce_max_ps(most);
  const __m512 inverse = _mm512_set1_ps(top < kLeast ? 0 : 127 / top);
  __m512i total = _mm512_setzero_si512();
  for (int i = 0; i < kParts; ++i) {
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(parts[i], inverse));
    total = _mm512_add_epi32(total, whole);
    _mm_storeu_si128((__m128i*)(codes + i * kLanes), _mm512_cvtsepi32_epi8(whole));
  }
  *scale = usable ? top / 127 : __builtin_nanf("");
  *offset = -(int32_t)kZero * _mm512_reduce_add_epi32(total);
}

// By its name: with the intrinsic compilers move what is added to from register to register, and to memory.
WITH_DOTS inline __attribute__((always_inline)) void add_dots(__m512i& sums, __m512i weights, __m512i numbers) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(numbers));
}

// soon: half a panel that is wanted soon, or null.
template <int R>
WITH_DOTS inline __attribute__((always_inline)) void dot(const CodedInputs& x, const uint8_t* panel,
                                                         const uint8_t* soon, __m512 (&sum)[R][2]) {
  const int64_t groups = x.groups();
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    __m512i whole[R][2];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) whole[r][0] = whole[r][1] = _mm512_set1_epi32(x.offsets[r * groups + g]);
    for (int64_t k = g * kGroup; k < (g + 1) * kGroup; k += 4) {
      const uint8_t* fours = panel + k * kPanel;
      const __m512i first = _mm512_loadu_si512(fours), second = _mm512_loadu_si512(fours + 4 * kLanes);
      __builtin_prefetch(fours + kAhead);
      __builtin_prefetch(fours + 4 * kLanes + kAhead);
      if (soon) __builtin_prefetch(soon + k * (kPanel / 2), 0, 2);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        int32_t four;
        std::memcpy(&four, x.codes + r * x.size + k, sizeof four);
        const __m512i all_four = _mm512_set1_epi32(four);
        add_dots(whole[r][0], first, all_four);
        add_dots(whole[r][1], second, all_four);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const __m512 scale = _mm512_set1_ps(x.scales[r * groups + g]);
      for (int half = 0; half < 2; ++half)
        sum[r][half] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole[r][half]), scale, sum[r][half]);
    }
  }
}

#else

inline void code_group(const BFloat16*, int8_t*, float*, int32_t*) {}

#endif

// Room for rows as codes.
class CodedRows {
 public:
  CodedRows(int64_t rows, int64_t size)
      : codes_(new int8_t[rows * size]),
        scales_(new float[rows * size / kGroup]),
        offsets_(new int32_t[rows * size / kGroup]) {}

  void code(const BFloat16* x, int64_t row, int64_t size) {
    for (int64_t at = row * size; at < (row + 1) * size; at += kGroup)
      code_group(x + at, &codes_[at], &scales_[at / kGroup], &offsets_[at / kGroup]);
  }

  CodedInputs inputs(int64_t size) const { return {codes_.get(), scales_.get(), offsets_.get(), size}; }

 private:
  std::unique_ptr<int8_t[]> codes_;
  std::unique_ptr<float[]> scales_;
  std::unique_ptr<int32_t[]> offsets_;
};

}  // namespace

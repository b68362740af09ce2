// Attention in bfloat16 by dot products of pairs, for heads of whole vectors of 32 numbers.
//
// Of an item's rows first all scores, 16 rows at a time, turned so that each row is a lane; then the weights
// e^(score - largest), rounded to bfloat16, as their sum is; then the weighted values, two rows at a time.

#pragma once

#include "attention_items.h"
#include "codes.h"

#ifdef RESISPEC_PRODUCTS

namespace {

constexpr int kScored = 4;  // queries at a time, with as many sums each, for a sum waits for itself

// Which of `count` rows from `row` on a token sees.
WITH_DOTS inline __mmask16 lanes_seen(const Segment& segment, const Shape& shape, int64_t token, int64_t row,
                                      int64_t count) {
  const int64_t plain = segment.mask ? segment.kv_length - segment.columns
                                     : segment.kv_length - segment.length + token + 1;
  __mmask16 lanes = first_lanes(plain - row);
  if (segment.mask && row + count > plain) {
    const int64_t column = row > plain ? row - plain : 0, lane = plain > row ? plain - row : 0;
    const __mmask16 there = first_lanes(segment.columns - column);
    const __m128i bytes = _mm_maskz_loadu_epi8(there, segment.mask + token * segment.columns + column);
    lanes |= (__mmask16)(_mm_test_epi8_mask(bytes, bytes) << lane);
  }
  if (shape.window) lanes &= (__mmask16)~first_lanes(shape.positions[segment.start + token] - shape.window + 1 - row);
  return lanes & first_lanes(count);
}

// Column by column what lies row by row: of 16 rows 16 pairs each.
WITH_DOTS inline void turn(__m512i* turned, const BFloat16* const* rows, int64_t at) {
  __m512i a[kLanes], b[kLanes];
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) a[r] = _mm512_loadu_si512(rows[r] + at);
#pragma GCC unroll 8
  for (int r = 0; r < kLanes; r += 2) {
    b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kLanes; r += 4) {
    a[r] = _mm512_unpacklo_epi64(b[r], b[r + 2]);
    a[r + 1] = _mm512_unpackhi_epi64(b[r], b[r + 2]);
    a[r + 2] = _mm512_unpacklo_epi64(b[r + 1], b[r + 3]);
    a[r + 3] = _mm512_unpackhi_epi64(b[r + 1], b[r + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88), odd = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd);
    const __m512i even_after = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
    const __m512i odd_after = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
    turned[c] = _mm512_shuffle_i32x4(even, even_after, 0x88);
    turned[4 + c] = _mm512_shuffle_i32x4(odd, odd_after, 0x88);
    turned[8 + c] = _mm512_shuffle_i32x4(even, even_after, 0xdd);
    turned[12 + c] = _mm512_shuffle_i32x4(odd, odd_after, 0xdd);
  }
}

WITH_DOTS inline __m512bh pair_everywhere(const BFloat16* from) {
  int32_t pair;
  std::memcpy(&pair, from, sizeof pair);
  return (__m512bh)_mm512_set1_epi32(pair);
}

// An item on its way through its rows. P: vectors of 32 numbers to a head.
template <int P>
class DotRun {
 public:
  static int64_t queries_of(const Item& item, const Shape& shape) {
    return item.count * (shape.heads / shape.kv_heads);
  }

  // Of a `Room`.
  static int64_t floats(const Item& item, const Shape& shape) {
    const int64_t rows = whole(item.rows, kLanes) * kLanes;
    return queries_of(item, shape) * (rows + rows / 2 + kDim + kLanes + 1);
  }

  DotRun(const Item& item, const Shape& shape, const BFloat16* query, float* memory)
      : item_(item), shape_(shape), segment_(*item.segment), query_(query), groups_(shape.heads / shape.kv_heads),
        queries_(queries_of(item, shape)), rows_(whole(item.rows, kLanes) * kLanes) {
    scores_ = memory;
    weights_ = (BFloat16*)(scores_ + queries_ * rows_);
    sums_ = scores_ + queries_ * (rows_ + rows_ / 2);
    most_ = sums_ + queries_ * kDim;
    total_ = most_ + queries_ * kLanes;
    for (int64_t i = 0; i < queries_ * kDim; i += kLanes) store(sums_ + i, Floats{});
    for (int64_t i = 0; i < queries_ * kLanes; i += kLanes) store(most_ + i, all(kNothing));
  }

  // Of up to 16 of its rows from `row` on.
  // next: where 16 rows lie that are wanted soon.
  WITH_DOTS void score(int64_t row, const BFloat16* keys, const BFloat16* next) {
    const BFloat16* rows[kLanes];
    const int64_t count = find_rows(rows, row, keys);
    __m512i turned[P * kLanes];
    for (int p = 0; p < P; ++p) turn(turned + p * kLanes, rows, 2 * p * kLanes);
    for (int64_t n = 0; n < queries_; n += kScored) switch (queries_ - n) {
        case 1: score_some<1>(n, turned, row, count, n ? nullptr : next); break;
        case 2: score_some<2>(n, turned, row, count, n ? nullptr : next); break;
        case 3: score_some<3>(n, turned, row, count, n ? nullptr : next); break;
        default: score_some<4>(n, turned, row, count, n ? nullptr : next);
      }
  }

  // Once all rows have their scores.
  WITH_DOTS void weigh() {
    for (int64_t n = 0; n < queries_; ++n) {
      const float most = largest(load(most_ + n * kLanes));
      __m512 total = _mm512_setzero_ps();
      for (int64_t r = 0; r < rows_; r += kLanes) {
        // Where none is seen, a score that is not seen would be the largest.
        const Floats own = most > kNothing ? exponential(load(scores_ + n * rows_ + r) - most) : Floats{};
        const __m256i rounded = (__m256i)_mm512_cvtneps_pbh((__m512)own);
        _mm256_storeu_si256((__m256i*)(weights_ + n * rows_ + r), rounded);
        total = _mm512_add_ps(total, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16)));
      }
      most_[n * kLanes] = most;
      total_[n] = sum((Floats)total);
    }
  }

  // Up to 16 of its rows from `row` on, once there are weights.
  // next: as above.
  WITH_DOTS void add(int64_t row, const BFloat16* values, const BFloat16* next) {
    const BFloat16* rows[kLanes];
    find_rows(rows, row, values);
    __m512i pairs[kLanes / 2 * 2 * P];  // of two rows number by number: the first and the second 4 of each 8
    const int64_t row_size = shape_.kv_heads * kDim;
    for (int r = 0; r < kLanes / 2; ++r)
      for (int p = 0; p < P; ++p) {
        if (next) {
          __builtin_prefetch(next + 2 * r * row_size + 2 * p * kLanes);
          __builtin_prefetch(next + (2 * r + 1) * row_size + 2 * p * kLanes);
        }
        const __m512i a = _mm512_loadu_si512(rows[2 * r] + 2 * p * kLanes);
        const __m512i b = _mm512_loadu_si512(rows[2 * r + 1] + 2 * p * kLanes);
        pairs[(r * P + p) * 2] = _mm512_unpacklo_epi16(a, b);
        pairs[(r * P + p) * 2 + 1] = _mm512_unpackhi_epi16(a, b);
      }
    constexpr int most = P <= 2 ? 4 : P <= 4 ? 2 : 1;
    const BFloat16* weights = weights_ + row - item_.row;
    int64_t n = 0;
    for (; n + most <= queries_; n += most) add_some<most>(n, pairs, weights);
    if constexpr (most > 2)
      if (queries_ - n == 3) add_some<3>(n, pairs, weights), n += 3;
    if constexpr (most > 2)
      if (queries_ - n == 2) add_some<2>(n, pairs, weights), n += 2;
    if (queries_ - n == 1) add_some<1>(n, pairs, weights);
  }

  WITH_DOTS void finish(BFloat16* out, float* partial) const {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int64_t n = 0; n < queries_; ++n) {
      float* to = partial + item_.partial + n * (2 + kDim);
      if (item_.partial >= 0) to[0] = most_[n * kLanes], to[1] = total_[n];
      for (int p = 0; p < P; ++p) {
        const float* sums = sums_ + n * kDim + 2 * p * kLanes;
        const __m512 a = _mm512_loadu_ps(sums), b = _mm512_loadu_ps(sums + kLanes);
        const Floats x = (Floats)_mm512_permutex2var_ps(a, first, b);
        const Floats y = (Floats)_mm512_permutex2var_ps(a, second, b);
        if (item_.partial >= 0) {
          store(to + 2 + 2 * p * kLanes, x);
          store(to + 2 + (2 * p + 1) * kLanes, y);
        } else {
          BFloat16* own = out + (token(n) * shape_.heads + head(n)) * kDim + 2 * p * kLanes;
          store(own, x / total_[n]);
          store(own + kLanes, y / total_[n]);
        }
      }
    }
  }

 private:
  static constexpr int64_t kDim = 2 * P * kLanes;

  int64_t token(int64_t n) const { return segment_.start + item_.first + n / groups_; }
  int64_t head(int64_t n) const { return item_.head * groups_ + n % groups_; }

  // The last one again in place of those behind the end, which nobody sees. How many there are.
  int64_t find_rows(const BFloat16** rows, int64_t row, const BFloat16* of) const {
    const int64_t end = item_.row + item_.rows, count = end - row < kLanes ? end - row : kLanes;
    for (int64_t r = 0; r < kLanes; ++r) {
      const int64_t at = segment_.kv_start + row + (r < count ? r : count - 1);
      rows[r] = of + (at * shape_.kv_heads + item_.head) * kDim;
    }
    return count;
  }

  template <int Q>
  WITH_DOTS void score_some(int64_t n, const __m512i* turned, int64_t row, int64_t count, const BFloat16* next) {
    const BFloat16* query[Q];
    for (int i = 0; i < Q; ++i) query[i] = query_ + token(n + i) * shape_.query_stride + head(n + i) * kDim;
    __m512 sum[Q][4];
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i)
      sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = _mm512_setzero_ps();
    const int64_t row_size = shape_.kv_heads * kDim;
    for (int pair = 0; pair < P * kLanes; pair += 4)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        // One line with each pair: many at once, and the processor waits.
        if (next) __builtin_prefetch(next + (pair + j) / P * row_size + (pair + j) % P * 2 * kLanes);
#pragma GCC unroll 4
        for (int i = 0; i < Q; ++i)
          sum[i][j] = _mm512_dpbf16_ps(sum[i][j], (__m512bh)turned[pair + j], pair_everywhere(query[i] + 2 * (pair + j)));
      }
    for (int i = 0; i < Q; ++i) {
      const __mmask16 lanes = lanes_seen(segment_, shape_, item_.first + (n + i) / groups_, row, count);
      const __m512 all_four = _mm512_add_ps(_mm512_add_ps(sum[i][0], sum[i][1]), _mm512_add_ps(sum[i][2], sum[i][3]));
      const __m512 scores = _mm512_mask_mul_ps(_mm512_set1_ps(kNothing), lanes, all_four, _mm512_set1_ps(shape_.scaling));
      _mm512_storeu_ps(scores_ + (n + i) * rows_ + row - item_.row, scores);
      float* most = most_ + (n + i) * kLanes;
      _mm512_storeu_ps(most, _mm512_max_ps(_mm512_loadu_ps(most), scores));
    }
  }

  template <int Q>
  WITH_DOTS void add_some(int64_t n, const __m512i* pairs, const BFloat16* weights) {
    __m512 sum[Q][2 * P];
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i)
#pragma GCC unroll 16
      for (int d = 0; d < 2 * P; ++d) sum[i][d] = _mm512_loadu_ps(sums_ + (n + i) * kDim + d * kLanes);
    for (int r = 0; r < kLanes / 2; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < Q; ++i) {
        const __m512bh weight = pair_everywhere(weights + (n + i) * rows_ + 2 * r);
#pragma GCC unroll 16
        for (int d = 0; d < 2 * P; ++d)
          sum[i][d] = _mm512_dpbf16_ps(sum[i][d], (__m512bh)pairs[r * 2 * P + d], weight);
      }
#pragma GCC unroll 4
    for (int i = 0; i < Q; ++i)
#pragma GCC unroll 16
      for (int d = 0; d < 2 * P; ++d) _mm512_storeu_ps(sums_ + (n + i) * kDim + d * kLanes, sum[i][d]);
  }

  const Item& item_;
  const Shape& shape_;
  const Segment& segment_;
  const BFloat16* query_;
  int64_t groups_, queries_, rows_;        // rows: whole vectors of them
  float *scores_, *sums_, *most_, *total_;  // [queries, rows], [queries, kDim], [queries, 16], [queries]
  BFloat16* weights_;                       // [queries, rows]
};

// As `attend_bundle`.
template <int P>
void attend_bundle_dots(const Item* items, int64_t count, const Shape& shape, const BFloat16* query,
                        const BFloat16* keys, const BFloat16* values, BFloat16* out, float* partial, Room& room) {
  using Run = DotRun<P>;
  const int64_t floats = Run::floats(*items, shape);
  room.floats.resize(count * floats);
  std::vector<Run> runs;
  runs.reserve(count);
  for (int64_t i = 0; i < count; ++i) runs.emplace_back(items[i], shape, query, room.floats.data() + i * floats);
  const int64_t begin = items->row, end = begin + items->rows;
  const auto at = [&](const BFloat16* from, int64_t row, int64_t i) {
    return from + ((items->segment->kv_start + row) * shape.kv_heads + items[i].head) * shape.dim;
  };
  constexpr int64_t ahead = kAheadBlocks * kLanes;
  fetch_rows(items, count, shape, keys, begin, end);
  fetch_rows(items, count, shape, keys, begin + kLanes, end);
  for (int64_t row = begin; row < end; row += kLanes)
    for (int64_t i = 0; i < count; ++i) {
      const int64_t next = row + ahead;
      runs[i].score(row, keys, next < end ? at(keys, next, i) : at(values, begin + next - end, i));
    }
  for (Run& run : runs) run.weigh();
  for (int64_t row = begin; row < end; row += kLanes)
    for (int64_t i = 0; i < count; ++i)
      runs[i].add(row, values, row + ahead < end ? at(values, row + ahead, i) : nullptr);
  for (const Run& run : runs) run.finish(out, partial);
}

}  // namespace

#endif

// Whole decoder layers for the few rows of a decoding step, in one region of threads.
//
// By itself each part of a layer takes a fraction of what it takes to call it: here threads go from part to
// part, and meet where one part reads what others wrote.

#pragma once

#include "attention.h"
#include "parts.h"
#include "products.h"

namespace {

struct Layer {
  const float *first_norm, *second_norm;  // [size]: of what goes into attention and feed-forward block
  Matrix qkv, output, gate_up, down;
  int64_t size, heads, kv_heads, dim, window;  // window: 0: all
  float first_eps, second_eps, scaling;
};

// What all layers of a step share.
struct Step {
  const BFloat16 *cos, *sin;  // [tokens, dim], the first half of the sines negated
  const int64_t *rows, *positions;
  const Segment* segments;
  int64_t tokens, count;
};

// The KV memory's rows of some layers, one behind the other.
struct Memory {
  BFloat16 *keys, *values;  // of the first layer
  int64_t stride;           // numbers from layer to layer
};

// The longest rows that a layer multiplies with weights of 8 bits.
inline int64_t longest_coded(const Layer& layer) {
  int64_t most = 0;
  for (const Matrix* matrix : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
    if (matrix->scales && matrix->size > most) most = matrix->size;
  return most;
}

// Some layers behind each other, alike in all sizes and in which weights have 8 bits. `out` may not be `hidden`.
// 1 for a size of head that is not built, else 0.
inline int run_layers(BFloat16* out, const BFloat16* hidden, const Memory& memory, const Layer* layers, int64_t count,
                      const Step& step, int threads) {
  const Layer& first = layers[0];
  const AttendBundle<BFloat16> attend_some = attend_bundle_for<BFloat16>(first.dim);
  if (!attend_some) return 1;
  const Heads heads{first.heads, first.kv_heads, first.dim};
  const Shape shape{first.heads, first.kv_heads, first.dim, heads.width(), first.window, step.positions, first.scaling};
  const int64_t tokens = step.tokens, size = first.size, width = heads.width();
  const int64_t attended_size = first.heads * first.dim, inner_size = first.gate_up.outputs / 2;
  AttentionPlan plan = plan_attention(step.segments, step.count, shape, threads);
  const bool own_norms = tokens <= kOwnRows;
  const std::unique_ptr<BFloat16[]> scratch(new BFloat16[tokens * (width + attended_size + 3 * size + inner_size)]);
  BFloat16* const qkv = scratch.get();
  BFloat16* const attended = qkv + tokens * width;
  BFloat16* const middle = attended + tokens * attended_size;
  BFloat16* const between = middle + tokens * size;
  BFloat16* const shared_norms = between + tokens * size;
  BFloat16* const inner = shared_norms + tokens * size;
  Products products(tokens, longest_coded(first));
#pragma omp parallel num_threads(threads)
  {
    const std::unique_ptr<BFloat16[]> own(own_norms ? new BFloat16[tokens * size] : nullptr);
    Products::Own own_products(products);
    Room room;
    BFloat16* const normed = own_norms ? own.get() : shared_norms;
    const auto norm = [&](const BFloat16* x, const float* weight, float eps) {
      if (own_norms) {
        for (int64_t row = 0; row < tokens; ++row) norm_row(normed + row * size, x + row * size, weight, size, eps);
        return;
      }
#pragma omp for schedule(static)
      for (int64_t row = 0; row < tokens; ++row) norm_row(normed + row * size, x + row * size, weight, size, eps);
    };
    for (int64_t i = 0; i < count; ++i) {
      const Layer& layer = layers[i];
      const BFloat16* const in = i ? between : hidden;
      BFloat16 *const keys = memory.keys + i * memory.stride, *const values = memory.values + i * memory.stride;
      norm(in, layer.first_norm, layer.first_eps);
      own_products.multiply(qkv, normed, layer.qkv, nullptr);
#pragma omp for schedule(static)
      for (int64_t token = 0; token < tokens; ++token) {
        const int64_t at = token * first.dim;
        rotate_token(qkv + token * width, step.cos + at, step.sin + at, step.rows[token], keys, values, heads);
      }
      attend_shared<BFloat16>(plan, attend_some, shape, qkv, keys, values, attended, room);
      own_products.multiply(middle, attended, layer.output, in);
      norm(middle, layer.second_norm, layer.second_eps);
      own_products.multiply_gated(inner, normed, layer.gate_up);
      own_products.multiply(i + 1 < count ? between : out, inner, layer.down, middle);
    }
  }
  return 0;
}

}  // namespace

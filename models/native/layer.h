// A whole decoder layer for the few rows of a decoding step, in one region of threads.
//
// By itself each part of a layer takes a fraction of what it takes to call it: here threads go from part to
// part, and meet where one part reads what others wrote.

#pragma once

#include <memory>

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

constexpr int64_t kOwnNorms = 24;  // rows: a thread norms as many for itself sooner than it waits for others

// In turn: `out` may not be `hidden`. 1 for a size of head that is not built, else 0.
inline int run_layer(BFloat16* out, const BFloat16* hidden, BFloat16* keys, BFloat16* values, const Layer& layer,
                     const Step& step, int threads) {
  const AttendBundle<BFloat16> attend_some = attend_bundle_for<BFloat16>(layer.dim);
  if (!attend_some) return 1;
  const Heads heads{layer.heads, layer.kv_heads, layer.dim};
  const int64_t tokens = step.tokens, size = layer.size, attended_size = layer.heads * layer.dim;
  const int64_t inner_size = layer.gate_up.outputs / 2;
  const Shape shape{layer.heads, layer.kv_heads, layer.dim, heads.width(), layer.window, step.positions, layer.scaling};
  AttentionPlan plan = plan_attention(step.segments, step.count, shape, threads);
  const bool own_norms = tokens <= kOwnNorms;
  const std::unique_ptr<BFloat16[]> memory(new BFloat16[tokens * (heads.width() + attended_size + 2 * size + inner_size)]);
  BFloat16* const qkv = memory.get();
  BFloat16* const attended = qkv + tokens * heads.width();
  BFloat16* const middle = attended + tokens * attended_size;
  BFloat16* const shared_norms = middle + tokens * size;
  BFloat16* const inner = shared_norms + tokens * size;
#pragma omp parallel num_threads(threads)
  {
    const std::unique_ptr<BFloat16[]> own(own_norms ? new BFloat16[tokens * size] : nullptr);
    BFloat16* const normed = own_norms ? own.get() : shared_norms;
    auto norm = [&](const BFloat16* x, const float* weight, float eps) {
      if (own_norms) {
        for (int64_t row = 0; row < tokens; ++row) norm_row(normed + row * size, x + row * size, weight, size, eps);
        return;
      }
#pragma omp for schedule(static)
      for (int64_t row = 0; row < tokens; ++row) norm_row(normed + row * size, x + row * size, weight, size, eps);
    };
    norm(hidden, layer.first_norm, layer.first_eps);
    multiply_shared(qkv, normed, tokens, layer.qkv, nullptr);
#pragma omp for schedule(static)
    for (int64_t token = 0; token < tokens; ++token) {
      const int64_t at = token * layer.dim;
      rotate_token(qkv + token * heads.width(), step.cos + at, step.sin + at, step.rows[token], keys, values, heads);
    }
    attend_shared<BFloat16>(plan, attend_some, shape, qkv, keys, values, attended);
    multiply_shared(middle, attended, tokens, layer.output, hidden);
    norm(middle, layer.second_norm, layer.second_eps);
    multiply_gated_shared(inner, normed, tokens, layer.gate_up);
    multiply_shared(out, inner, tokens, layer.down, middle);
  }
  return 0;
}

}  // namespace

// Kernels of a decoder layer for CPUs, over the KV memory's rows where they lie.
//
// Plain C functions on raw memory, called through ctypes: no header of Python's or torch's is needed to build
// them. Threads are torch's own: OpenMP is compiled in but not linked, so that its functions are those of the
// library that torch has loaded, whose threads wait on the cores already. `library.py` binds them and
// says what they take.
//
// Vectors are the compiler's, 16 floats at a time, in whatever registers the target has. Numbers are float32
// inside, of either storage type, and rounded once on their way out.

#include "attention.h"
#include "layer.h"
#include "parts.h"
#include "products.h"

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
           tokens, Heads{heads, kv_heads, dim}, threads);
  else
    rotate((float*)qkv, (const float*)cos, (const float*)sin, rows, (float*)keys, (float*)values, tokens,
           Heads{heads, kv_heads, dim}, threads);
}

// out: [tokens, heads, dim]; query: heads of a token side by side, tokens `query_stride` apart; segments: [count, 6];
// positions: [tokens]; keys, values as above. 0, or 1 for a size of head that is not built.
int resispec_attend(void* out, const void* query, const void* keys, const void* values, const void* segments,
                    int64_t count, const int64_t* positions, int64_t heads, int64_t kv_heads, int64_t dim,
                    int64_t query_stride, int64_t window, float scaling, int kind, int threads) {
  const Shape shape{heads, kv_heads, dim, query_stride, window, positions, scaling};
  const Segment* all_segments = (const Segment*)segments;
  return kind ? attend<BFloat16>(all_segments, count, shape, query, keys, values, out, threads)
              : attend<float>(all_segments, count, shape, query, keys, values, out, threads);
}

// Copies rows `source` [count] of each of `layers` pools, `pool_stride` bytes apart, to rows `destination` [count];
// every source is read before a destination is written. A row has `row_size` bytes.
void resispec_move_rows(void* pools, int64_t layers, int64_t pool_stride, int64_t row_size, const int64_t* source,
                        const int64_t* destination, int64_t count, int threads) {
  move_rows((char*)pools, layers, pool_stride, row_size, source, destination, count, threads);
}

// Whether this processor has what the following take.
int resispec_has_products() { return has_products(); }

// out: [rows, outputs]; x: [rows, size]; matrix: a `Matrix` of products.h.
void resispec_multiply(void* out, const void* x, const void* matrix, int64_t rows, int threads) {
  const Matrix& of = *(const Matrix*)matrix;
  Products products(rows, of.scales ? of.size : 0);
#pragma omp parallel num_threads(threads) if (of.size * of.outputs > kWorth)
  Products::Own(products).multiply((BFloat16*)out, (const BFloat16*)x, of, nullptr);
}

// out, hidden: [tokens, size], two places; keys, values: of the first layer, as above, the others' `stride` numbers on.
int resispec_layers(void* out, const void* hidden, void* keys, void* values, int64_t stride, const void* layers,
                    int64_t count, const void* step, int threads) {
  const Memory memory{(BFloat16*)keys, (BFloat16*)values, stride};
  return run_layers((BFloat16*)out, (const BFloat16*)hidden, memory, (const Layer*)layers, count, *(const Step*)step,
                    threads);
}
}

// What kernels for CPUs are written in: vectors of 16 floats, in whatever registers the target has.
//
// Vectors are the compiler's. OpenMP is compiled in but not linked: see kernels.cpp.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kLanes = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

struct BFloat16 {
  uint16_t bits;
};

inline Floats all(float x) { return Floats{} + x; }

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline Floats load(const BFloat16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return (Floats)(__builtin_convertvector(halves, Bits) << 16);
}

inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

inline void store(BFloat16* to, Floats x) {
  Bits bits = (Bits)x;
  Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // to the nearest, ties to even
  rounded = x == x ? rounded : Bits{} + 0x7fc0u;
  Halves halves = __builtin_convertvector(rounded, Halves);
  std::memcpy(to, &halves, sizeof halves);
}

template <typename T>
inline Floats load_some(const T* from, int64_t count) {
  T some[kLanes] = {};
  std::memcpy(some, from, count * sizeof(T));
  return load(some);
}

template <typename T>
inline void store_some(T* to, Floats x, int64_t count) {
  T some[kLanes];
  store(some, x);
  std::memcpy(to, some, count * sizeof(T));
}

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

inline float sum(Floats x) {
  x += SHUFFLE(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  x += SHUFFLE(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  x += SHUFFLE(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  x += SHUFFLE(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  return x[0];
}

inline float largest(Floats x) {
  x = larger(x, SHUFFLE(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  x = larger(x, SHUFFLE(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  x = larger(x, SHUFFLE(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  x = larger(x, SHUFFLE(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
  return x[0];
}

// The sum of each of 16 vectors, as one: halves, quarters, ... of two vectors are added side by side.
inline Floats sums(Floats* x) {
  for (int i = 0; i < 8; ++i)
    x[i] = SHUFFLE(x[i], x[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           SHUFFLE(x[i], x[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  for (int i = 0; i < 4; ++i)
    x[i] = SHUFFLE(x[i], x[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
           SHUFFLE(x[i], x[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int i = 0; i < 2; ++i)
    x[i] = SHUFFLE(x[i], x[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
           SHUFFLE(x[i], x[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  return SHUFFLE(x[0], x[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
         SHUFFLE(x[0], x[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
}

// e^x for x <= 88: 2^n e^r with |r| <= ln(2) / 2 and a polynomial for e^r, to about one unit in the last place.
inline Floats exponential(Floats x) {
  Floats bounded = larger(x, all(-87.0f));
  Floats n = bounded * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the sum is rounded to a whole number
  n -= 12582912.0f;
  Floats r = bounded - n * 0.693359375f + n * 2.12194440e-4f;  // ln 2 in two parts
  Floats e = r * 1.9875691500e-4f + 1.3981999507e-3f;
  e = e * r + 8.3334519073e-3f;
  e = e * r + 4.1665795894e-2f;
  e = e * r + 1.6666665459e-1f;
  e = e * r + 5.0000001201e-1f;
  e = e * (r * r) + r + 1.0f;
  Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
  return x < -87.0f ? Floats{} : e * (Floats)power;
}

inline int64_t whole(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int64_t kWorth = 1 << 15;  // numbers: fewer are not worth a second thread

}  // namespace

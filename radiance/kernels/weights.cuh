// What reads the head's own weight shares: loads and exact decoding of four element types, and a logit's rounding.
//
// Compile-time: X_TYPE (0 bf16, 1 fp16, 2 fp32), W_TYPE (the same and 3: e4m3 with a row scale), VECTOR (elements a load:
// 16 bytes of weight, or 1 where a row is not aligned), ROUND (0: compare and return fp32 sums; 1: rounded to bf16, 2: to
// fp16, as a head of that type would return them).
#pragma once
#include "common.cuh"

__device__ __forceinline__ float e4m3_to_float(u32 b) {
  // sign, exponent and mantissa moved into place; 2^120 makes up for the exponents' biases, denormals included
  return __uint_as_float(((b & 0x80u) << 24) | ((b & 0x7fu) << 20)) * 1.329227995784916e36f;
}

template <int TYPE>
__device__ __forceinline__ float element(const u32* words, int i) {
  if (TYPE == 0) return i % 2 ? high_bf16(words[i / 2]) : low_bf16(words[i / 2]);
  if (TYPE == 1) return half_to_float((u16)(words[i / 2] >> (i % 2 * 16)));
  if (TYPE == 2) return __uint_as_float(words[i]);
  return e4m3_to_float(words[i / 4] >> (i % 4 * 8));
}
template <int TYPE> struct Bytes { static constexpr int value = TYPE == 2 ? 4 : TYPE == 3 ? 1 : 2; };

// COUNT elements from element i of p, as words
template <int TYPE, int COUNT>
__device__ __forceinline__ void load(const void* p, long long i, u32* words) {
  constexpr int SIZE = COUNT * Bytes<TYPE>::value;
  const u8* at = (const u8*)p + i * Bytes<TYPE>::value;
  if (SIZE >= 16) {
#pragma unroll
    for (int v = 0; v < SIZE / 16; v++) {
      uint4 q = __ldg((const uint4*)at + v);
      words[4 * v] = q.x, words[4 * v + 1] = q.y, words[4 * v + 2] = q.z, words[4 * v + 3] = q.w;
    }
  } else if (SIZE == 8) {
    uint2 q = __ldg((const uint2*)at);
    words[0] = q.x, words[1] = q.y;
  } else if (SIZE == 4) {
    words[0] = __ldg((const u32*)at);
  } else if (SIZE == 2) {
    words[0] = __ldg((const u16*)at);
  } else {
    words[0] = __ldg(at);
  }
}

__device__ __forceinline__ float rounded(float v) {
#if ROUND == 1
  return low_bf16(to_bf16_pair(v, 0.f));
#elif ROUND == 2
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
  return half_to_float(h);
#else
  return v;
#endif
}

constexpr int W_WORDS = VECTOR == 1 ? 1 : 4;
constexpr int X_WORDS = (VECTOR * Bytes<X_TYPE>::value + 3) / 4;

// A logit and its row as one number that sorts by (value, lower id first); NaN above all. Never 0.
__device__ __forceinline__ u64 entry_of(float value, u32 id) { return ((u64)key_of_float(value) << 32) | (0xffffffffu - id); }
__device__ __forceinline__ u32 id_of(u64 entry) { return 0xffffffffu - (u32)entry; }

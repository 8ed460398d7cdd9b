// Exact logits of the candidates, and the best of them. A block scores ROWS_PER_BLOCK candidates of one draft row against
// the head's own weight in fp32; the block that finishes a draft row last answers for it.
//
// Compile-time: K, X_TYPE (0 bf16, 1 fp16, 2 fp32), W_TYPE (the same and 3: e4m3 with a row scale), VECTOR (elements a
// load: 16 bytes of weight, or 1 where a row is not aligned), ROWS_PER_BLOCK, ROUND (0: compare and return fp32 sums;
// 1: rounded to bf16, 2: to fp16, as a head of that type would return them).
#include "common.cuh"

constexpr int THREADS = 128;
constexpr int ROUNDS = (K + THREADS * VECTOR - 1) / (THREADS * VECTOR);
constexpr bool KEEPS_X = ROUNDS <= 6;  // then x waits in registers, fetched before the candidates are known
constexpr int UNROLL = KEEPS_X ? ROUNDS : ROWS_PER_BLOCK == 1 ? 8 : 2;

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

// ids [m, r] with -1 for none; out_ids (may be null) the same as int64; out_values (may be null) fp32 [m, r];
// best_ids (may be null) int64 [m], best_values fp32 [m]; counters (may be null): calls, rows, rescued rows.
extern "C" __global__ void __launch_bounds__(THREADS) rerank(
    const void* weight, long long w_stride, const float* scale, const void* x, long long x_stride, const int* ids, int r,
    long long* out_ids, float* out_values, u64* best, u32* done, long long* best_ids, float* best_values, u64* counters) {
  __shared__ float partial[THREADS / 32][ROWS_PER_BLOCK];
  let_successors_start();
  long long row = blockIdx.y;
  int first = blockIdx.x * ROWS_PER_BLOCK, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u32 kept[KEEPS_X ? ROUNDS : 1][X_WORDS];
  if (KEEPS_X) {  // x is older than rotate(), which waited for it
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
      int i = (round * THREADS + threadIdx.x) * VECTOR;
      if (i < K) load<X_TYPE, VECTOR>(x, row * x_stride + i, kept[round]);
    }
  }
  wait_for_predecessors();
  ids += row * r;
  int id[ROWS_PER_BLOCK];
  float sum[ROWS_PER_BLOCK];
#pragma unroll
  for (int c = 0; c < ROWS_PER_BLOCK; c++) {
    id[c] = first + c < r ? ids[first + c] : -1;
    sum[c] = 0.f;
  }
#pragma unroll UNROLL
  for (int round = 0; round < ROUNDS; round++) {
    int i = (round * THREADS + threadIdx.x) * VECTOR;
    if (i < K) {
      u32 now[X_WORDS];
      if (!KEEPS_X) load<X_TYPE, VECTOR>(x, row * x_stride + i, now);
      const u32* xw = KEEPS_X ? kept[KEEPS_X ? round : 0] : now;
#pragma unroll
      for (int c = 0; c < ROWS_PER_BLOCK; c++) {
        u32 ww[W_WORDS];
        load<W_TYPE, VECTOR>(weight, max(id[c], 0) * w_stride + i, ww);
#pragma unroll
        for (int e = 0; e < VECTOR; e++) sum[c] += element<W_TYPE>(ww, e) * element<X_TYPE>(xw, e);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < ROWS_PER_BLOCK; c++) {
#pragma unroll
    for (int o = 16; o; o >>= 1) sum[c] += __shfl_xor_sync(~0u, sum[c], o);
    if (lane == 0) partial[warp][c] = sum[c];
  }
  __syncthreads();
  if (warp != 0) return;
  u64 top = 0;
  if (lane < ROWS_PER_BLOCK && first + lane < r) {
    int mine = ids[first + lane];
    float v = partial[0][lane] + partial[1][lane] + partial[2][lane] + partial[3][lane];
    if (W_TYPE == 3) v *= scale[max(mine, 0)];
    v = mine < 0 ? __int_as_float(0xff800000) : rounded(v);
    if (out_values) out_values[row * r + first + lane] = v;
    if (out_ids) out_ids[row * r + first + lane] = mine;
    if (mine >= 0) top = ((u64)key_of_float(v) << 32) | (0xffffffffu - (u32)mine);
  }
#pragma unroll
  for (int o = ROWS_PER_BLOCK / 2; o; o >>= 1) {
    u64 other = __shfl_xor_sync(~0u, top, o);
    top = other > top ? other : top;
  }
  if (lane != 0) return;
  if (top) atomicMax(best + row, top);
  __threadfence();
  if (atomicAdd(done + row, 1u) != gridDim.x - 1) return;
  __threadfence();
  top = atomicMax(best + row, 0ull);
  long long winner = 0xffffffffu - (u32)top;
  if (best_ids) {
    best_ids[row] = winner;
    best_values[row] = float_of_key((u32)(top >> 32));
  }
  if (counters) {
    if (row == 0) atomicAdd(counters, 1ull);
    atomicAdd(counters + 1, 1ull);
    if (winner != ids[0]) atomicAdd(counters + 2, 1ull);
  }
}

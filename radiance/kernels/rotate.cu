// x [m, K] -> int8 levels of the rotated x, in the order the coarse kernel wants. One block a draft row.
//
// y = norm * (H_a kron H_b) (x * x_scale): a fast Walsh-Hadamard transform along b in shared memory, then +-1 sums along
// a. Then step = max|y| / 127 and the levels; a row that is zero or not finite gets levels 0, so that its coarse values
// are all 0 and its candidates the lowest ids, whatever it held.
//
// Compile-time: K, A, B, DENSE (0: no dense factor), NT (8-row tiles of a coarse pass), TENSOR (1: wgmma order),
// X_TYPE (0 bf16, 1 fp16, 2 fp32), THREADS, those of ledger.cuh.
// call (may be null): stamped, the call begins here (ledger.cuh).
#include "ledger.cuh"

constexpr int BLOCKS = (K + 127) / 128;
constexpr int ROWS = NT * 8;
constexpr int WARPS = THREADS / 32;
constexpr int LOADS = (K + THREADS - 1) / THREADS;  // all in flight at once: one trip to memory
constexpr int A4 = (A + 3) / 4;
constexpr int COLUMNS = B >= 2 ? 2 : 1;             // of the dense factor's work a thread does at a time, four rows each
constexpr int UNROLL = A <= 32 ? A : 4;
constexpr bool TABLE_FITS = DENSE && A <= 64;       // in shared memory; larger ones are read through L1

// Index with one word of padding for every 8: passes of stride 1 and 8 touch every bank once.
__device__ __forceinline__ constexpr int padded(int i) { return i + (i >> 3); }

__device__ __forceinline__ float load_x(const void* x, long long i) {
#if X_TYPE == 0
  return __uint_as_float((u32)((const u16*)x)[i] << 16);
#elif X_TYPE == 1
  return half_to_float(((const u16*)x)[i]);
#else
  return ((const float*)x)[i];
#endif
}

// LOG butterflies at once: elements first + j * STRIDE, j < 2^LOG, of one row of b.
template <int LOG, int STRIDE>
__device__ __forceinline__ void butterflies(float* y) {
  constexpr int N = 1 << LOG;
#pragma unroll
  for (int round = 0; round < (K / N + THREADS - 1) / THREADS; round++) {
    int item = round * THREADS + threadIdx.x;
    if (item < K / N) {
      int first = (item / STRIDE) * STRIDE * N + item % STRIDE;
      float v[N];
#pragma unroll
      for (int j = 0; j < N; j++) v[j] = y[padded(first + j * STRIDE)];
#pragma unroll
      for (int half = 1; half < N; half *= 2)
#pragma unroll
        for (int j = 0; j < N; j++)
          if (!(j & half)) {
            float low = v[j], high = v[j + half];
            v[j] = low + high;
            v[j + half] = low - high;
          }
#pragma unroll
      for (int j = 0; j < N; j++) y[padded(first + j * STRIDE)] = v[j];
    }
  }
  __syncthreads();
}
template <int STRIDE>
__device__ __forceinline__ void transform(float* y) {
  if constexpr (STRIDE * 8 <= B) {
    butterflies<3, STRIDE>(y);
    transform<STRIDE * 8>(y);
  } else if constexpr (STRIDE * 4 == B) {
    butterflies<2, STRIDE>(y);
  } else if constexpr (STRIDE * 2 == B) {
    butterflies<1, STRIDE>(y);
  }
}

// table [A][A4]: the dense factor transposed, rows padded to four; out[i][j] = sum_l table[l][i] y[l][j].
__device__ __forceinline__ void dense(const float* y, float* out, const float4* table) {
  constexpr int HALF = B / COLUMNS;
  for (int item = threadIdx.x; item < A4 * HALF; item += THREADS) {
    int quad = item / HALF, j = item % HALF;
    float s[COLUMNS][4] = {};
#pragma unroll UNROLL
    for (int l = 0; l < A; l++) {
      float4 h = table[l * A4 + quad];
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) {
        float v = y[padded(l * B + c * HALF + j)];
        s[c][0] += h.x * v;
        s[c][1] += h.y * v;
        s[c][2] += h.z * v;
        s[c][3] += h.w * v;
      }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (A % 4 == 0 || quad * 4 + i < A) out[padded((quad * 4 + i) * B + c * HALF + j)] = s[c][i];
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) rotate(
    const void* x, long long x_stride, int m, const float* x_scale, const float4* table, float norm,
    u32* levels, float* steps, u64* call) {
  extern __shared__ float4 shared[];
  float4* near_table = shared;                                        // [A][A4] if it fits
  float* y = (float*)(shared + (TABLE_FITS ? A * A4 : 0));
  float* z = y + padded(K) + 1;
  __shared__ u32 peaks[WARPS];
  let_successors_start();
  if (threadIdx.x == 0 && blockIdx.x == 0 && call) open_call(call);
  int row = blockIdx.x, pass = row / ROWS, local = row % ROWS;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u32 peak_bits = 0;
  if (row < m) {
    float v[LOADS], scale[LOADS];
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
      int i = j * THREADS + threadIdx.x;
      if (i < K) v[j] = load_x(x, row * x_stride + i), scale[j] = x_scale[i];
    }
    if (TABLE_FITS)
      for (int i = threadIdx.x; i < A * A4; i += THREADS) near_table[i] = table[i];
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
      int i = j * THREADS + threadIdx.x;
      if (i < K) y[padded(i)] = v[j] * scale[j];
    }
    __syncthreads();
    transform<1>(y);
    if (DENSE) {
      if (TABLE_FITS) dense(y, z, near_table);
      else dense(y, z, table);
      y = z;
    }
    // |y| as bits: they sort as the numbers do, and infinity and NaN above them all
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
      int i = j * THREADS + threadIdx.x;
      if (i < K) peak_bits = max(peak_bits, __float_as_uint(y[padded(i)]) & 0x7fffffffu);
    }
    peak_bits = __reduce_max_sync(~0u, peak_bits);
    if (lane == 0) peaks[warp] = peak_bits;
    __syncthreads();
    peak_bits = __reduce_max_sync(~0u, peaks[lane % WARPS]);
  }
  float step = peak_bits < 0x7f800000u ? __uint_as_float(peak_bits) * norm / 127.f : 0.f;
  bool is_zero = !(step >= 1e-30f);  // below this 1 / step overflows: such a row counts as zero
  float per_step = is_zero ? 0.f : norm / step;
  if (threadIdx.x == 0) steps[row] = is_zero ? 0.f : step;
  levels += (long long)pass * BLOCKS * NT * 256;
#pragma unroll
  for (int round = 0; round < (BLOCKS + WARPS - 1) / WARPS; round++) {
    int block = round * WARPS + warp;
    if (block >= BLOCKS) break;
    int k0 = block * 128 + lane * 4;
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int q = 0;
      if (!is_zero && (K % 128 == 0 || k0 + i < K)) q = max(-127, min(127, __float2int_rn(y[padded(k0 + i)] * per_step)));
      word |= (u32)(q & 255) << (8 * i);
    }
    int tile = block * NT + local / 8, in_tile = local % 8;
#if TENSOR
    levels[tile * 256 + (lane / 4) * 32 + in_tile * 4 + lane % 4] = word;
#else
    int kk = lane / 8, half = lane / 4 % 2;
    levels[(tile * 2 + kk / 2) * 128 + (in_tile * 4 + lane % 4) * 4 + (kk % 2) * 2 + half] = word;
#endif
  }
}

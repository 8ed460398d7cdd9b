// Exact logits of the candidates, and the best of them. A block scores ROWS_PER_BLOCK candidates of one draft row against
// the head's own weight in fp32; the block that finishes a draft row last answers for it.
//
// Compile-time: K, ROWS_PER_BLOCK, those of weights.cuh and of ledger.cuh.
#include "ledger.cuh"
#include "weights.cuh"

constexpr int THREADS = 128;
constexpr int ROUNDS = (K + THREADS * VECTOR - 1) / (THREADS * VECTOR);
constexpr bool KEEPS_X = ROUNDS <= 6;  // then x waits in registers, fetched before the candidates are known
constexpr int UNROLL = KEEPS_X ? ROUNDS : ROWS_PER_BLOCK == 1 ? 8 : 2;

// ids [m, r] with -1 for none; out_ids (may be null) the same as int64; out_values (may be null) fp32 [m, r];
// best_ids (may be null) int64 [m], best_values fp32 [m]. counters (may be null): the head's ledger; `call` then is what
// rotate() opened, or zeros; turns (may be null) counts calls for check.cu.
extern "C" __global__ void __launch_bounds__(THREADS) rerank(
    const void* weight, long long w_stride, const float* scale, const void* x, long long x_stride, const int* ids, int r,
    long long* out_ids, float* out_values, u64* best, u32* done, long long* best_ids, float* best_values, u64* counters,
    u64* call, u64* turns) {
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
    if (mine >= 0) top = entry_of(v, mine);
  }
#pragma unroll
  for (int o = ROWS_PER_BLOCK / 2; o; o >>= 1) {
    u64 other = __shfl_xor_sync(~0u, top, o);
    top = other > top ? other : top;
  }
  if (lane != 0) return;
  u64 begin = counters ? call[0] : 0;
  if (top) atomicMax(best + row, top);
  __threadfence();
  if (atomicAdd(done + row, 1u) != gridDim.x - 1) return;
  __threadfence();
  u64 before = counters ? count_row(call) : 0;
  top = atomicMax(best + row, 0ull);
  long long winner = id_of(top);
  if (best_ids) {
    best_ids[row] = winner;
    best_values[row] = float_of_key((u32)(top >> 32));
  }
  if (counters) {
    if (winner != ids[0]) atomicAdd(counters + RESCUED, 1ull);
    if (is_last_row(before)) close_call(counters, turns, begin);
  }
}

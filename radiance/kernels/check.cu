// A sampled check of what was answered: for one draft row of 1 in `every` calls, the exact best of all n rows of the head's
// own weight. Counts rows checked, rows with another winner, and rows whose exact winner was no candidate. It follows every
// call, in graphs too, and returns at once when the call is not sampled; when it is, it reads the whole head.
//
// It shares no code with rerank.cu but the decoding: a warp a row, another order of the fp32 sum.
//
// Compile-time: K, those of weights.cuh, CHECKED.
#include "weights.cuh"

constexpr int THREADS = 512, WARPS = THREADS / 32;

// state: {calls so far (rerank counts), best entry, blocks done}; the last two are 0 between launches. best [m]: the entries
// that rerank answered with. ids [m, r]. vocab (may be null) [rows]: the row of the weight behind each row.
extern "C" __global__ void __launch_bounds__(THREADS) check(
    const void* weight, long long w_stride, const float* scale, const void* x, long long x_stride, const int* vocab, int rows,
    int m, const int* ids, int r, const u64* best, u64* state, u64 every, u64* counters) {
  extern __shared__ float turned[];  // x of the row as fp32 [K]
  __shared__ u64 tops[WARPS];
  __shared__ bool is_last;
  let_successors_start();
  wait_for_predecessors();
  u64 turn = state[0];
  if (turn % every) return;
  long long row = turn / every % m;
  for (int i = threadIdx.x; i < K; i += THREADS) {
    u32 word;
    load<X_TYPE, 1>(x, row * x_stride + i, &word);
    turned[i] = element<X_TYPE>(&word, 0);
  }
  __syncthreads();
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u64 top = 0;
  for (int at = blockIdx.x * WARPS + warp; at < rows; at += gridDim.x * WARPS) {
    int token = vocab ? vocab[at] : at;
    float sum = 0.f;
#pragma unroll 4
    for (int i = lane * VECTOR; i < K; i += 32 * VECTOR) {
      u32 words[W_WORDS];
      load<W_TYPE, VECTOR>(weight, token * w_stride + i, words);
#pragma unroll
      for (int e = 0; e < VECTOR; e++) sum += element<W_TYPE>(words, e) * turned[i + e];
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (W_TYPE == 3) sum *= scale[token];
    u64 entry = entry_of(rounded(sum), token);
    top = entry > top ? entry : top;
  }
  if (lane == 0) tops[warp] = top;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < WARPS; w++) top = tops[w] > top ? tops[w] : top;
    atomicMax(state + 1, top);
    __threadfence();
    is_last = atomicAdd(state + 2, 1ull) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!is_last) return;
  u32 truth = id_of(atomicMax(state + 1, 0ull));
  bool is_candidate = false;
  for (int i = threadIdx.x; i < r; i += THREADS) is_candidate |= ids[row * r + i] == (int)truth;
  is_candidate = __syncthreads_or(is_candidate);
  if (threadIdx.x != 0) return;
  state[1] = 0;
  state[2] = 0;
  atomicAdd(counters + CHECKED, 1ull);
  if (id_of(best[row]) != truth) atomicAdd(counters + CHECKED + 1, 1ull);
  if (!is_candidate) atomicAdd(counters + CHECKED + 2, 1ull);
}

// The exact top r of each draft row by (coarse value descending, id ascending). One block a row, no full row is read.
//
// All of the r best tokens lie in the r blocks (16-row tiles) with the greatest maxima, ties among blocks to the lowest:
// a token equal to the r-th value in a later tied block is preceded by one token in each earlier tied block. So: the r-th
// greatest maximum by bisection over registers, the r blocks in ascending order, their 16 r tokens,
// of those the ones not below the threshold, and their ranks by counting.
//
// Compile-time: PER_THREAD (maxima a thread holds, a multiple of 8; 1024 threads).
#include "common.cuh"

constexpr int THREADS = 1024, WARPS = 32, TILE = 16;

// Sum over the block; `slot` alternates so that one barrier a call is enough.
__device__ __forceinline__ u32 block_sum(u32 v, u32 (*partial)[WARPS], int slot) {
  u32 warp_sum = __reduce_add_sync(~0u, v);
  if ((threadIdx.x & 31) == 0) partial[slot][threadIdx.x >> 5] = warp_sum;
  __syncthreads();
  return __reduce_add_sync(~0u, partial[slot][threadIdx.x & 31]);
}

__device__ __forceinline__ u32 block_max(u32 v, u32* partial) {
  u32 warp_max = __reduce_max_sync(~0u, v);
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = warp_max;
  __syncthreads();
  return __reduce_max_sync(~0u, partial[threadIdx.x & 31]);
}

// Exclusive prefix sum over the block; `total` is the whole sum. Two barriers.
__device__ __forceinline__ u32 block_prefix(u32 v, u32* partial, u32& total) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u32 inclusive = v;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    u32 up = __shfl_up_sync(~0u, inclusive, o);
    if (lane >= o) inclusive += up;
  }
  if (lane == 31) partial[warp] = inclusive;
  __syncthreads();
  u32 other = partial[lane];
  total = __reduce_add_sync(~0u, other);
  u32 before = __reduce_add_sync(~0u, lane < warp ? other : 0u);
  __syncthreads();
  return before + inclusive - v;
}

// values: u16 [pass][tile][row of the pass][8][2], pairs (token, token + 8). maxima: keys u16 [row][maxima_stride].
extern "C" __global__ void __launch_bounds__(THREADS, 1) select_top(
    const u16* values, const u16* maxima, int maxima_stride, int tiles, int pass_rows, int n_valid, int r,
    int* ids, u64* best, u32* done) {
  extern __shared__ uint4 shared[];
  int* chosen = (int*)shared;                                    // [r] tiles, ascending
  u32* list = (u32*)(shared + (r + 3) / 4);                      // [16 r] key << 16 | 0xffff - place
  __shared__ u32 partial[2][WARPS];
  __shared__ u32 listed;
  let_successors_start();
  wait_for_predecessors();
  int row = blockIdx.x, local = row % pass_rows;
  values += (long long)(row / pass_rows) * tiles * pass_rows * TILE;
  maxima += (long long)row * maxima_stride;
  ids += (long long)row * r;
  int valid_tiles = (n_valid + TILE - 1) / TILE;
  int wanted = min(r, valid_tiles);
  if (threadIdx.x == 0) {
    listed = 0;
    best[row] = 0;
    done[row] = 0;
  }

  u32 key[PER_THREAD];
  int first = threadIdx.x * PER_THREAD;
#pragma unroll
  for (int v = 0; v < PER_THREAD; v += 8) {
    uint4 eight = {0, 0, 0, 0};
    if (first + v < valid_tiles) eight = *(const uint4*)(maxima + first + v);
    u32 word[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 8; i++) key[v + i] = first + v + i < valid_tiles ? (word[i / 2] >> (i % 2 * 16)) & 0xffffu : 0u;
  }
  if (n_valid % TILE) {  // the last tile's maximum counts its valid rows only
    u32 edge = 0;
    for (int i = 0; i < n_valid % TILE; i++)
      edge = max(edge, key_of(values[((long long)(valid_tiles - 1) * pass_rows + local) * TILE + (i % 8) * 2 + i / 8]));
#pragma unroll
    for (int v = 0; v < PER_THREAD; v++)
      if (first + v == valid_tiles - 1) key[v] = edge;
  }

  // The r-th greatest maximum lies a little below the greatest: widen from there, then bisect.
  u32 top = 0;
#pragma unroll
  for (int v = 0; v < PER_THREAD; v++) top = max(top, key[v]);
  top = block_max(top, partial[0]);
  u32 threshold = 0, beyond = top + 1;  // count(key >= threshold) >= wanted > count(key >= beyond)
  int slot = 1;
#pragma unroll 1
  for (u32 reach = 31; reach < top; reach = reach * 8 + 7) {
    u32 count = 0;
#pragma unroll
    for (int v = 0; v < PER_THREAD; v++) count += key[v] >= top - reach;
    if (block_sum(count, partial, slot++ & 1) >= wanted) {
      threshold = top - reach;
      break;
    }
    beyond = top - reach;
  }
#pragma unroll 1
  while (beyond - threshold > 1) {
    u32 trial = (threshold + beyond) / 2, count = 0;
#pragma unroll
    for (int v = 0; v < PER_THREAD; v++) count += key[v] >= trial;
    if (block_sum(count, partial, slot++ & 1) >= wanted) threshold = trial;
    else beyond = trial;
  }
  __syncthreads();

  u32 above = 0, equal = 0;
#pragma unroll
  for (int v = 0; v < PER_THREAD; v++) {
    above += key[v] > threshold;
    equal += key[v] == threshold && first + v < valid_tiles;
  }
  u32 all;  // both counts in one word: PER_THREAD is at most 56, so neither reaches 65536
  u32 before = block_prefix(above | (equal << 16), partial[slot & 1], all);
  u32 above_before = before & 0xffffu, equal_before = before >> 16;
  u32 ties = wanted - (all & 0xffffu);
#pragma unroll
  for (int v = 0; v < PER_THREAD; v++) {
    bool is_above = key[v] > threshold, is_equal = key[v] == threshold && first + v < valid_tiles;
    if (is_above || (is_equal && equal_before < ties)) chosen[above_before + min(equal_before, ties)] = first + v;
    above_before += is_above;
    equal_before += is_equal;
  }
  __syncthreads();

  u32 least = wanted < r ? 0 : threshold;  // with fewer tiles than r, tokens below every maximum count too
  for (int start = 0; start < wanted * TILE; start += THREADS) {
    int place = start + threadIdx.x;
    u32 entry = 0;
    if (place < wanted * TILE) {
      int tile = chosen[place / TILE], token = place % TILE;
      u32 k = key_of(values[((long long)tile * pass_rows + local) * TILE + (token % 8) * 2 + token / 8]);
      if (tile * TILE + token < n_valid && k >= least) entry = (k << 16) | (0xffffu - place);
    }
    u32 takers = __ballot_sync(~0u, entry != 0);
    u32 base = 0;
    if ((threadIdx.x & 31) == 0 && takers) base = atomicAdd(&listed, __popc(takers));
    base = __shfl_sync(~0u, base, 0);
    if (entry) list[base + __popc(takers & ((1u << (threadIdx.x & 31)) - 1))] = entry;
  }
  __syncthreads();
  int count = listed, padded = (count + 3) / 4 * 4;
  if (threadIdx.x < padded - count) list[count + threadIdx.x] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += THREADS) {
    u32 mine = list[i];
    int rank = 0;
    for (int j = 0; j < padded && rank < r; j += 4) {
      uint4 four = *(const uint4*)(list + j);
      rank += (four.x > mine) + (four.y > mine) + (four.z > mine) + (four.w > mine);
    }
    int place = 0xffff - (mine & 0xffffu);
    if (rank < r) ids[rank] = chosen[place / TILE] * TILE + place % TILE;
  }
  for (int i = count + threadIdx.x; i < r; i += THREADS) ids[i] = -1;
}

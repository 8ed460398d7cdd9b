// The counters of a head (ledger.py), kept by the kernels so that they advance in replayed graphs. One call adds to them
// once, from the thread that finishes its last row. In device memory: a kernel that writes to the host's ends 6 us later.
//
// Compile-time: HISTOGRAM, CHECKED (first words of those parts), EDGES (upper bounds of the latency buckets, nanoseconds).
#pragma once
#include "common.cuh"

constexpr int CALLS = 0, ROWS_SEEN = 1, RESCUED = 2, NANOSECONDS = 3;

// Nanoseconds of a clock that all multiprocessors share.
__device__ __forceinline__ u64 now() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// call: {when it began, 0 if unknown; rows finished}
__device__ __forceinline__ void open_call(u64* call) {
  call[0] = now();
  call[1] = 0;
}

// How many rows of the launch's gridDim.y were finished before this one: on its way until is_last_row() looks at it.
__device__ __forceinline__ u64 count_row(u64* call) { return gridDim.y > 1 ? atomicAdd(call + 1, 1ull) : 0; }
__device__ __forceinline__ bool is_last_row(u64 before) { return before == gridDim.y - 1; }

__device__ __forceinline__ void close_call(u64* ledger, u64* turns, u64 begin) {
  atomicAdd(ledger + CALLS, 1ull);
  atomicAdd(ledger + ROWS_SEEN, (u64)gridDim.y);
  if (turns) atomicAdd(turns, 1ull);
  if (!begin) return;
  constexpr u64 edges[] = {EDGES};
  u64 took = now() - begin;
  int bucket = 0;
#pragma unroll
  for (int i = 0; i < (int)(sizeof(edges) / sizeof(u64)); i++) bucket += took > edges[i];
  atomicAdd(ledger + NANOSECONDS, took);
  atomicAdd(ledger + HISTOGRAM + bucket, 1ull);
}

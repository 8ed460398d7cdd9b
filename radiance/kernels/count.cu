// Counting by itself, for what no other kernel of ours sees: a call that the stock head answers in a replayed graph, and
// shadow mode, where the stock row is at hand.
#include "common.cuh"

extern "C" __global__ void count(u64* counter) { atomicAdd(counter, 1ull); }

// A thread a draft row. truth [m]: the stock head's winner; winners [m]: ours; ids [m, r]: candidates. checked: three
// counters, rows compared, rows with another winner, rows whose true winner was no candidate.
extern "C" __global__ void tally(const long long* truth, const long long* winners, const long long* ids, int m, int r,
                                 u64* checked) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= m) return;
  bool is_candidate = false;
  for (int i = 0; i < r; i++) is_candidate |= ids[(long long)row * r + i] == truth[row];
  atomicAdd(checked, 1ull);
  if (winners[row] != truth[row]) atomicAdd(checked + 1, 1ull);
  if (!is_candidate) atomicAdd(checked + 2, 1ull);
}

// Reads `count` 16-byte words once, as fast as the memory allows: the ceiling that radiance.bench divides by.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(512) read_all(const uint4* data, long long count, u32* out) {
  u32 sum = 0;
  long long step = (long long)gridDim.x * 512;
  long long i = blockIdx.x * 512ll + threadIdx.x;
  for (; i + 7 * step < count; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = load_stream(data + i + j * step);
#pragma unroll
    for (int j = 0; j < 8; j++) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < count; i += step) {
    uint4 v = load_stream(data + i);
    sum ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x9e3779b9u) *out = sum;  // keeps the loads
}

// Codes of one group of columns, one warp a row, column after column: the code nearest to the goal, then what it got wrong
// (original weight less stored value) goes to the goals of the later columns. Plain torch needs some 60 launches for this
// with 8 columns at a time; at 248320 x 5120 those launches were nearly all of the quantiser's time.
//
// Compile-time: WIDTH (columns of the group, at most 128).
#include "common.cuh"

constexpr int SLOTS = (WIDTH + 31) / 32;

// goal fp32 [rows, WIDTH]; work fp32, row stride `stride`: weights in, errors w - q out; steps fp32, row stride
// `step_stride`; follow fp32 [WIDTH, WIDTH], strictly upper; codes u8, row stride `stride`.
extern "C" __global__ void __launch_bounds__(256)
round_group(const float* __restrict__ goals, float* __restrict__ work, const float* __restrict__ steps,
            const float* __restrict__ follow, u8* __restrict__ codes, int rows, long long stride, int step_stride) {
  extern __shared__ float table[];  // follow, rows padded to 32 * SLOTS columns
  for (int i = threadIdx.x; i < WIDTH * 32 * SLOTS; i += blockDim.x) {
    int row = i / (32 * SLOTS), column = i % (32 * SLOTS);
    table[i] = column < WIDTH ? follow[row * WIDTH + column] : 0.f;
  }
  __syncthreads();
  int lane = threadIdx.x & 31;
  for (int row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); row < rows; row += gridDim.x * (blockDim.x >> 5)) {
    float goal[SLOTS], weight[SLOTS], error[SLOTS], code[SLOTS];
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
      int column = s * 32 + lane;
      bool inside = column < WIDTH;
      goal[s] = inside ? goals[(long long)row * WIDTH + column] : 0.f;
      weight[s] = inside ? work[row * stride + column] : 0.f;
      error[s] = code[s] = 0.f;
    }
    float step = steps[(long long)row * step_stride];
    float inverse = step > 0.f ? 1.f / step : 0.f;
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
#pragma unroll 8
      for (int j = 0; j < 32; j++) {
        if (s * 32 + j >= WIDTH) break;
        float wanted = __shfl_sync(~0u, goal[s], j), original = __shfl_sync(~0u, weight[s], j);
        float v = fminf(fmaxf(rintf(wanted * inverse * 0.5f + 1.5f), 0.f), 3.f);
        float wrong = original - step * (2.f * v - 3.f);
        if (lane == j) { code[s] = v; error[s] = wrong; }
        const float* later = table + (s * 32 + j) * 32 * SLOTS + lane;
#pragma unroll
        for (int t = s; t < SLOTS; t++) goal[t] += later[t * 32] * wrong;
      }
    }
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
      int column = s * 32 + lane;
      if (column < WIDTH) {
        work[row * stride + column] = error[s];
        codes[row * stride + column] = (u8)code[s];
      }
    }
  }
}

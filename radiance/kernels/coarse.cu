// Coarse logits of up to NT*8 draft rows against every row of the packed head. sm_80 and newer, int8 mma.sync.
//
// Each warp owns RT consecutive 16-row tiles and streams them through registers: the packed bytes are in fragment order,
// so a 16-byte load a lane is 16 rows x 128 columns and never meets shared memory. x stays in shared memory for the life
// of the block. The stream does not pause between tiles: slot d is filled again as soon as it is decoded, with the next
// tile's data when this tile has no more.
//
// Compile-time: BLOCKS (128-column blocks), GROUP, NT, RT, WARPS, DEPTH (blocks in flight a tile, a multiple of 4), AHEAD
// (blocks of a warp's first tiles fetched to L2 while x is being rotated).
#include "coarse.cuh"

constexpr int ROWS = NT * 8;
constexpr int ROUNDS = (BLOCKS + DEPTH - 1) / DEPTH;
constexpr bool IS_EVEN = BLOCKS % DEPTH == 0;

// Not volatile: the compiler may interleave independent products.
__device__ __forceinline__ void multiply(int (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) coarse(
    const uint4* codes, const uint2* factors, const float* units, const uint4* x, const float2* x_steps, u32* values,
    u16* maxima, int tiles, int maxima_stride) {
  extern __shared__ uint4 xs[];  // [block][nt][half][lane]
  __shared__ float2 steps[ROWS / 2];
  int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);  // uniform, and the compiler knows
  int line = lane >> 2, quad = lane & 3;
  int work = warp * gridDim.x + blockIdx.x, workers = gridDim.x * WARPS, items = tiles / RT;

  Stream s[RT] = {};
  const uint4* item_codes = codes + (long long)work * RT * BLOCKS * 32 + lane;
  const uint2* item_factors = factors + (long long)work * RT * QUADS * 8 + line;
  if (work < items) {
#pragma unroll
    for (int r = 0; r < RT; r++) {
#pragma unroll
      for (int d = 0; d < DEPTH; d++) fill_codes<IS_EVEN>(s[r], d, item_codes + r * BLOCKS * 32, BLOCKS, true);
#pragma unroll
      for (int q = 0; q < QUADS_DEPTH; q++) fill_factors<IS_EVEN>(s[r], q, item_factors + r * QUADS * 8, BLOCKS, true);
      // x is still being rotated: the memory works on, and what follows comes from L2
      constexpr int FETCHED = AHEAD < BLOCKS - DEPTH ? AHEAD : BLOCKS - DEPTH;
      if (FETCHED > 0 && lane == 0) prefetch_to_l2(item_codes + (r * BLOCKS + DEPTH) * 32, FETCHED * 512);
    }
  }
  wait_for_predecessors();
  for (int i = threadIdx.x; i < BLOCKS * NT * 64; i += WARPS * 32) stage(xs + i, x + i);
  if (threadIdx.x < ROWS / 2) steps[threadIdx.x] = x_steps[threadIdx.x];
  stage_wait();
  __syncthreads();
  let_successors_start();

  for (int item = work; item < items; item += workers) {
    bool has_next = item + workers < items;
    const uint4* next_codes = item_codes + (long long)workers * RT * BLOCKS * 32;
    const uint2* next_factors = item_factors + (long long)workers * RT * QUADS * 8;
    int c[RT][NT][4] = {};
    float2 unit[RT];
#pragma unroll
    for (int r = 0; r < RT; r++) {
      const float* u = units + (item * RT + r) * 16 + line;
      unit[r] = make_float2(u[0], u[8]);
    }
    // a tile's factors are short and far from its codes: fetched together, or each round waits for the memory to turn to them
    if (NT == 1 && has_next && lane == 0) prefetch_to_l2(next_factors, RT * QUADS * 64);
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round++) {
      bool is_last = round == ROUNDS - 1;
      bool refill = !is_last || has_next;
      const uint4* from_codes = is_last ? next_codes : item_codes + (round + 1) * (DEPTH * 32);
      const uint2* from_factors = is_last ? next_factors : item_factors + (round + 1) * (QUADS_DEPTH * 8);
      int left = is_last ? BLOCKS : BLOCKS - (round + 1) * DEPTH;
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        int block = round * DEPTH + d;
        bool ends_quad = (d + 1) * PER_BLOCK % 4 == 0;
        if (IS_EVEN || block < BLOCKS) {
          u32 a[RT][4][4];
#pragma unroll
          for (int r = 0; r < RT; r++) decode_block(s[r], d, a[r]);
          const uint4* xb = xs + (block * NT) * 64 + lane;
#pragma unroll
          for (int half = 0; half < 2; half++) {  // of the block's columns
            uint4 b[NT];
#pragma unroll
            for (int t = 0; t < NT; t++) b[t] = xb[t * 64 + half * 32];
#pragma unroll
            for (int kk = 0; kk < 2; kk++)
#pragma unroll
              for (int t = 0; t < NT; t++)
#pragma unroll
                for (int r = 0; r < RT; r++)
                  multiply(c[r][t], a[r][half * 2 + kk], word_of(b[t], kk * 2), word_of(b[t], kk * 2 + 1));
          }
        }
        // Decoded, or past the tile's end: the slot takes what comes a round later.
#pragma unroll
        for (int r = 0; r < RT; r++) {
          fill_codes<IS_EVEN>(s[r], d, from_codes + r * BLOCKS * 32, left, refill);
          if (ends_quad) fill_factors<IS_EVEN>(s[r], (d + 1) * PER_BLOCK / 4 - 1, from_factors + r * QUADS * 8, left, refill);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < RT; r++) {
      int tile = item * RT + r;
#pragma unroll
      for (int t = 0; t < NT; t++) {
        int m = t * 8 + quad * 2;
        finish_pair(c[r][t], unit[r], steps[m / 2], lane, values + ((long long)tile * ROWS + m) * 8,
                    maxima + (long long)m * maxima_stride + tile, maxima_stride);
      }
    }
    item_codes = next_codes;
    item_factors = next_factors;
  }
}

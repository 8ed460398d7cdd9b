// The coarse pass on Hopper's warpgroup products (sm_90a): 64 rows of the head x NT*8 draft rows x 32 columns at a time,
// weights decoded in registers, x read from shared memory once for 64 rows (coarse.cu: once for 16 or 32). While the
// tensor cores work on one block of columns the next one is decoded; sums stay in the accumulators until the tile ends.
//
// SPLIT 2: x of 64 rows does not fit in shared memory, so a cluster of two blocks halves the columns. Each pair of warps
// then swaps half of its sums through distributed shared memory and finishes half of the draft rows. Two buffers suffice
// without a "free" signal: a warp sends tile i+2 only after it has received tile i+1, which its peer sends after it has
// read tile i.
//
// Compile-time: BLOCKS, GROUP, NT (1, 2, 4, 8), WARPS (4 a warpgroup), DEPTH (a multiple of 4), SPLIT (1, 2), AHEAD (blocks
// of a warp's first tile fetched to L2 while x is being rotated).
#include "coarse.cuh"

constexpr int ROWS = NT * 8;
constexpr int PART = SPLIT == 1 ? BLOCKS : ((BLOCKS + SPLIT - 1) / SPLIT + 3) / 4 * 4;  // blocks of a cluster's member
constexpr int ROUNDS = (PART + DEPTH - 1) / DEPTH;
constexpr int STAGED = ROUNDS * DEPTH;  // blocks past the last have x 0 and whatever codes
constexpr bool IS_EVEN = BLOCKS == PART * SPLIT && PART % DEPTH == 0;
constexpr int KEPT = NT / SPLIT;        // column tiles a member finishes

#define C4(t) "+r"(c[t][0]), "+r"(c[t][1]), "+r"(c[t][2]), "+r"(c[t][3])
#define A4 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
__device__ __forceinline__ void multiply(int (&c)[NT][4], const u32 (&a)[4], u64 b) {
#if NT == 1
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1;" : C4(0) : A4, "l"(b));
#elif NT == 2
  asm volatile("wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, 1;"
               : C4(0), C4(1) : A4, "l"(b));
#elif NT == 4
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
               "{%16,%17,%18,%19}, %20, 1;" : C4(0), C4(1), C4(2), C4(3) : A4, "l"(b));
#else
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
               "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1;"
               : C4(0), C4(1), C4(2), C4(3), C4(4), C4(5), C4(6), C4(7) : A4, "l"(b));
#endif
}
__device__ __forceinline__ void open_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Shared-memory operand, no swizzle: 8 rows x 16 bytes lie together; 128 bytes on along k, 1024 along the draft rows.
// `start` counts 16-byte units.
__device__ __forceinline__ u64 operand(u32 start) { return ((u64)64 << 32) | (start + (8u << 16)); }

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) coarse(
    const uint4* codes, const uint2* factors, const float* units, const uint4* x, const float2* x_steps, u32* values,
    u16* maxima, int tiles, int maxima_stride) {
  extern __shared__ __align__(1024) uint4 xs[];        // [block][nt][k16][row of 8] of 16 bytes
  int4* swap = (int4*)(xs + STAGED * NT * 64);         // [2][warp][KEPT][lane], SPLIT 2 only
  __shared__ u64 arrived[2][WARPS];
  __shared__ float2 steps[ROWS / 2];
  int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, threadIdx.x >> 5, 0);  // uniform, and the compiler knows
  int line = lane >> 2, quad = lane & 3;
  int rank = SPLIT == 1 ? 0 : blockIdx.x % SPLIT;
  int clusters = gridDim.x / SPLIT;
  int work = (warp / 4) * clusters + blockIdx.x / SPLIT, workers = clusters * (WARPS / 4), items = tiles / 4;
  int first = rank * PART;
  int limit = BLOCKS == PART * SPLIT ? PART : max(0, min(PART, BLOCKS - first));

  Stream s = {};
  const uint4* item_codes = codes + ((long long)(work * 4 + warp % 4) * BLOCKS + first) * 32 + lane;
  const uint2* item_factors = factors + ((long long)(work * 4 + warp % 4) * QUADS + first * PER_BLOCK / 4) * 8 + line;
  if (work < items) {
#pragma unroll
    for (int d = 0; d < DEPTH; d++) fill_codes<IS_EVEN>(s, d, item_codes, limit, true);
#pragma unroll
    for (int q = 0; q < QUADS_DEPTH; q++) fill_factors<IS_EVEN>(s, q, item_factors, limit, true);
    int fetched = min(AHEAD, limit - DEPTH);  // x is still being rotated: the memory works on, and what follows comes from L2
    if (fetched > 0 && lane == 0) prefetch_to_l2(item_codes + DEPTH * 32, fetched * 512);
  }
  u32 peer_swap = 0, peer_arrived = 0;
  if (SPLIT > 1) {
    if (threadIdx.x < 2 * WARPS) {
      u32 bar = shared_address(&arrived[0][0] + threadIdx.x);
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer_swap) : "r"(shared_address(swap)), "r"(rank ^ 1));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer_arrived) : "r"(shared_address(arrived)), "r"(rank ^ 1));
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
  wait_for_predecessors();
  x += first * NT * 64;
  for (int i = threadIdx.x; i < limit * NT * 64; i += WARPS * 32) stage(xs + i, x + i);
  for (int i = limit * NT * 64 + threadIdx.x; i < STAGED * NT * 64; i += WARPS * 32) xs[i] = make_uint4(0, 0, 0, 0);
  if (threadIdx.x < ROWS / 2) steps[threadIdx.x] = x_steps[threadIdx.x];
  stage_wait();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  let_successors_start();

  // In a cluster the high bits of an address name the block: they do not belong in an operand.
  u32 x_start = (shared_address(xs) & 0x3ffffu) >> 4;
  u32 a[2][4][4];
  decode_block(s, 0, a[0]);
  int turn = 0;
  for (int item = work; item < items; item += workers, turn++) {
    bool has_next = item + workers < items;
    const uint4* next_codes = item_codes + (long long)workers * 4 * BLOCKS * 32;
    const uint2* next_factors = item_factors + (long long)workers * 4 * QUADS * 8;
    int tile = item * 4 + warp % 4;
    float2 unit = make_float2(units[tile * 16 + line], units[tile * 16 + line + 8]);
    int c[NT][4] = {};
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round++) {
      bool is_last = round == ROUNDS - 1;
      bool refill = !is_last || has_next;
      const uint4* from_codes = is_last ? next_codes : item_codes + (round + 1) * (DEPTH * 32);
      const uint2* from_factors = is_last ? next_factors : item_factors + (round + 1) * (QUADS_DEPTH * 8);
      int left = is_last ? limit : limit - (round + 1) * DEPTH;
#pragma unroll
      for (int d = 0; d < DEPTH; d++) {
        u32 xb = x_start + (round * DEPTH + d) * (NT * 64);
        open_products();
#pragma unroll
        for (int kk = 0; kk < 4; kk++) multiply(c, a[d % 2][kk], operand(xb + kk * 16));
        close_products();
        // this block was decoded, so its slot takes what comes a round later
        fill_codes<IS_EVEN>(s, d, from_codes, left, refill);
        if ((d + 1) * PER_BLOCK % 4 == 0) fill_factors<IS_EVEN>(s, (d + 1) * PER_BLOCK / 4 - 1, from_factors, left, refill);
        await_products<1>();  // the block before has been read: its fragment may go
        decode_block(s, (d + 1) % DEPTH, a[(d + 1) % 2]);
      }
    }
    await_products<0>();
    if (SPLIT > 1) {
      int buffer = (turn & 1) * WARPS + warp;
      u32 to = peer_swap + (buffer * KEPT * 32 + lane) * 16, bar = peer_arrived + buffer * 8;
#pragma unroll
      for (int t = 0; t < KEPT; t++) {
        int sent[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int lower = c[t][i], upper = c[NT - KEPT + t][i];
          sent[i] = rank ? lower : upper;
          c[t][i] = rank ? upper : lower;
        }
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];"
                     ::"r"(to + t * 512), "r"(sent[0]), "r"(sent[1]), "r"(sent[2]), "r"(sent[3]), "r"(bar) : "memory");
      }
      u32 mine = shared_address(&arrived[0][0] + buffer);
      if (lane == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mine), "r"(KEPT * 512) : "memory");
      u32 is_done = 0;
      while (!is_done)
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(is_done) : "r"(mine), "r"((turn >> 1) & 1) : "memory");
      __syncwarp();
#pragma unroll
      for (int t = 0; t < KEPT; t++) {
        int4 got = swap[(buffer * KEPT + t) * 32 + lane];
        c[t][0] += got.x, c[t][1] += got.y, c[t][2] += got.z, c[t][3] += got.w;
      }
      __syncwarp();
    }
#pragma unroll
    for (int t = 0; t < KEPT; t++) {
      int m = (rank * KEPT + t) * 8 + quad * 2;
      finish_pair(c[t], unit, steps[m / 2], lane, values + ((long long)tile * ROWS + m) * 8,
                  maxima + (long long)m * maxima_stride + tile, maxima_stride);
    }
    item_codes = next_codes;
    item_factors = next_factors;
  }
  // a block's shared memory must outlive what its peer still sends to it
  if (SPLIT > 1) asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

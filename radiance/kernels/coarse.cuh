// What the two coarse kernels share: the stream of a tile's codes and factors, its decode, and the end of a 16-row tile.
//
// A weight is unit * factor * (2v - 3): `unit` belongs to the row, `factor` 1..42 to the group, v to the column. So
// factor * (2v - 3) is an int8 and the tensor cores sum a whole row of k in int32; nothing is scaled before the tile ends.
// (One fp32 FMA a group and draft row, as any scale outside the sum needs, costs more than the products themselves.)
#pragma once
#include "common.cuh"

constexpr int PER_BLOCK = 128 / GROUP;                // factors of a row in a block of 128 columns
constexpr int QUADS = (BLOCKS * PER_BLOCK + 3) / 4;   // 8-byte loads of factors a tile: 4 groups of rows line and line + 8
constexpr int QUADS_DEPTH = DEPTH * PER_BLOCK / 4;

struct Stream {  // what is in flight for one tile
  uint4 codes[DEPTH];
  uint2 factors[QUADS_DEPTH];
};
// Slot d from `codes`, which points at the blocks of a round; `left` blocks of it exist. IS_EVEN: all of every round do.
template <bool IS_EVEN>
__device__ __forceinline__ void fill_codes(Stream& s, int d, const uint4* codes, int left, bool is_wanted) {
  bool is_there = is_wanted && (IS_EVEN || d < left);
  if (NT == 1) reload_stream_once(s.codes[d], codes + d * 32, is_there);  // worth 0.3 us at 8 draft rows; costs 0.7 at 16
  else reload_stream(s.codes[d], codes + d * 32, is_there);
}
template <bool IS_EVEN>
__device__ __forceinline__ void fill_factors(Stream& s, int q, const uint2* factors, int left, bool is_wanted) {
  reload_stream(s.factors[q], factors + q * 8, is_wanted && (IS_EVEN || q * 4 < left * PER_BLOCK));
}

__device__ __forceinline__ u32 word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// The four int8 values of a group: bytes factor * (1, 3, -3, -1), in the order of v - 2 as a two-bit number.
__device__ __forceinline__ u32 levels_of(u32 factor) { return factor * 0xfefd0301u + 0x01000000u; }

// One block of 16 rows x 128 columns -> the A fragments of four products. A byte permutation looks four codes up at once:
// its selector is a nibble a value, of which bit 3 must be 0 and bit 2 chooses between two copies of the same table.
// Volatile, so that a slot of the stream is read before it is filled again and nobody has to copy it.
__device__ __forceinline__ void decode_block(const Stream& s, int d, u32 (&a)[4][4]) {
  u32 low = 0, high = 0;
#pragma unroll
  for (int kk = 0; kk < 4; kk++) {
    if (kk % (4 / PER_BLOCK) == 0) {
      int group = d * PER_BLOCK + kk * PER_BLOCK / 4;
      u32 pair = group % 4 < 2 ? s.factors[group / 4].x : s.factors[group / 4].y;
      low = levels_of(__byte_perm(pair, 0, group % 2 ? 0x4442 : 0x4440));
      high = levels_of(__byte_perm(pair, 0, group % 2 ? 0x4443 : 0x4441));
    }
    u32 w = word_of(s.codes[d], kk);
    u32 even = w & 0x33333333u, odd = (w >> 2) & 0x33333333u;
    asm volatile("prmt.b32 %0, %1, %1, %2;" : "=r"(a[kk][0]) : "r"(low), "r"(even));
    asm volatile("prmt.b32 %0, %1, %1, %2;" : "=r"(a[kk][1]) : "r"(high), "r"(odd));
    asm volatile("prmt.b32 %0, %1, %1, %2;" : "=r"(a[kk][2]) : "r"(low), "r"(even >> 16));
    asm volatile("prmt.b32 %0, %1, %1, %2;" : "=r"(a[kk][3]) : "r"(high), "r"(odd >> 16));
  }
}

// Two floats -> bf16 pair, -0 made 0 (it would sort below 0).
__device__ __forceinline__ u32 rounded_pair(float low, float high) {
  u32 pair = to_bf16_pair(low, high), out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(pair), "r"(0x3f803f80u), "r"(0u));
  return out;
}
// key_of for both halves, without the case of -0
__device__ __forceinline__ u32 key_pair(u32 pair) { return pair ^ (((pair >> 15) & 0x00010001u) * 0xffffu | 0x80008000u); }
__device__ __forceinline__ u32 max_pair(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 900
  u32 d;
  asm("max.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#else
  return max(a & 0xffffu, b & 0xffffu) | max(a & 0xffff0000u, b & 0xffff0000u);
#endif
}

// One column pair of a 16-row tile. sums: (row, m), (row, m+1), (row+8, m), (row+8, m+1) of this lane; row = lane/4.
// Stores bf16 at values[m][row] as pairs (row, row+8), and the tile's maximum of those very values as a sortable key.
__device__ __forceinline__ void finish_pair(const int (&sums)[4], float2 unit, float2 step, int lane, u32* values,
                                            u16* maxima, int stride) {
  u32 p0 = rounded_pair((float)sums[0] * (unit.x * step.x), (float)sums[2] * (unit.y * step.x));
  u32 p1 = rounded_pair((float)sums[1] * (unit.x * step.y), (float)sums[3] * (unit.y * step.y));
  values[lane / 4] = p0;
  values[8 + lane / 4] = p1;
  u32 k0 = key_pair(p0), k1 = key_pair(p1);
  u32 best = max_pair(__byte_perm(k0, k1, 0x5410), __byte_perm(k0, k1, 0x7632));  // columns m and m+1
#pragma unroll
  for (int o = 4; o < 32; o <<= 1) best = max_pair(best, __shfl_xor_sync(~0u, best, o));
  if (lane < 4) {
    maxima[0] = (u16)best;
    maxima[stride] = (u16)(best >> 16);
  }
}

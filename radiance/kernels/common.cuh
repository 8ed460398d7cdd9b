// What every kernel here shares: types, bf16, sortable keys, loads, and the two halves of programmatic launch.
// Device code only; compiled by NVRTC without any header of the toolkit, so the image needs none.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A launch may start before the one it follows has ended (sm_90+): everything a kernel reads from its predecessors
// comes after this wait. Weights are constant and may be fetched before it.
__device__ __forceinline__ void wait_for_predecessors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_successors_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Ask for `bytes` (a multiple of 16) to be brought to L2: costs nothing to wait for, so it can go before the wait above.
__device__ __forceinline__ void prefetch_to_l2(const void* p, u32 bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#endif
}

// The weight stream is read once: it must not push x, which every block reads, out of L1.
__device__ __forceinline__ uint4 load_stream(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
// Into the very registers of `v`, or nothing. Written as C++ the compiler loads elsewhere and copies at the loop's end,
// which waits for what was meant to stay in flight.
__device__ __forceinline__ void reload_stream(uint4& v, const uint4* p, bool is_wanted) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
               "@p ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n}"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(p), "r"((u32)is_wanted));
}
// The same, and the first to leave L2, where it is not read again either.
__device__ __forceinline__ void reload_stream_once(uint4& v, const uint4* p, bool is_wanted) {
  asm volatile("{\n.reg .pred p;\n.reg .b64 policy;\nsetp.ne.u32 p, %5, 0;\n"
               "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
               "@p ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], policy;\n}"
               : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(p), "r"((u32)is_wanted));
}
__device__ __forceinline__ void reload_stream(uint2& v, const uint2* p, bool is_wanted) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n"
               "@p ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];\n}"
               : "+r"(v.x), "+r"(v.y) : "l"(p), "r"((u32)is_wanted));
}

__device__ __forceinline__ float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float half_to_float(u16 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
__device__ __forceinline__ u32 to_bf16_pair(float low, float high) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

// bf16 bits -> an unsigned number in the order of the values. -0 sorts as 0 and no value maps to 0, so 0 can mean "none".
__device__ __forceinline__ u32 key_of(u32 bits) {
  if (bits == 0x8000u) bits = 0;
  return (bits & 0x8000u) ? (~bits & 0xffffu) : (bits | 0x8000u);
}
// fp32 likewise. NaN sorts highest, as torch.argmax has it.
__device__ __forceinline__ u32 key_of_float(float v) {
  if (v != v) return 0xffffffffu;
  u32 bits = v == 0.f ? 0u : __float_as_uint(v);
  return (bits >> 31) ? ~bits : (bits | 0x80000000u);
}
__device__ __forceinline__ float float_of_key(u32 key) {
  return __uint_as_float((key >> 31) ? (key & 0x7fffffffu) : ~key);
}

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// x of the layouts below, staged by all threads of the block; 16 bytes each, asynchronous until stage_wait().
__device__ __forceinline__ void stage(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from));
}
__device__ __forceinline__ void stage_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// move_kernel.h — the program by which a GPU moves small pieces itself: PTX text, which the driver translates for its device.
// It is read by bench/gpu_copies.py as well.
//
// A block of threads moves a piece, or its share of it: blocks (p, s) of all s share piece p. A thread moves 16 bytes at a time
// where addresses and length allow it, else 4, else 1. One argument, copied by the launch: 128 of { from, to, bytes }, each of
// 8 bytes, as mover.h has them. It neither checks nor synchronises: the caller's ranges do not overlap.
// sm_75 is the oldest target that the translator of CUDA 13 takes; PTX 6.3 is the oldest version with it (CUDA 10).
#pragma once

namespace halfstep::gpu {

inline constexpr char kMoveKernelName[] = "halfstep_move";
inline constexpr char kMoveKernel[] = R"PTX(
.version 6.3
.target sm_75
.address_size 64

.visible .entry halfstep_move(.param .align 8 .b8 pieces[3072])
{
  .reg .pred %done, %narrow;
  .reg .b32 %block, %share, %shares, %threads, %thread;
  .reg .b32 %a, %b, %c, %d;
  .reg .b64 %piece, %from, %to, %bytes, %at, %step, %all, %source, %target;

  mov.u32 %block, %ctaid.x;
  mov.u32 %share, %ctaid.y;
  mov.u32 %shares, %nctaid.y;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;

  mov.b64 %piece, pieces;
  mul.wide.u32 %at, %block, 24;
  add.s64 %piece, %piece, %at;
  ld.param.u64 %from, [%piece];
  ld.param.u64 %to, [%piece+8];
  ld.param.u64 %bytes, [%piece+16];
  cvta.to.global.u64 %from, %from;
  cvta.to.global.u64 %to, %to;

  mad.lo.u32 %thread, %share, %threads, %thread;
  mul.lo.u32 %threads, %threads, %shares;
  or.b64 %all, %from, %to;
  or.b64 %all, %all, %bytes;

  and.b64 %at, %all, 15;
  setp.ne.u64 %narrow, %at, 0;
  @%narrow bra FOURS;
  mul.wide.u32 %at, %thread, 16;
  mul.wide.u32 %step, %threads, 16;
SIXTEEN:
  setp.ge.u64 %done, %at, %bytes;
  @%done bra OVER;
  add.s64 %source, %from, %at;
  add.s64 %target, %to, %at;
  ld.global.v4.u32 {%a, %b, %c, %d}, [%source];
  st.global.v4.u32 [%target], {%a, %b, %c, %d};
  add.s64 %at, %at, %step;
  bra SIXTEEN;

FOURS:
  and.b64 %at, %all, 3;
  setp.ne.u64 %narrow, %at, 0;
  @%narrow bra ONES;
  mul.wide.u32 %at, %thread, 4;
  mul.wide.u32 %step, %threads, 4;
FOUR:
  setp.ge.u64 %done, %at, %bytes;
  @%done bra OVER;
  add.s64 %source, %from, %at;
  add.s64 %target, %to, %at;
  ld.global.u32 %a, [%source];
  st.global.u32 [%target], %a;
  add.s64 %at, %at, %step;
  bra FOUR;

ONES:
  cvt.u64.u32 %at, %thread;
  cvt.u64.u32 %step, %threads;
ONE:
  setp.ge.u64 %done, %at, %bytes;
  @%done bra OVER;
  add.s64 %source, %from, %at;
  add.s64 %target, %to, %at;
  ld.global.u8 %a, [%source];
  st.global.u8 [%target], %a;
  add.s64 %at, %at, %step;
  bra ONE;

OVER:
  ret;
}
)PTX";

}  // namespace halfstep::gpu

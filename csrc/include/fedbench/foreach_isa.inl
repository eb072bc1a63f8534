// Includes FEDBENCH_KERNEL_FILE once per instruction set, each time inside code generation for it.
//
// A kernel file opens `namespace fedbench::FEDBENCH_ISA { ... }`, may use FEDBENCH_ISA_LEVEL
// (0 portable, 1 avx2, 2 avx512) and must not use lambdas: GCC does not give them the target.
// The header that owns the kernel defines FEDBENCH_KERNEL_FILE, includes this file, and then
// chooses between portable::f, avx2::f and avx512::f with FEDBENCH_DISPATCH.
// No include guard on purpose: every kernel header includes it for its own file.

#include "fedbench/isa.hpp"

#if FEDBENCH_X86
#include <immintrin.h>
#endif

#ifndef FEDBENCH_DISPATCH
#define FEDBENCH_PRAGMA(text) _Pragma(#text)
#define FEDBENCH_INLINE inline __attribute__((always_inline))

#if defined(__clang__)
#define FEDBENCH_TARGET_BEGIN(features) \
    FEDBENCH_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define FEDBENCH_TARGET_END FEDBENCH_PRAGMA(clang attribute pop)
#else
#define FEDBENCH_TARGET_BEGIN(features) \
    FEDBENCH_PRAGMA(GCC push_options) FEDBENCH_PRAGMA(GCC target(features))
#define FEDBENCH_TARGET_END FEDBENCH_PRAGMA(GCC pop_options)
#endif

// The function `name` of the level: FEDBENCH_DISPATCH(level, mean_kernels)
#if FEDBENCH_X86
#define FEDBENCH_DISPATCH(level, name)                                  \
    ((level) == ::fedbench::IsaLevel::avx512 ? ::fedbench::avx512::name \
     : (level) == ::fedbench::IsaLevel::avx2 ? ::fedbench::avx2::name   \
                                             : ::fedbench::portable::name)
#else
#define FEDBENCH_DISPATCH(level, name) (static_cast<void>(level), ::fedbench::portable::name)
#endif
#endif  // FEDBENCH_DISPATCH

#define FEDBENCH_ISA portable
#define FEDBENCH_ISA_LEVEL 0
#include FEDBENCH_KERNEL_FILE
#undef FEDBENCH_ISA
#undef FEDBENCH_ISA_LEVEL

#if FEDBENCH_X86
#define FEDBENCH_ISA avx2
#define FEDBENCH_ISA_LEVEL 1
FEDBENCH_TARGET_BEGIN("avx2,fma,f16c")
#include FEDBENCH_KERNEL_FILE
FEDBENCH_TARGET_END
#undef FEDBENCH_ISA
#undef FEDBENCH_ISA_LEVEL

#define FEDBENCH_ISA avx512
#define FEDBENCH_ISA_LEVEL 2
FEDBENCH_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#include FEDBENCH_KERNEL_FILE
FEDBENCH_TARGET_END
#undef FEDBENCH_ISA
#undef FEDBENCH_ISA_LEVEL
#endif

#undef FEDBENCH_KERNEL_FILE

// EVERLONG_SIMD_CLONES on a function: GCC compiles it once for each x86-64 level and picks one when the library is
// loaded. The clones compute the same bits: the build forbids contraction and no loop here reorders a floating-point
// sum.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define EVERLONG_SIMD_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EVERLONG_SIMD_CLONES
#endif

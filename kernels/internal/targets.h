// Instruction sets that the SIMD files are compiled for; include before any
// Highway header. The choice is made at run time. AVX-512 without VNNI or VBMI
// is enough for fp32 work; a machine without AVX2 gets the plain version, which
// is right and slow. Fewer targets keep the build short.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)

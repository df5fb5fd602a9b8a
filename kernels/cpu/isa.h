// Instruction sets that the fast CPU backend has kernels for.
#pragma once

#include <string_view>

namespace faststream {

/// Each includes the ones before it. avx2: with FMA and F16C. avx512: F, BW, DQ and VL.
/// avx512_vnni: 16-bit and 8-bit dot products. amx: int8 and bfloat16 tiles, with AVX512-BF16.
enum class CpuIsa { portable, avx2, avx512, avx512_vnni, amx };

/// All of them, each better than the ones before it.
inline constexpr CpuIsa kCpuIsas[] = {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512,
                                      CpuIsa::avx512_vnni, CpuIsa::amx};

/// Whether this processor and operating system can run it. Asking for amx also asks Linux for
/// permission to use the tile registers, which holds for the whole process.
bool cpu_supports(CpuIsa isa);

/// The last of kCpuIsas that is supported.
CpuIsa best_cpu_isa();

/// For the user: "AVX2", "AMX", ...
std::string_view cpu_isa_name(CpuIsa isa);

}  // namespace faststream

// Instruction sets that the fast CPU backend has kernels for.
#pragma once

#include <string_view>

namespace faststream {

/// Each includes the ones before it, but that those from avx512 on have no need of avx_vnni. avx2:
/// with FMA and F16C. avx_vnni: dot products of eight-bit numbers on AVX2's registers. avx512: F,
/// BW, DQ and VL. avx512_vnni: dot products of eight-bit numbers. avx512_bf16: those of bfloat16.
/// amx: tiles of both.
enum class CpuIsa { portable, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, amx };

/// All of them, each better than the ones before it.
inline constexpr CpuIsa kCpuIsas[] = {CpuIsa::portable, CpuIsa::avx2,        CpuIsa::avx_vnni,
                                      CpuIsa::avx512,   CpuIsa::avx512_vnni, CpuIsa::avx512_bf16,
                                      CpuIsa::amx};

/// Whether this processor and operating system can run it. Asking for amx also asks Linux for
/// permission to use the tile registers, which holds for the whole process.
bool cpu_supports(CpuIsa isa);

/// The fastest that is supported and, in kCpuIsas, not after what the environment's
/// FASTSTREAM_MAX_CPU_ISA says, a cpu_isa_id(). Throws Error when that is something else.
CpuIsa best_cpu_isa();

/// As FASTSTREAM_MAX_CPU_ISA has it: "avx2", "avx512_vnni", ...
std::string_view cpu_isa_id(CpuIsa isa);

/// For the user: "AVX2", "AMX", ...
std::string_view cpu_isa_name(CpuIsa isa);

}  // namespace faststream

#include "kernels/cpu/isa/isa.h"

#include <cstdlib>
#include <string>

#include "support/error.h"
#include "support/name_list.h"
#include "support/printable.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace faststream {

#if defined(__x86_64__)

namespace {

/// CPUID says that halves are converted on AVX's registers; Clang 14 does not know the name.
bool has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

/// CPUID says that there are dot products of eight-bit numbers on AVX2's registers.
bool has_avx_vnni() {
  constexpr unsigned kAvxVnni = 1U << 4;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kAvxVnni) != 0;
}

/// CPUID says that there are tiles with int8 and bfloat16 products, and Linux lets us use them.
bool has_amx() {
  constexpr unsigned kBf16 = 1U << 22;
  constexpr unsigned kTile = 1U << 24;
  constexpr unsigned kInt8 = 1U << 25;
  constexpr unsigned kAll = kBf16 | kTile | kInt8;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAll) != kAll) return false;
  // Documentation/arch/x86/xstate.rst of Linux: the tile data is component 18.
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool cpu_supports(CpuIsa isa) {
  __builtin_cpu_init();
  switch (isa) {
    case CpuIsa::portable:
      return true;
    case CpuIsa::avx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
             has_f16c();
    case CpuIsa::avx_vnni:
      return cpu_supports(CpuIsa::avx2) && has_avx_vnni();
    case CpuIsa::avx512:
      return cpu_supports(CpuIsa::avx2) && __builtin_cpu_supports("avx512f") != 0 &&
             __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0;
    case CpuIsa::avx512_vnni:
      return cpu_supports(CpuIsa::avx512) && __builtin_cpu_supports("avx512vnni") != 0;
    case CpuIsa::avx512_bf16:
      return cpu_supports(CpuIsa::avx512_vnni) && __builtin_cpu_supports("avx512bf16") != 0;
    case CpuIsa::amx:
      return cpu_supports(CpuIsa::avx512_bf16) && has_amx();
  }
  return false;
}

#else

bool cpu_supports(CpuIsa isa) { return isa == CpuIsa::portable; }

#endif

namespace {

/// Whether it is faster than what comes before it. Intel's processors multiply bf16 without tiles
/// at half the rate of floats (Sapphire Rapids: 86 GFLOP/s a core, 125 in float32); AMD's at twice.
bool is_fast(CpuIsa isa) {
#if defined(__x86_64__)
  return isa != CpuIsa::avx512_bf16 || __builtin_cpu_is("intel") == 0;
#else
  return isa == CpuIsa::portable;
#endif
}

}  // namespace

CpuIsa best_cpu_isa() {
  const char* limit = std::getenv("FASTSTREAM_MAX_CPU_ISA");
  CpuIsa best = CpuIsa::portable;
  std::string known;
  for (const CpuIsa isa : kCpuIsas) {
    if (cpu_supports(isa) && is_fast(isa)) best = isa;
    if (limit != nullptr && limit == cpu_isa_id(isa)) return best;
    add_name(known, cpu_isa_id(isa));
  }
  if (limit == nullptr || *limit == '\0') return best;
  throw Error("The environment variable FASTSTREAM_MAX_CPU_ISA is \"" + printable(limit) +
              "\", which names no instruction set; unset it, or set it to one of " + known + ".");
}

std::string_view cpu_isa_id(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::portable:
      return "portable";
    case CpuIsa::avx2:
      return "avx2";
    case CpuIsa::avx_vnni:
      return "avx_vnni";
    case CpuIsa::avx512:
      return "avx512";
    case CpuIsa::avx512_vnni:
      return "avx512_vnni";
    case CpuIsa::avx512_bf16:
      return "avx512_bf16";
    case CpuIsa::amx:
      return "amx";
  }
  return "?";
}

std::string_view cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::portable:
      return "portable";
    case CpuIsa::avx2:
      return "AVX2";
    case CpuIsa::avx_vnni:
      return "AVX-VNNI";
    case CpuIsa::avx512:
      return "AVX-512";
    case CpuIsa::avx512_vnni:
      return "AVX-512 VNNI";
    case CpuIsa::avx512_bf16:
      return "AVX-512 BF16";
    case CpuIsa::amx:
      return "AMX";
  }
  return "?";
}

}  // namespace faststream

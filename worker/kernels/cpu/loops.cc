#include "worker/kernels/cpu/loops.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace esteira {
namespace {

// Linux gives a process the state of tiles when it asks (arch_prctl), for all its threads.
bool MayUseTiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILE_DATA
  static const bool may = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return may;
}

}  // namespace

const Loops& LoopsOfThisCpu() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const bool amx = __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
                   __builtin_cpu_supports("avx512bf16");
  if (avx2 && avx512 && amx && MayUseTiles()) return kLoopsAmx;
  if (avx2 && avx512) return kLoopsAvx512;
  return avx2 ? kLoopsAvx2 : kLoopsBaseline;
}

}  // namespace esteira

#include "worker/kernels/cpu/loops.h"

namespace esteira {

const Loops& LoopsOfThisCpu() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) return kLoopsAvx512;
  return avx2 ? kLoopsAvx2 : kLoopsBaseline;
}

}  // namespace esteira

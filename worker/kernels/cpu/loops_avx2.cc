#include "worker/kernels/cpu/table-inl.h"

namespace esteira {

constexpr Loops kLoopsAvx2 = Table("x86-64-v3");

}  // namespace esteira

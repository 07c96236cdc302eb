#include "worker/kernels/cpu/table-inl.h"

namespace esteira {

constexpr Loops kLoopsAvx512 = Table("x86-64-v4");

}  // namespace esteira

#include "worker/kernels/cpu/table-inl.h"

namespace esteira {

constexpr Loops kLoopsBaseline = Table("x86-64");

}  // namespace esteira

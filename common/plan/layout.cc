#include "common/plan/layout.h"

#include "common/base/status_macros.h"

namespace esteira {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

int Layout::num_micro_batches() const {
  CHECK(micro_batch_size > 0 && replicas > 0);
  return static_cast<int>(DivideUp(DivideUp(global_batch_size, micro_batch_size), replicas));
}

}  // namespace esteira

#include "common/plan/layout.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace esteira {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

int Layout::num_micro_batches() const {
  CHECK(micro_batch_size > 0 && replicas > 0);
  return static_cast<int>(DivideUp(DivideUp(global_batch_size, micro_batch_size), replicas));
}

MicroBatch Layout::MicroBatchOf(int replica, int micro_batch) const {
  const int64_t index = int64_t{replica} * num_micro_batches() + micro_batch;
  const int64_t first = std::min(index * micro_batch_size, global_batch_size);
  return {first, std::min(micro_batch_size, global_batch_size - first)};
}

}  // namespace esteira

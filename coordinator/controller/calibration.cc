#include "coordinator/controller/calibration.h"

#include <algorithm>
#include <cmath>

namespace esteira {

void Refine(const OpFactors& used, const Prediction& prediction, const StepRecord& record,
            OpFactors& factors) {
  for (size_t op = 0; op < factors.size(); ++op) {
    if (QueueOf(static_cast<Op>(op)) != Queue::kCompute) continue;
    const double predicted = prediction.op_seconds[op];
    const double measured = record.op_seconds[op];
    if (!(predicted > 0) || !(measured > 0)) continue;
    const double found =
        std::clamp(used[op] * measured / predicted, 1 / kMaxOpFactor, kMaxOpFactor);
    factors[op] *= std::pow(found / factors[op], kRefineWeight);
  }
}

}  // namespace esteira

#include "common/plan/plan.h"

namespace esteira {

int64_t Program::num_slots(SlotKind kind) const {
  int64_t count = 0;
  for (const SlotClass& slots_of_class : slot_classes(kind)) count += slots_of_class.count;
  return count;
}

Placement PlacementOf(int zero) {
  return {.whole_parameters = zero < 3, .whole_sums = zero < 2, .whole_states = zero < 1};
}

}  // namespace esteira

#include "common/plan/shard_map.h"

#include "common/base/status_macros.h"
#include "common/plan/model_spec.h"

namespace esteira {

ShardMap::ShardMap(int64_t flat_elements, int replicas)
    : replicas_(replicas), flat_elements_(flat_elements) {
  CHECK(replicas > 0 && flat_elements >= 0);
  const int64_t blocks = (flat_elements + kBlockElements - 1) / kBlockElements;
  shard_elements_ = (blocks + replicas - 1) / replicas * kBlockElements;
}

}  // namespace esteira

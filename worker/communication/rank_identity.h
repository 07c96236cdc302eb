#pragma once

#include <cstdint>

namespace esteira {

// Who a rank is, in headers and mailboxes: nobody takes those of another job or epoch for his own.
struct RankIdentity {
  uint64_t job_hash = 0;
  int64_t epoch = 0;
  int rank = 0;
  int size = 1;
  bool operator==(const RankIdentity&) const = default;
};

}  // namespace esteira

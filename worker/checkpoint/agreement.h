#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/checkpoint/manifest.h"
#include "worker/communication/transport.h"

namespace esteira {

// How one rank fared: its status, and the files that it wrote.
struct RankOutcome {
  absl::Status status;
  std::vector<ManifestFile> files;  // at most kMaxFiles
  static constexpr size_t kMaxFiles = 2;
};

// Rank 0 receives the outcome of every rank, its own included, by rank; the others receive nothing.
// Fails only when the transport does.
absl::StatusOr<std::vector<RankOutcome>> GatherOutcomes(Transport& transport,
                                                        const RankOutcome& mine,
                                                        absl::Duration timeout);

// Every rank receives rank 0's status; a failure of the transport comes first.
absl::Status BroadcastStatus(Transport& transport, const absl::Status& status,
                             absl::Duration timeout);

// Every rank receives rank 0's text, or its failure. A text that is too long is a failure.
absl::StatusOr<std::string> BroadcastText(Transport& transport,
                                          const absl::StatusOr<std::string>& text,
                                          absl::Duration timeout);

// The failure of the lowest rank that failed, naming it.
absl::Status FirstFailure(const std::vector<RankOutcome>& outcomes);

}  // namespace esteira

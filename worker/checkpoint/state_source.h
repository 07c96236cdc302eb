#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "common/plan/model_spec.h"
#include "worker/engine/engine.h"

namespace esteira {

// The optimizer state in a checkpoint folder, by ranges of the units' flat buffers: whichever
// layout wrote it, and whichever asks. Checks names and shapes, not digests. `files` outlives it.
absl::StatusOr<StateSource> OpenStateSource(FileSystem& files, const std::string& folder,
                                            const ModelSpec& model);

}  // namespace esteira

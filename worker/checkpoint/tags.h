// Kinds of messages that only checkpoints use; they collide neither with ops nor with collectives.
#pragma once

#include <cstdint>

namespace esteira {

inline constexpr uint32_t kCheckpointStateTag = 0x2000;  // group: unit; index: master, m, v
inline constexpr uint32_t kCheckpointOutcomeTag = 0x2001;
inline constexpr uint32_t kCheckpointVerdictTag = 0x2002;

}  // namespace esteira

#pragma once

namespace esteira {

// The largest message on any channel: plans of large jobs are the largest.
inline constexpr int kMaxMessageBytes = 64 << 20;

}  // namespace esteira

// The transports that one suite runs over: a mesh of ranks inside this process, each used by a
// thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <thread>
#include <vector>

#include "worker/communication/transport.h"

namespace esteira {

using Transports = std::vector<std::unique_ptr<Transport>>;

struct MeshKind {
  const char* name;
  bool sends_early;  // small messages leave before their receive is posted
  Transports (*make)(int ranks);
};
inline void PrintTo(const MeshKind& kind, std::ostream* out) { *out << kind.name; }

// Every transport that this build can run.
std::vector<MeshKind> MeshKinds();

// Calls `body` once a rank, each on its own thread, and joins them.
inline void OnEveryRank(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<std::byte> Pattern(size_t bytes, int seed) {
  std::vector<std::byte> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    pattern[i] =
        static_cast<std::byte>((i * 131 + (i >> 8) * 7 + static_cast<size_t>(seed)) & 0xff);
  }
  return pattern;
}

inline Transfer Send(int peer, Tag tag, std::span<std::byte> bytes) {
  return {Transfer::Direction::kSend, peer, tag, bytes};
}
inline Transfer Receive(int peer, Tag tag, std::span<std::byte> bytes) {
  return {Transfer::Direction::kReceive, peer, tag, bytes};
}

}  // namespace esteira

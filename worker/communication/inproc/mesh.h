#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/communication/transport.h"

namespace esteira {

// The meeting place of all ranks of one process: a queue of waiting sends and one of waiting
// receives for each (source, destination, tag). Whoever comes second copies the bytes, outside the
// lock, and completes both sides. Thread-safe. The first failure of any rank fails the mesh: its
// own status on the rank that failed, Unavailable on the others.
class Mesh {
 public:
  explicit Mesh(int ranks);

  int size() const { return static_cast<int>(status_.size()); }
  absl::Status Run(int rank, std::span<const Transfer> transfers, absl::Duration timeout);
  void Abort(int rank, const absl::Status& cause);
  // Nobody will exchange with `rank` again: whoever waits for it, or will, fails.
  void Close(int rank);
  TransportCounters counters(int rank) const;

 private:
  // One Run. Lives on the stack of its caller, who leaves only when no copy touches its buffers.
  struct Group {
    int rank = 0;
    int remaining = 0;  // transfers that are not complete
    int copying = 0;    // of these, being copied now
    std::condition_variable changed;
  };
  struct Posted {
    Group* group;
    Transfer transfer;
  };
  struct Match {
    Posted send;
    Posted receive;
  };
  using Key = std::tuple<int, int, uint32_t, uint32_t, uint32_t>;  // source, destination, tag
  using Queues = std::map<Key, std::deque<Posted>>;

  static Key KeyOf(int rank, const Transfer& transfer);
  // All of these with mutex_ held.
  void Check(int rank, std::span<const Transfer> transfers);
  void Post(Group& group, const Transfer& transfer, std::vector<Match>& matches);
  void Complete(const Match& match);
  void Withdraw(const Group& group, std::span<const Transfer> transfers);
  // `culprits` fail with `cause`, all others with `seen_by_others`. Only the first failure counts.
  void Fail(std::span<const int> culprits, const absl::Status& cause,
            const absl::Status& seen_by_others);
  const Transfer* FirstPending(const Group& group, std::span<const Transfer> transfers) const;

  mutable std::mutex mutex_;
  Queues sends_;
  Queues receives_;
  std::set<Group*> groups_;
  std::vector<absl::Status> status_;  // of each rank; all OK, or none
  std::vector<bool> closed_;
  std::vector<TransportCounters> counters_;
};

}  // namespace esteira

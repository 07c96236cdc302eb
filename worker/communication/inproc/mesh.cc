#include "worker/communication/inproc/mesh.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "worker/communication/deadline.h"
#include "worker/communication/transfer_text.h"

namespace esteira {
namespace {

bool IsSend(const Transfer& transfer) { return transfer.direction == Transfer::Direction::kSend; }

}  // namespace

Mesh::Mesh(int ranks)
    : status_(static_cast<size_t>(ranks)),
      closed_(static_cast<size_t>(ranks)),
      counters_(static_cast<size_t>(ranks)) {}

Mesh::Key Mesh::KeyOf(int rank, const Transfer& transfer) {
  const Tag& tag = transfer.tag;
  const bool send = IsSend(transfer);
  return {send ? rank : transfer.peer, send ? transfer.peer : rank, tag.kind, tag.group, tag.index};
}

absl::Status Mesh::Run(int rank, std::span<const Transfer> transfers, absl::Duration timeout) {
  const Deadline deadline = DeadlineAfter(timeout);
  Group group{.rank = rank, .remaining = static_cast<int>(transfers.size()), .changed = {}};
  const absl::Status& status = status_[static_cast<size_t>(rank)];

  std::unique_lock lock(mutex_);
  Check(rank, transfers);
  if (!status.ok()) return status;
  groups_.insert(&group);
  std::vector<Match> matches;
  for (const Transfer& transfer : transfers) Post(group, transfer, matches);
  lock.unlock();
  for (const Match& match : matches) {
    const auto& bytes = match.send.transfer.bytes;
    if (!bytes.empty())
      std::memcpy(match.receive.transfer.bytes.data(), bytes.data(), bytes.size());
  }
  lock.lock();
  for (const Match& match : matches) Complete(match);

  const auto done = [&] { return group.remaining == group.copying || !status.ok(); };
  if (!group.changed.wait_until(lock, deadline, done)) {
    const absl::Status late = TimedOut(*FirstPending(group, transfers), rank, timeout);
    Fail(std::array{rank}, late, RankAborted(rank, late.message()));
  }
  group.changed.wait(lock, [&] { return group.copying == 0; });
  const bool complete = group.remaining == 0;
  if (!complete) Withdraw(group, transfers);
  groups_.erase(&group);
  return complete ? absl::OkStatus() : status;
}

void Mesh::Check(int rank, std::span<const Transfer> transfers) {
  for (const Transfer& transfer : transfers) {
    if (absl::Status bad = CheckTransfer(transfer, rank, size()); !bad.ok()) {
      Fail(std::array{rank}, bad, RankAborted(rank, bad.message()));
    } else if (closed_[static_cast<size_t>(transfer.peer)]) {
      Fail({}, RankClosed(transfer.peer), RankClosed(transfer.peer));
    }
  }
}

void Mesh::Post(Group& group, const Transfer& transfer, std::vector<Match>& matches) {
  const bool send = IsSend(transfer);
  const Key key = KeyOf(group.rank, transfer);
  Queues& theirs = send ? receives_ : sends_;
  const auto waiting = theirs.find(key);
  const Posted mine{&group, transfer};
  if (waiting == theirs.end()) {
    (send ? sends_ : receives_)[key].push_back(mine);
    return;
  }
  const Posted other = waiting->second.front();
  const Match match = send ? Match{mine, other} : Match{other, mine};
  const size_t sent = match.send.transfer.bytes.size();
  const size_t posted = match.receive.transfer.bytes.size();
  const auto [source, destination, kind, tag_group, index] = key;
  if (sent != posted) {
    const absl::Status differ = SizesDiffer(transfer.tag, source, sent, destination, posted);
    Fail(std::array{source, destination}, differ, RankAborted(destination, differ.message()));
    return;
  }
  waiting->second.pop_front();
  if (waiting->second.empty()) theirs.erase(waiting);
  ++match.send.group->copying;
  ++match.receive.group->copying;
  matches.push_back(match);
}

void Mesh::Complete(const Match& match) {
  const auto bytes = static_cast<int64_t>(match.send.transfer.bytes.size());
  TransportCounters& sender = counters_[static_cast<size_t>(match.send.group->rank)];
  ++sender.messages_sent;
  sender.bytes_sent += bytes;
  counters_[static_cast<size_t>(match.receive.group->rank)].bytes_received += bytes;
  for (Group* group : {match.send.group, match.receive.group}) {
    --group->remaining;
    --group->copying;
    group->changed.notify_all();
  }
}

void Mesh::Withdraw(const Group& group, std::span<const Transfer> transfers) {
  for (const Transfer& transfer : transfers) {
    Queues& queues = IsSend(transfer) ? sends_ : receives_;
    const auto queue = queues.find(KeyOf(group.rank, transfer));
    if (queue == queues.end()) continue;
    std::erase_if(queue->second, [&](const Posted& posted) { return posted.group == &group; });
    if (queue->second.empty()) queues.erase(queue);
  }
}

void Mesh::Fail(std::span<const int> culprits, const absl::Status& cause,
                const absl::Status& seen_by_others) {
  if (!status_.front().ok()) return;
  std::fill(status_.begin(), status_.end(), seen_by_others);
  for (int rank : culprits) status_[static_cast<size_t>(rank)] = cause;
  for (Group* group : groups_) group->changed.notify_all();
}

const Transfer* Mesh::FirstPending(const Group& group, std::span<const Transfer> transfers) const {
  for (const Transfer& transfer : transfers) {
    const Queues& queues = IsSend(transfer) ? sends_ : receives_;
    const auto queue = queues.find(KeyOf(group.rank, transfer));
    if (queue == queues.end()) continue;
    if (std::any_of(queue->second.begin(), queue->second.end(),
                    [&](const Posted& posted) { return posted.group == &group; })) {
      return &transfer;
    }
  }
  return &transfers.front();
}

void Mesh::Abort(int rank, const absl::Status& cause) {
  std::lock_guard lock(mutex_);
  Fail(std::array{rank}, cause, RankAborted(rank, cause.message()));
}

void Mesh::Close(int rank) {
  std::lock_guard lock(mutex_);
  closed_[static_cast<size_t>(rank)] = true;
  const auto waits_for_it = [&](const Queues& queues) {
    return std::any_of(queues.begin(), queues.end(), [&](const auto& queue) {
      return std::get<0>(queue.first) == rank || std::get<1>(queue.first) == rank;
    });
  };
  if (waits_for_it(sends_) || waits_for_it(receives_)) {
    Fail({}, RankClosed(rank), RankClosed(rank));
  }
}

TransportCounters Mesh::counters(int rank) const {
  std::lock_guard lock(mutex_);
  return counters_[static_cast<size_t>(rank)];
}

}  // namespace esteira

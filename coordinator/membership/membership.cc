#include "coordinator/membership/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"

namespace esteira {
const char* WorkerStateName(WorkerState state) {
  switch (state) {
    case WorkerState::kIdle: return "IDLE";
    case WorkerState::kBusy: return "BUSY";
    case WorkerState::kLost: return "LOST";
  }
  return "?";
}

WorkerState WorkerRecord::state() const {
  if (lost) return WorkerState::kLost;
  return assignment ? WorkerState::kBusy : WorkerState::kIdle;
}

absl::StatusOr<Membership::Registration> Membership::Register(const WorkerDescription& description,
                                                              int64_t session, absl::Time now) {
  RETURN_IF_ERROR(CheckWorkerId(description.id));
  std::deque<uint64_t>& retired = retired_[description.id];
  if (std::find(retired.begin(), retired.end(), description.incarnation) != retired.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", description.id, ": incarnation ", description.incarnation,
                     " was replaced by a later one. Is the same id used by two workers?"));
  }
  const auto present = workers_.find(description.id);
  if (present != workers_.end() && IsHeldByAnother(present->second, description, session, now)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "worker ", description.id, " is connected already; give this one another --id"));
  }
  Registration result;
  const auto entry = workers_.try_emplace(description.id);
  WorkerRecord& worker = entry.first->second;
  const bool known = !entry.second;
  if (!known) ++counts_[static_cast<size_t>(worker.state())];
  result.replaced_session = worker.session;
  Change(worker, [&] {
    if (known && worker.description.incarnation != description.incarnation) {
      result.abandoned = std::exchange(worker.assignment, std::nullopt);
      retired.push_back(worker.description.incarnation);
      if (retired.size() > kMaxRetired) retired.pop_front();
    }
    worker.description = description;
    worker.last_seen = now;
    worker.lost = false;
    worker.message.clear();
  });
  SetSession(worker, session);
  quiet_until_ = std::min(quiet_until_, DueTime(worker));
  return result;
}

bool Membership::IsHeldByAnother(const WorkerRecord& worker, const WorkerDescription& newcomer,
                                 int64_t session, absl::Time now) const {
  return worker.connected() && worker.session != session &&
         worker.description.incarnation != newcomer.incarnation &&
         AssessWorker(worker, now).health != Health::kLost;
}

bool Membership::Touch(const std::string& id, uint64_t incarnation, int64_t session,
                       absl::Time now) {
  const auto it = workers_.find(id);
  if (it == workers_.end()) return false;
  WorkerRecord& worker = it->second;
  if (worker.description.incarnation != incarnation || worker.session != session || worker.lost) {
    return false;
  }
  worker.last_seen = std::max(worker.last_seen, now);
  return true;
}

void Membership::RenewLeases(absl::Time now) {
  for (auto& [id, worker] : workers_) {
    if (!worker.lost) worker.last_seen = std::max(worker.last_seen, now);
  }
}

template <typename Edit>
void Membership::Change(WorkerRecord& worker, const Edit& edit) {
  --counts_[static_cast<size_t>(worker.state())];
  edit();
  ++counts_[static_cast<size_t>(worker.state())];
}

void Membership::SetSession(WorkerRecord& worker, int64_t session) {
  const auto before = worker_of_session_.find(worker.session);
  if (before != worker_of_session_.end() && before->second == worker.description.id) {
    worker_of_session_.erase(before);
  }
  worker.session = session;
  if (session != 0) worker_of_session_[session] = worker.description.id;
}

void Membership::Disconnect(int64_t session) {
  const auto found = worker_of_session_.find(session);
  if (found != worker_of_session_.end()) SetSession(workers_.at(found->second), 0);
}

void Membership::Assign(const std::string& id, const Assignment& assignment) {
  WorkerRecord& worker = workers_.at(id);
  Change(worker, [&] { worker.assignment = assignment; });
}

void Membership::Release(const std::string& id) {
  WorkerRecord& worker = workers_.at(id);
  Change(worker, [&] { worker.assignment.reset(); });
}

void Membership::MarkLost(const std::string& id, const std::string& reason) {
  WorkerRecord& worker = workers_.at(id);
  Change(worker, [&] {
    worker.lost = true;
    worker.assignment.reset();
    worker.message = reason;
  });
  SetSession(worker, 0);
  quiet_until_ = std::min(quiet_until_, DueTime(worker));
}

void Membership::AddLost(const std::string& id, const std::string& reason, absl::Time now) {
  const auto [it, added] = workers_.try_emplace(id);
  if (!added) return;
  it->second.description.id = id;
  it->second.last_seen = now;
  it->second.lost = true;
  it->second.message = reason;
  ++counts_[static_cast<size_t>(it->second.state())];
  quiet_until_ = std::min(quiet_until_, DueTime(it->second));
}

void Membership::Forget(const std::string& id) {
  const auto found = workers_.find(id);
  if (found == workers_.end()) return;
  --counts_[static_cast<size_t>(found->second.state())];
  SetSession(found->second, 0);
  workers_.erase(found);
  retired_.erase(id);
}

absl::Time Membership::DueTime(const WorkerRecord& worker) const {
  return worker.last_seen + (worker.lost ? options_.forget_after : options_.lease);
}

// Messages only move due times on, so what was found stays a lower bound.
void Membership::UpdateQuiet(absl::Time now) {
  if (now < quiet_until_) return;
  quiet_until_ = absl::InfiniteFuture();
  for (const auto& [id, worker] : workers_) {
    quiet_until_ = std::min(quiet_until_, DueTime(worker));
  }
}

const WorkerRecord* Membership::Find(const std::string& id) const {
  const auto it = workers_.find(id);
  return it == workers_.end() ? nullptr : &it->second;
}

Assessment Membership::AssessWorker(const WorkerRecord& worker, absl::Time now) const {
  return Assess(now, worker.last_seen, worker.connected(), options_.lease);
}

std::vector<std::string> Membership::ListAvailable(absl::Time now) const {
  std::vector<std::string> ids;
  for (const auto& [id, worker] : workers_) {
    if (worker.state() == WorkerState::kIdle && worker.connected() &&
        AssessWorker(worker, now).health == Health::kAlive) {
      ids.push_back(id);
    }
  }
  return ids;
}

}  // namespace esteira

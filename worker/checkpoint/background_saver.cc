#include "worker/checkpoint/background_saver.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "worker/checkpoint/state_stream.h"

namespace esteira {

int64_t BytesOfStates(const std::vector<UnitState>& states) {
  size_t bytes = 0;
  for (const UnitState& state : states) bytes += state.master.size_bytes() * kNumStateBuffers;
  return static_cast<int64_t>(bytes);
}

BackgroundSaver::BackgroundSaver(CheckpointWriter& writer, Done done)
    : writer_(writer), done_(std::move(done)) {}

BackgroundSaver::~BackgroundSaver() {
  if (thread_.joinable()) thread_.join();
}

absl::Status BackgroundSaver::Wait() {
  if (!thread_.joinable()) return absl::OkStatus();
  thread_.join();
  return std::exchange(last_, absl::OkStatus());
}

absl::Status BackgroundSaver::Start(int64_t step, int64_t updates, std::vector<UnitState> states,
                                    std::span<std::byte> copy) {
  CHECK(static_cast<int64_t>(copy.size()) >= BytesOfStates(states));
  const absl::Time began = absl::Now();
  absl::Status before = Wait();
  auto* to = reinterpret_cast<float*>(copy.data());
  for (UnitState& state : states) {
    for (std::span<float>* values : {&state.master, &state.m, &state.v}) {
      std::copy(values->begin(), values->end(), to);
      *values = {to, values->size()};
      to += values->size();
    }
  }
  const absl::Duration stall = absl::Now() - began;
  thread_ = std::thread([this, began, stall, step, updates, states = std::move(states)]() mutable {
    Write(began, stall, step, updates, std::move(states));
  });
  return before;
}

absl::Status BackgroundSaver::SaveNow(int64_t step, int64_t updates,
                                      std::vector<UnitState> states) {
  const absl::Time began = absl::Now();
  // It has been reported; what ends the run would end this save too.
  Wait().IgnoreError();
  Write(began, absl::InfiniteDuration(), step, updates, std::move(states));
  return std::exchange(last_, absl::OkStatus());
}

void BackgroundSaver::Write(absl::Time began, absl::Duration stall, int64_t step, int64_t updates,
                            std::vector<UnitState> states) {
  SaveReport report;
  report.step = step;
  report.result = writer_.Write(step, updates, std::move(states));
  report.duration = absl::Now() - began;
  report.stall = std::min(stall, report.duration);
  last_ = report.result.status();
  done_(report);
}

}  // namespace esteira

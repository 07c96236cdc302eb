#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/checkpoint/writer.h"
#include "worker/engine/engine.h"

namespace esteira {

// One save, as its rank saw it.
struct SaveReport {
  int64_t step = 0;
  absl::StatusOr<CheckpointResult> result;
  absl::Duration duration;  // from the end of the step to the end of the save
  absl::Duration stall;     // of that, what kept this rank from its next step
};

// Bytes that a copy of `states` takes.
int64_t BytesOfStates(const std::vector<UnitState>& states);

// Writes checkpoints behind the training: a save copies the states, which is all that training
// waits for, and a thread of this object writes the copy. One save at a time: the next one waits.
// All ranks save the same steps, since a save is collective. Does not own the memory of the copy.
// Used by one thread.
class BackgroundSaver {
 public:
  // `done` is called once for each save, before any later one, by the thread that wrote it.
  // `writer` outlives the saver.
  using Done = std::function<void(const SaveReport& report)>;
  BackgroundSaver(CheckpointWriter& writer, Done done);
  ~BackgroundSaver();  // waits for the save in flight

  // `copy` holds BytesOfStates(states) and is the saver's until the save is over. Returns how the
  // save before ended, when nobody has waited for it.
  absl::Status Start(int64_t step, int64_t updates, std::vector<UnitState> states,
                     std::span<std::byte> copy);
  // Writes without a copy, while the caller waits; first comes the save in flight. How it ended.
  absl::Status SaveNow(int64_t step, int64_t updates, std::vector<UnitState> states);
  // How the save in flight ended; OK when there is none.
  absl::Status Wait();

 private:
  void Write(absl::Time began, absl::Duration stall, int64_t step, int64_t updates,
             std::vector<UnitState> states);

  CheckpointWriter& writer_;
  const Done done_;
  std::thread thread_;
  absl::Status last_;  // written by the thread that writes, read after its end
};

}  // namespace esteira

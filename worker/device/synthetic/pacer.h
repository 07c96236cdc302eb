#pragma once

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace esteira {

// Time that passes on a stream's thread without computing: passes of a given length, one behind the
// other. The thread sleeps and never spins, so that many such streams share few cores. A sleep ends
// a little late; that lateness is taken off the passes that follow without a pause, so that a run
// of passes takes exactly the sum of their lengths. A pass that follows a pause, because it waited
// for something, has its whole length. Used by the tasks of one stream; owns nothing.
class Pacer {
 public:
  // `clock` outlives it. `sleep_until` blocks the caller.
  Pacer(const Clock& clock, std::function<void(absl::Time)> sleep_until);

  void Begin();
  // Blocks until `length` of the pass that began last has passed.
  void End(absl::Duration length);
  // Blocks until the pass that began last has taken `factor` (at least 1) times what it took so
  // far.
  void Stretch(double factor);

  // Two passes with no more than this between them follow without a pause.
  static constexpr absl::Duration kPause = absl::Microseconds(500);

 private:
  const Clock& clock_;
  const std::function<void(absl::Time)> sleep_until_;
  absl::Time began_ = absl::InfinitePast();
  absl::Time start_ = absl::InfinitePast();  // began_, less the lateness of the pass before
  absl::Time due_ = absl::InfinitePast();    // the end of the pass before, as it should have been
  absl::Time ended_ = absl::InfinitePast();  // as it was
};

// By the machine's clock.
std::unique_ptr<Pacer> MakePacer();

}  // namespace esteira

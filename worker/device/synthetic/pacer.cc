#include "worker/device/synthetic/pacer.h"

#include <utility>

#include "absl/time/clock.h"

namespace esteira {

Pacer::Pacer(const Clock& clock, std::function<void(absl::Time)> sleep_until)
    : clock_(clock), sleep_until_(std::move(sleep_until)) {}

void Pacer::Begin() {
  began_ = clock_.Now();
  start_ = began_ - ended_ <= kPause ? due_ : began_;
}

void Pacer::End(absl::Duration length) {
  due_ = start_ + length;
  if (due_ > clock_.Now()) sleep_until_(due_);
  ended_ = clock_.Now();
}

void Pacer::Stretch(double factor) { End((clock_.Now() - began_) * factor); }

std::unique_ptr<Pacer> MakePacer() {
  static const RealClock clock;
  return std::make_unique<Pacer>(clock,
                                 [](absl::Time until) { absl::SleepFor(until - clock.Now()); });
}

}  // namespace esteira

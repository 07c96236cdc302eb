#include "worker/device/synthetic/pacer.h"

#include <gtest/gtest.h>

#include "tests/fakes/fake_clock.h"

namespace esteira {
namespace {

// A pacer on a clock of its own, where every sleep ends `late`.
struct Bench {
  void Work(absl::Duration duration) { clock.Advance(duration); }
  absl::Duration Pass(absl::Duration length, absl::Duration work = absl::ZeroDuration()) {
    const absl::Time began = clock.Now();
    pacer.Begin();
    Work(work);
    pacer.End(length);
    return clock.Now() - began;
  }

  FakeClock clock;
  absl::Duration late;
  int sleeps = 0;
  Pacer pacer{clock, [this](absl::Time until) {
                ++sleeps;
                clock.Set(until + late);
              }};
};

constexpr absl::Duration kPass = absl::Milliseconds(5);

TEST(PacerTest, APassTakesItsLength) {
  Bench bench;
  EXPECT_EQ(bench.Pass(kPass), kPass);
}

TEST(PacerTest, WorkInsideAPassIsPartOfIt) {
  Bench bench;
  EXPECT_EQ(bench.Pass(kPass, absl::Milliseconds(2)), kPass);
}

TEST(PacerTest, LatenessOfASleepIsTakenOffThePassesBehindIt) {
  Bench bench;
  bench.late = absl::Microseconds(130);
  const absl::Time began = bench.clock.Now();
  for (int i = 0; i < 7; ++i) bench.Pass(kPass);
  EXPECT_EQ(bench.clock.Now() - began, 7 * kPass + bench.late);
}

TEST(PacerTest, WhatLiesBetweenPassesWithoutAPauseIsTakenOff) {
  Bench bench;
  const absl::Time began = bench.clock.Now();
  bench.Pass(kPass);
  bench.Work(Pacer::kPause);
  bench.Pass(kPass);
  EXPECT_EQ(bench.clock.Now() - began, 2 * kPass);
}

TEST(PacerTest, APassBehindAPauseHasItsWholeLength) {
  Bench bench;
  bench.late = absl::Microseconds(130);
  bench.Pass(kPass);
  bench.Work(Pacer::kPause + absl::Microseconds(1));
  EXPECT_EQ(bench.Pass(kPass), kPass + bench.late);
}

TEST(PacerTest, APassThatIsOverDoesNotSleepAndItsExcessIsCarried) {
  Bench bench;
  EXPECT_EQ(bench.Pass(kPass, absl::Milliseconds(7)), absl::Milliseconds(7));
  EXPECT_EQ(bench.sleeps, 0);
  EXPECT_EQ(bench.Pass(kPass), absl::Milliseconds(3));
}

TEST(PacerTest, NoTimeAtAllDoesNotSleep) {
  Bench bench;
  EXPECT_EQ(bench.Pass(absl::ZeroDuration()), absl::ZeroDuration());
  EXPECT_EQ(bench.sleeps, 0);
}

TEST(PacerTest, StretchMultipliesWhatThePassTook) {
  Bench bench;
  bench.late = absl::Microseconds(50);
  const absl::Time began = bench.clock.Now();
  for (int i = 0; i < 3; ++i) {
    bench.pacer.Begin();
    bench.Work(absl::Milliseconds(4));
    bench.pacer.Stretch(2.5);
  }
  EXPECT_EQ(bench.clock.Now() - began, 3 * absl::Milliseconds(10) + bench.late);
}

}  // namespace
}  // namespace esteira

#include "worker/communication/host/doorbell.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace esteira {
namespace {

constexpr absl::Duration kPlenty = absl::Seconds(30);

struct Bell {
  Doorbell doorbell{};
  std::atomic<int> published{0};
};

TEST(DoorbellTest, SleepsUntilTheDeadlineWhenNobodyRings) {
  Bell bell;
  const Deadline deadline = DeadlineAfter(absl::Milliseconds(20));
  bell.doorbell.Sleep(bell.doorbell.Await(), deadline);
  EXPECT_GE(std::chrono::steady_clock::now(), deadline);
  bell.doorbell.Sleep(bell.doorbell.Await(), Deadline{});  // has passed long ago
}

TEST(DoorbellTest, WhatWasRungSinceAwaitIsNotSleptThrough) {
  Bell bell;
  const uint32_t rings = bell.doorbell.Await();
  bell.doorbell.RingIfAwaited();
  bell.doorbell.Sleep(rings, DeadlineAfter(kPlenty));
}

TEST(DoorbellTest, IsNotRungWhileNobodyAwaits) {
  Bell bell;
  const uint32_t rings = bell.doorbell.Await();
  bell.doorbell.StopAwaiting();
  bell.doorbell.RingIfAwaited();
  EXPECT_EQ(bell.doorbell.Await(), rings);
}

// Each side sleeps until the other has published the next number.
TEST(DoorbellTest, NoNumberIsSleptThrough) {
  constexpr int kNumbers = 20'000;
  Bell bells[2];
  const Deadline deadline = DeadlineAfter(kPlenty);
  const auto play = [&](Bell& own, Bell& other) {
    for (int number = 1; number <= kNumbers; ++number) {
      other.published.store(number, std::memory_order_seq_cst);
      other.doorbell.RingIfAwaited();
      while (own.published.load(std::memory_order_seq_cst) < number) {
        ASSERT_LT(std::chrono::steady_clock::now(), deadline) << number;
        const uint32_t rings = own.doorbell.Await();
        if (own.published.load(std::memory_order_seq_cst) < number) {
          own.doorbell.Sleep(rings, deadline);
        }
        own.doorbell.StopAwaiting();
      }
    }
  };
  std::thread second([&] { play(bells[1], bells[0]); });
  play(bells[0], bells[1]);
  second.join();
}

}  // namespace
}  // namespace esteira

#include "coordinator/membership/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace esteira {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);
constexpr absl::Duration kLease = absl::Seconds(10);

Membership Make() { return Membership({kLease, absl::Hours(1)}); }

WorkerDescription Describe(const std::string& id, uint64_t incarnation) {
  WorkerDescription worker;
  worker.id = id;
  worker.incarnation = incarnation;
  return worker;
}

TEST(Membership, IsQuietUntilTheFirstLeaseCanHaveEnded) {
  Membership membership = Make();
  EXPECT_EQ(membership.quiet_until(), absl::InfiniteFuture());
  ASSERT_TRUE(membership.Register(Describe("a", 1), 1, kStart).ok());
  ASSERT_TRUE(membership.Register(Describe("b", 1), 2, kStart + absl::Seconds(3)).ok());
  EXPECT_EQ(membership.quiet_until(), kStart + kLease);
  // What is heard moves it on only when it has passed.
  ASSERT_TRUE(membership.Touch("a", 1, 1, kStart + absl::Seconds(8)));
  membership.UpdateQuiet(kStart + absl::Seconds(9));
  EXPECT_EQ(membership.quiet_until(), kStart + kLease);
  membership.UpdateQuiet(kStart + kLease);
  EXPECT_EQ(membership.quiet_until(), kStart + absl::Seconds(3) + kLease);
}

TEST(Membership, IsNotQuietWhenALostWorkerIsToBeForgotten) {
  Membership membership = Make();
  membership.AddLost("a", "gone", kStart);
  EXPECT_EQ(membership.quiet_until(), kStart + absl::Hours(1));
  ASSERT_TRUE(membership.Register(Describe("a", 1), 1, kStart).ok());
  EXPECT_EQ(membership.quiet_until(), kStart + kLease);
  membership.MarkLost("a", "silent");
  membership.UpdateQuiet(kStart + kLease);
  EXPECT_EQ(membership.quiet_until(), kStart + absl::Hours(1));
}

TEST(Assess, AliveThenSuspectThenLostAtTheLeaseItself) {
  const auto health = [](absl::Duration silence) {
    return Assess(kStart + silence, kStart, true, kLease).health;
  };
  EXPECT_EQ(health(absl::ZeroDuration()), Health::kAlive);
  EXPECT_EQ(health(absl::Milliseconds(4999)), Health::kAlive);
  EXPECT_EQ(health(absl::Seconds(5)), Health::kSuspect);
  EXPECT_EQ(health(absl::Milliseconds(9999)), Health::kSuspect);
  EXPECT_EQ(health(absl::Seconds(10)), Health::kLost);
}

TEST(Assess, SaysWhy) {
  EXPECT_EQ(Assess(kStart + absl::Seconds(12), kStart, false, kLease).reason,
            "nothing heard for 12s (lease 10s), its stream is closed");
  EXPECT_THAT(Assess(kStart + absl::Seconds(6), kStart, true, kLease).reason,
              HasSubstr("its stream is open"));
  EXPECT_EQ(Assess(kStart, kStart, true, kLease).reason, "");
}

TEST(Membership, ANewLifeEndsTheOldOneAndItsPlace) {
  Membership membership = Make();
  ASSERT_TRUE(membership.Register(Describe("w", 1), 10, kStart).ok());
  membership.Assign("w", {"job-1", 1, 0});
  membership.Disconnect(10);
  const auto second = membership.Register(Describe("w", 2), 11, kStart);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->replaced_session, 0);
  ASSERT_TRUE(second->abandoned.has_value());
  EXPECT_EQ(*second->abandoned, (Assignment{"job-1", 1, 0}));
  EXPECT_EQ(membership.Find("w")->state(), WorkerState::kIdle);
  EXPECT_FALSE(membership.Touch("w", 1, 10, kStart));
  EXPECT_FALSE(membership.Touch("w", 1, 11, kStart));
  EXPECT_TRUE(membership.Touch("w", 2, 11, kStart));
  EXPECT_EQ(membership.Register(Describe("w", 1), 12, kStart).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Membership, ASecondWorkerWithTheIdOfOneThatIsThereIsRefused) {
  Membership membership = Make();
  ASSERT_TRUE(membership.Register(Describe("w", 1), 10, kStart).ok());
  membership.Assign("w", {"job-1", 1, 0});
  const absl::Time last = kStart + kLease - absl::Milliseconds(1);
  EXPECT_EQ(membership.Register(Describe("w", 2), 11, last).status(),
            absl::AlreadyExistsError("worker w is connected already; give this one another --id"));
  EXPECT_EQ(membership.Find("w")->state(), WorkerState::kBusy);
  EXPECT_TRUE(membership.Touch("w", 1, 10, kStart)) << "the first one is not affected";
  // Its machine may have died without closing the stream.
  const auto later = membership.Register(Describe("w", 2), 11, kStart + kLease);
  ASSERT_TRUE(later.ok());
  EXPECT_EQ(later->replaced_session, 10);
  EXPECT_TRUE(later->abandoned.has_value());
}

TEST(Membership, AWorkerThatDoesNotComeIsListedAsLost) {
  Membership membership = Make();
  ASSERT_TRUE(membership.Register(Describe("here", 1), 1, kStart).ok());
  membership.AddLost("here", "why", kStart);
  membership.AddLost("away", "why", kStart);
  EXPECT_EQ(membership.Find("here")->state(), WorkerState::kIdle);
  EXPECT_EQ(membership.Find("away")->state(), WorkerState::kLost);
  EXPECT_EQ(membership.Find("away")->message, "why");
  EXPECT_EQ(membership.CountPresent(), 1);
  const auto back = membership.Register(Describe("away", 7), 2, kStart);
  ASSERT_TRUE(back.ok());
  EXPECT_FALSE(back->abandoned.has_value());
  EXPECT_EQ(membership.Find("away")->state(), WorkerState::kIdle);
}

TEST(Membership, TheSameLifeOnANewStreamKeepsItsPlace) {
  Membership membership = Make();
  ASSERT_TRUE(membership.Register(Describe("w", 1), 10, kStart).ok());
  membership.Assign("w", {"job-1", 1, 0});
  const auto again = membership.Register(Describe("w", 1), 11, kStart);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->abandoned.has_value());
  EXPECT_EQ(membership.Find("w")->state(), WorkerState::kBusy);
  membership.Disconnect(10);
  EXPECT_TRUE(membership.Find("w")->connected()) << "the old stream's end is not the new one's";
}

TEST(Membership, OnlyIdleConnectedAndUnsuspectedWorkersAreAvailable) {
  Membership membership = Make();
  for (const char* id : {"busy", "closed", "idle", "silent"}) {
    ASSERT_TRUE(membership.Register(Describe(id, 1), id[0], kStart).ok());
  }
  const absl::Time now = kStart + absl::Seconds(6);
  membership.Assign("busy", {"job-1", 1, 0});
  for (const char* id : {"busy", "closed", "idle"})
    ASSERT_TRUE(membership.Touch(id, 1, id[0], now));
  membership.Disconnect('c');
  EXPECT_THAT(membership.ListAvailable(now), ElementsAre("idle"));
  EXPECT_EQ(membership.CountPresent(), 4);
  membership.MarkLost("silent", "why");
  EXPECT_EQ(membership.CountPresent(), 3);
  EXPECT_EQ(membership.Find("silent")->message, "why");
  EXPECT_FALSE(membership.Touch("silent", 1, 's', now)) << "a lost worker registers again first";
}

// Whatever happens to workers, what is kept is what a look at every one of them would find.
TEST(Membership, CountsAndSessionsAreThoseOfAllWorkers) {
  Membership membership = Make();
  uint64_t random = 5;
  const auto draw = [&random](uint64_t below) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return (random >> 33) % below;
  };
  int64_t session = 0;
  for (int turn = 0; turn < 4000; ++turn) {
    const std::string id(1, static_cast<char>('a' + draw(6)));
    const WorkerRecord* worker = membership.Find(id);
    const absl::Time now = kStart + absl::Seconds(turn);
    switch (draw(7)) {
      case 0:
      case 1: (void)membership.Register(Describe(id, 1 + draw(9)), ++session, now); break;
      case 2:
        if (worker != nullptr) membership.Assign(id, {"job", 1, 0});
        break;
      case 3:
        if (worker != nullptr) membership.Release(id);
        break;
      case 4:
        if (worker != nullptr) membership.MarkLost(id, "silent");
        break;
      case 5: membership.AddLost(id, "gone", now); break;
      case 6: {
        const int64_t ended = 1 + static_cast<int64_t>(draw(static_cast<uint64_t>(session) + 2));
        membership.Disconnect(ended);
        for (const auto& [name, record] : membership.workers()) EXPECT_NE(record.session, ended);
        if (draw(4) == 0) membership.Forget(id);
        break;
      }
    }
    std::array<int, kNumWorkerStates> found{};
    for (const auto& [name, record] : membership.workers()) {
      ++found[static_cast<size_t>(record.state())];
    }
    for (const WorkerState state : {WorkerState::kIdle, WorkerState::kBusy, WorkerState::kLost}) {
      ASSERT_EQ(membership.Count(state), found[static_cast<size_t>(state)]) << "turn " << turn;
    }
    ASSERT_EQ(membership.CountPresent(), found[0] + found[1]);
  }
  EXPECT_GT(membership.workers().size(), 0u);
}

TEST(Membership, ALateMessageDoesNotShortenTheLease) {
  Membership membership = Make();
  ASSERT_TRUE(membership.Register(Describe("w", 1), 1, kStart + absl::Seconds(5)).ok());
  ASSERT_TRUE(membership.Touch("w", 1, 1, kStart));
  EXPECT_EQ(membership.Find("w")->last_seen, kStart + absl::Seconds(5));
}

TEST(Membership, RefusesIdsThatDoNotFitIntoPathsAndLabels) {
  Membership membership = Make();
  for (const std::string& id : {std::string(), std::string("a b"), std::string("a/../b"),
                                std::string("a\nb"), std::string(129, 'a')}) {
    EXPECT_EQ(membership.Register(Describe(id, 1), 1, kStart).status().code(),
              absl::StatusCode::kInvalidArgument)
        << id;
  }
  EXPECT_THAT(membership.workers(), IsEmpty());
}

}  // namespace
}  // namespace esteira

#include "coordinator/job/job_state.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "coordinator/job/job.h"

namespace esteira {
namespace {

using enum JobState;

// The drawing of the header, edge by edge.
const std::set<std::pair<JobState, JobState>>& Drawn() {
  static const auto& edges = *new std::set<std::pair<JobState, JobState>>{
      {kQueued, kPlanning},    {kPlanning, kStarting}, {kStarting, kRunning},
      {kRunning, kSucceeded},  {kPlanning, kQueued},   {kStarting, kQueued},
      {kQueued, kFailed},      {kPlanning, kFailed},   {kStarting, kFailed},
      {kRunning, kFailed},     {kStarting, kStopping}, {kRunning, kStopping},
      {kStopping, kCancelled}, {kQueued, kCancelled},  {kPlanning, kCancelled}};
  return edges;
}

class EveryPair : public testing::TestWithParam<std::tuple<JobState, JobState>> {};

TEST_P(EveryPair, IsAllowedExactlyWhenDrawn) {
  const auto [from, to] = GetParam();
  EXPECT_EQ(IsAllowed(from, to), Drawn().count({from, to}) == 1)
      << JobStateName(from) << " -> " << JobStateName(to);
}

TEST_P(EveryPair, TransitionRecordsOrDies) {
  const auto [from, to] = GetParam();
  const absl::Time now = absl::UnixEpoch() + absl::Seconds(5);
  Job job = MakeQueuedJob(1, absl::UnixEpoch());
  job.state = from;
  if (Drawn().count({from, to}) == 0) {
    GTEST_FLAG_SET(death_test_style, "fast");
    EXPECT_DEATH(Transition(job, to, "R", "m", now), "CHECK failed");
    return;
  }
  Transition(job, to, "R", "m", now);
  EXPECT_EQ(job.state, to);
  EXPECT_EQ(job.transitions.size(), 2u);
  EXPECT_EQ(job.transitions.back().reason, "R");
  EXPECT_EQ(job.end_time.has_value(), IsTerminal(to));
}

std::string NamePair(const testing::TestParamInfo<std::tuple<JobState, JobState>>& pair) {
  return std::string(JobStateName(std::get<0>(pair.param))) + "_" +
         JobStateName(std::get<1>(pair.param));
}

INSTANTIATE_TEST_SUITE_P(States, EveryPair,
                         testing::Combine(testing::ValuesIn(kJobStates),
                                          testing::ValuesIn(kJobStates)),
                         NamePair);

}  // namespace
}  // namespace esteira

#include "worker/agent/session.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/worker/agent/fake_coordinator.h"

namespace esteira {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Streams = FakeCoordinator::Streams;

v1::TrainerReport Report(int64_t step) {
  v1::TrainerReport report;
  report.mutable_step()->mutable_record()->set_step(step);
  return report;
}

std::vector<uint64_t> SequencesOf(const SeenStream& stream) {
  std::vector<uint64_t> sequences;
  for (const v1::WorkerMessage& message : stream.messages) {
    if (message.has_report()) sequences.push_back(message.sequence());
  }
  return sequences;
}

class SessionTest : public testing::Test {
 protected:
  SessionOptions Options() {
    SessionOptions options;
    options.coordinator = coordinator_.address();
    options.worker_id = "w";
    options.incarnation = 77;
    options.first_backoff = absl::Milliseconds(1);
    options.last_backoff = absl::Milliseconds(20);
    return options;
  }
  std::unique_ptr<Session> Open(const SessionOptions& options) {
    v1::Register registration;
    registration.set_host("host");
    return std::make_unique<Session>(
        options, registration,
        Session::Callbacks{.on_message =
                               [this](v1::CoordinatorMessage message) {
                                 absl::MutexLock lock(&mutex_);
                                 messages_.push_back(std::move(message));
                               },
                           .on_connection =
                               [this](bool connected) {
                                 absl::MutexLock lock(&mutex_);
                                 connections_.push_back(connected);
                               }},
        Logger(sink_));
  }
  std::unique_ptr<Session> Open() { return Open(Options()); }

  // Waits until stream `index` has brought `count` reports; their sequence numbers.
  std::vector<uint64_t> AwaitReports(size_t index, size_t count) {
    coordinator_.Await([&](const Streams& streams) {
      return streams.size() > index && SequencesOf(streams[index]).size() >= count;
    });
    const Streams streams = coordinator_.streams();
    return index < streams.size() ? SequencesOf(streams[index]) : std::vector<uint64_t>();
  }
  template <typename Predicate>
  bool AwaitHere(const Predicate& predicate) {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&predicate), kPatience);
  }

  KeepingSink sink_;
  FakeCoordinator coordinator_;
  absl::Mutex mutex_;
  std::vector<v1::CoordinatorMessage> messages_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> connections_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(SessionTest, RegistersFirstAndBeats) {
  const auto session = Open();
  ASSERT_TRUE(coordinator_.Await(
      [](const Streams& streams) { return !streams.empty() && streams[0].heartbeats >= 3; }));
  const v1::WorkerMessage hello = coordinator_.streams()[0].messages[0];
  EXPECT_EQ(hello.worker_id(), "w");
  EXPECT_EQ(hello.incarnation(), 77u);
  EXPECT_EQ(hello.sequence(), 0u);
  EXPECT_EQ(hello.register_().host(), "host");
}

TEST_F(SessionTest, TheFirstBeatDoesNotWaitForItsPeriod) {
  coordinator_.Set({.heartbeat_ms = 3'600'000});
  const absl::Time start = absl::Now();
  const auto session = Open();
  ASSERT_TRUE(coordinator_.Await(
      [](const Streams& streams) { return !streams.empty() && streams[0].heartbeats >= 1; }));
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(1900)) << "the period before registration: 2 s";
}

TEST_F(SessionTest, ReportsKeepTheirOrderAndAreNumberedFromOne) {
  coordinator_.Set({.heartbeat_ms = 3'600'000});
  const auto session = Open();
  for (int i = 1; i <= 101; ++i) session->Report(Report(i));
  const std::vector<uint64_t> sequences = AwaitReports(0, 101);
  ASSERT_EQ(sequences.size(), 101u);
  const SeenStream stream = coordinator_.streams()[0];
  for (size_t i = 1; i <= 101; ++i) {
    EXPECT_EQ(stream.messages[i].sequence(), i);
    EXPECT_EQ(stream.messages[i].report().step().record().step(), static_cast<int64_t>(i));
    EXPECT_EQ(stream.messages[i].worker_id(), "w");
    EXPECT_EQ(stream.messages[i].incarnation(), 77u);
  }
}

TEST_F(SessionTest, NothingGoesOutBeforeTheRegistrationIsAnswered) {
  coordinator_.Set({.answer = false});
  const auto session = Open();
  session->Report(Report(1));
  ASSERT_TRUE(coordinator_.AwaitStreams(1));
  coordinator_.Set({});
  coordinator_.Break();
  EXPECT_THAT(AwaitReports(1, 1), ElementsAre(1));
  const SeenStream first = coordinator_.streams()[0];
  EXPECT_EQ(first.messages.size(), 1u);
  EXPECT_EQ(first.heartbeats, 0);
}

TEST_F(SessionTest, WhatWasNotAcknowledgedIsSentAgainAfterABreak) {
  const auto session = Open();
  for (int i = 1; i <= 5; ++i) session->Report(Report(i));
  ASSERT_EQ(AwaitReports(0, 5).size(), 5u);
  coordinator_.Acknowledge(3);
  v1::CoordinatorMessage marker;  // behind the acknowledgement: once it is here, both are
  marker.mutable_abort()->set_job_id("marker");
  coordinator_.Send(marker);
  ASSERT_TRUE(AwaitHere(
      [this] { return !messages_.empty() && messages_.back().abort().job_id() == "marker"; }));
  coordinator_.Break();
  EXPECT_THAT(AwaitReports(1, 2), ElementsAre(4, 5));
  session->Report(Report(6));
  EXPECT_THAT(AwaitReports(1, 3), ElementsAre(4, 5, 6));
}

TEST_F(SessionTest, EverythingAcknowledgedIsNotSentAgain) {
  const auto session = Open();
  for (int i = 1; i <= 3; ++i) session->Report(Report(i));
  ASSERT_EQ(AwaitReports(0, 3).size(), 3u);
  coordinator_.Acknowledge(3);
  session->Flush(kPatience);
  coordinator_.Break();
  ASSERT_TRUE(coordinator_.AwaitStreams(2));
  session->Report(Report(4));
  EXPECT_THAT(AwaitReports(1, 1), ElementsAre(4));
}

TEST_F(SessionTest, ACoordinatorThatKnowsAllAlreadyIsSentNothingAgain) {
  const auto session = Open();
  for (int i = 1; i <= 5; ++i) session->Report(Report(i));
  ASSERT_EQ(AwaitReports(0, 5).size(), 5u);
  coordinator_.Set({.acknowledge_at_registration = 5});
  coordinator_.Break();
  ASSERT_TRUE(coordinator_.Await(
      [](const Streams& streams) { return streams.size() > 1 && streams[1].heartbeats > 0; }));
  session->Report(Report(6));
  EXPECT_THAT(AwaitReports(1, 1), ElementsAre(6));
  EXPECT_EQ(coordinator_.streams()[1].messages.size(), 2u) << "the registration and the report";
}

TEST_F(SessionTest, AnAcknowledgementOfTheFutureHarmsNothing) {
  coordinator_.Set({.acknowledge_at_registration = 1'000'000});
  const auto session = Open();
  ASSERT_TRUE(coordinator_.Await(
      [](const Streams& streams) { return !streams.empty() && streams[0].heartbeats > 0; }));
  session->Report(Report(1));
  session->Report(Report(2));
  EXPECT_THAT(AwaitReports(0, 2), ElementsAre(1, 2));
}

TEST_F(SessionTest, OnlySoManyReportsAreKept) {
  coordinator_.Set({.answer = false});
  SessionOptions options = Options();
  options.kept_reports = 3;
  const auto session = Open(options);
  for (int i = 1; i <= 10; ++i) session->Report(Report(i));
  ASSERT_TRUE(coordinator_.AwaitStreams(1));
  coordinator_.Set({});
  coordinator_.Break();
  EXPECT_THAT(AwaitReports(1, 3), ElementsAre(8, 9, 10));
}

v1::TrainerReport Line(const std::string& text) {
  v1::TrainerReport report;
  report.set_job_id("job");
  report.mutable_log()->set_rank(2);
  report.mutable_log()->set_text(text);
  return report;
}

// What a stream brought: the texts of lines, and "step N".
std::vector<std::string> Brought(const SeenStream& stream) {
  std::vector<std::string> brought;
  for (const v1::WorkerMessage& message : stream.messages) {
    const v1::TrainerReport& report = message.report();
    if (report.has_log()) brought.push_back(report.log().text());
    if (report.has_step()) brought.push_back(absl::StrCat("step ", report.step().record().step()));
  }
  return brought;
}

TEST_F(SessionTest, AFloodOfLinesIsCutAndSaysHowMuch) {
  coordinator_.Set({.answer = false});
  SessionOptions options = Options();
  options.kept_log_bytes = 2 * (512 + 1);
  const auto session = Open(options);
  for (const char* text : {"a", "b"}) EXPECT_TRUE(session->Report(Line(text)));
  for (const char* text : {"c", "", "e"}) EXPECT_FALSE(session->Report(Line(text)));
  EXPECT_TRUE(session->Report(Report(1))) << "a step is never dropped for lines";
  EXPECT_FALSE(session->Report(Line("f")));
  ASSERT_TRUE(coordinator_.AwaitStreams(1));
  coordinator_.Set({});
  coordinator_.Break();
  ASSERT_EQ(AwaitReports(1, 4).size(), 4u);
  coordinator_.Acknowledge(4);
  session->Flush(kPatience);
  EXPECT_TRUE(session->Report(Line("g"))) << "there is room again";
  ASSERT_EQ(AwaitReports(1, 6).size(), 6u);
  const SeenStream stream = coordinator_.streams()[1];
  const std::string why = " dropped here: the coordinator did not take them fast enough";
  EXPECT_THAT(Brought(stream),
              ElementsAre("a", "b", "3 lines were" + why, "step 1", "1 line was" + why, "g"));
  const v1::TrainerReport& note = stream.messages[3].report();
  EXPECT_EQ(note.job_id(), "job");
  EXPECT_EQ(note.log().rank(), 2);
}

TEST_F(SessionTest, TheNextRegistrationSaysWhatIsNew) {
  const auto session = Open();
  ASSERT_TRUE(coordinator_.AwaitStreams(1));
  v1::Register registration;
  registration.set_job_id("job");
  session->SetRegistration(registration);
  coordinator_.Break();
  ASSERT_TRUE(coordinator_.AwaitStreams(2));
  EXPECT_EQ(coordinator_.streams()[1].messages[0].register_().job_id(), "job");
}

TEST_F(SessionTest, ConnectionsAndTheirLossAreTold) {
  const auto session = Open();
  ASSERT_TRUE(AwaitHere([this] { return connections_.size() == 1; }));
  coordinator_.Break();
  ASSERT_TRUE(AwaitHere([this] { return connections_.size() >= 3; }));
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(connections_, ElementsAre(true, false, true));
}

TEST_F(SessionTest, AStreamThatNeverRegisteredIsNoConnection) {
  coordinator_.Set({.answer = false});
  const auto session = Open();
  ASSERT_TRUE(coordinator_.AwaitStreams(1));
  coordinator_.Break();
  ASSERT_TRUE(coordinator_.AwaitStreams(2));
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(connections_, IsEmpty());
}

TEST_F(SessionTest, FlushWaitsForTheAcknowledgement) {
  const auto session = Open();
  session->Flush(absl::ZeroDuration());  // nothing to wait for
  session->Report(Report(1));
  ASSERT_EQ(AwaitReports(0, 1).size(), 1u);
  const absl::Time start = absl::Now();
  session->Flush(absl::Milliseconds(30));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(30)) << "sent is not acknowledged";
  coordinator_.Set({.acknowledge = true});
  session->Report(Report(2));
  session->Flush(absl::InfiniteDuration());
  EXPECT_THAT(SequencesOf(coordinator_.streams()[0]), ElementsAre(1, 2));
}

TEST_F(SessionTest, EndsAtOnceWithoutACoordinator) {
  SessionOptions options = Options();
  options.coordinator = "127.0.0.1:1";
  for (int i = 0; i < 3; ++i) Open(options);
}

TEST_F(SessionTest, EndsWhileAConnectionIsBeingMade) {
  // The kernel accepts, and nobody ever answers: gRPC would wait for 20 s.
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  SessionOptions options = Options();
  options.coordinator = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  auto session = Open(options);
  const int accepted = accept(fd, nullptr, nullptr);  // now the call is on its way
  const absl::Time start = absl::Now();
  session = nullptr;
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  close(accepted);
  close(fd);
}

}  // namespace
}  // namespace esteira

#include "worker/agent/trainer_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace esteira {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

// A child and what it said.
class Child {
 public:
  explicit Child(const std::string& script) : Child({"/bin/sh", "-c", script}, 0) {}
  Child(const std::vector<std::string>& command, int) {
    auto spawned = TrainerProcess::Spawn(command, {.on_report =
                                                       [this](v1::TrainerReport report) {
                                                         absl::MutexLock lock(&mutex_);
                                                         EXPECT_FALSE(exited_);
                                                         reports_.push_back(std::move(report));
                                                       },
                                                   .on_output =
                                                       [this](std::string line) {
                                                         absl::MutexLock lock(&mutex_);
                                                         EXPECT_FALSE(exited_);
                                                         lines_.push_back(std::move(line));
                                                       },
                                                   .on_exit =
                                                       [this](v1::Exited exited) {
                                                         absl::MutexLock lock(&mutex_);
                                                         EXPECT_FALSE(exited_) << "once";
                                                         exited_ = std::move(exited);
                                                       }});
    EXPECT_TRUE(spawned.ok()) << spawned.status();
    process_ = *std::move(spawned);
  }

  TrainerProcess& process() { return *process_; }
  void Destroy() { process_ = nullptr; }

  std::optional<v1::Exited> AwaitExit() {
    absl::MutexLock lock(&mutex_);
    const auto ended = [this]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return exited_.has_value(); };
    mutex_.AwaitWithTimeout(absl::Condition(&ended), kPatience);
    return exited_;
  }
  bool AwaitLines(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return lines_.size() >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), kPatience);
  }
  bool has_exited() {
    absl::MutexLock lock(&mutex_);
    return exited_.has_value();
  }
  std::vector<std::string> lines() {
    absl::MutexLock lock(&mutex_);
    return lines_;
  }
  std::vector<v1::TrainerReport> reports() {
    absl::MutexLock lock(&mutex_);
    return reports_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<v1::TrainerReport> reports_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::Exited> exited_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<TrainerProcess> process_;
};

TEST(TrainerProcess, ReportsTheExitCode) {
  for (const int code : {0, 1, 42, 255}) {
    Child child(absl::StrCat("exit ", code));
    const auto exited = child.AwaitExit();
    ASSERT_TRUE(exited);
    EXPECT_EQ(exited->exit_code(), code);
    EXPECT_EQ(exited->signal(), 0);
    EXPECT_EQ(exited->message(), absl::StrCat("trainer exited with code ", code));
  }
}

TEST(TrainerProcess, NamesTheSignal) {
  const std::pair<int, std::string> causes[] = {{SIGSEGV, " (SIGSEGV)"}, {SIGKILL, " (SIGKILL)"}};
  for (const auto& [signal, name] : causes) {
    Child child(absl::StrCat("kill -", signal, " $$"));
    const auto exited = child.AwaitExit();
    ASSERT_TRUE(exited);
    EXPECT_EQ(exited->signal(), signal);
    EXPECT_EQ(exited->message(), absl::StrCat("trainer killed by signal ", signal, name));
    EXPECT_FALSE(exited->out_of_memory());
  }
}

TEST(TrainerProcess, ASignalWithoutANameIsANumber) {
  Child child("kill -40 $$");
  const auto exited = child.AwaitExit();
  ASSERT_TRUE(exited);
  EXPECT_EQ(exited->message(), "trainer killed by signal 40");
}

TEST(TrainerProcess, PassesLinesOfBothOutputs) {
  Child child("echo one; echo two >&2; echo; printf 'no end'");
  ASSERT_TRUE(child.AwaitExit());
  EXPECT_THAT(child.lines(), ElementsAre("one", "two", "", "no end"));
}

TEST(TrainerProcess, CutsLongLines) {
  // 40,000 bytes and a line's end: 16 KiB, 16 KiB and the rest; then one of exactly 16 KiB.
  Child child(
      "head -c 40000 /dev/zero | tr '\\0' x; echo; head -c 16384 /dev/zero | tr '\\0' y; "
      "echo; echo short");
  ASSERT_TRUE(child.AwaitExit());
  EXPECT_THAT(child.lines(),
              ElementsAre(std::string(16384, 'x'), std::string(16384, 'x'),
                          std::string(40000 - 2 * 16384, 'x'), std::string(16384, 'y'), "short"));
}

TEST(TrainerProcess, CutsBetweenCharacters) {
  // Byte 16,384 would be the second of a character of two.
  Child child("head -c 16383 /dev/zero | tr '\\0' x; printf '\\303\\251 end'");
  ASSERT_TRUE(child.AwaitExit());
  EXPECT_THAT(child.lines(), ElementsAre(std::string(16383, 'x'), "\xc3\xa9 end"));
}

TEST(TrainerProcess, ReplacesWhatIsNotUtf8) {
  Child child(
      "printf "
      "'a\\377b\\n\\303\\n\\355\\240\\200\\n\\300\\200\\n\\303\\251\\360\\237\\230\\200\\n'");
  ASSERT_TRUE(child.AwaitExit());
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_THAT(child.lines(), ElementsAre("a" + bad + "b", bad, bad + bad + bad, bad + bad,
                                         "\xc3\xa9\xf0\x9f\x98\x80"));
}

TEST(TrainerProcess, ReadsReportsFromDescriptor3) {
  // Frames of TrainerReport{rank: 5} and of an empty one.
  Child child("printf '\\002\\000\\000\\000\\030\\005\\000\\000\\000\\000' >&3");
  ASSERT_TRUE(child.AwaitExit());
  ASSERT_EQ(child.reports().size(), 2u);
  EXPECT_EQ(child.reports()[0].rank(), 5);
  EXPECT_EQ(child.reports()[1].ByteSizeLong(), 0u);
}

TEST(TrainerProcess, SendsMessagesToDescriptor3) {
  Child child("head -c 8 <&3 | od -An -tx1");
  v1::CoordinatorMessage message;
  message.mutable_acknowledged()->set_sequence(7);
  child.process().Send(message);
  ASSERT_TRUE(child.AwaitExit());
  EXPECT_THAT(child.lines(), ElementsAre(" 04 00 00 00 32 02 08 07"));
}

TEST(TrainerProcess, AChildThatSpeaksGarbageIsKilled) {
  Child child("printf '\\377\\377\\377\\377' >&3; sleep 300");
  const auto exited = child.AwaitExit();
  ASSERT_TRUE(exited);
  EXPECT_EQ(exited->signal(), SIGKILL);
  ASSERT_EQ(child.lines().size(), 1u);
  EXPECT_THAT(child.lines()[0], HasSubstr("killed by its daemon: a frame"));
}

TEST(TrainerProcess, KillEndsAChildThatIgnoresOtherSignals) {
  Child child("trap '' TERM INT HUP; echo up; while true; do sleep 300; done");
  ASSERT_TRUE(child.AwaitLines(1));
  child.process().Kill();
  const auto exited = child.AwaitExit();
  ASSERT_TRUE(exited);
  EXPECT_EQ(exited->signal(), SIGKILL);
  child.process().Kill();  // after the end: nothing
}

TEST(TrainerProcess, WhatAChildLeavesBehindDoesNotDelayItsEnd) {
  Child child("sleep 300 & echo $!; exit 3");
  const auto exited = child.AwaitExit();
  ASSERT_TRUE(exited);
  EXPECT_EQ(exited->exit_code(), 3);
}

TEST(TrainerProcess, DestructionKillsARunningChildAndReportsIt) {
  Child child("echo up; sleep 300; true");
  ASSERT_TRUE(child.AwaitLines(1));
  const pid_t pid = child.process().pid();
  child.Destroy();
  EXPECT_TRUE(child.has_exited());
  EXPECT_EQ(child.AwaitExit()->signal(), SIGKILL);
  EXPECT_EQ(kill(pid, 0), -1) << "reaped";
}

TEST(TrainerProcess, DestructionWithoutAnyWaiting) {
  for (int i = 0; i < 5; ++i) {
    Child child("sleep 300");
    child.Destroy();
    EXPECT_TRUE(child.has_exited());
  }
}

TEST(TrainerProcess, SendNeverBlocksOnAChildThatDoesNotRead) {
  Child child("sleep 300");
  v1::CoordinatorMessage message;
  message.mutable_abort()->set_message(std::string(4 << 20, 'x'));
  for (int i = 0; i < 3; ++i) child.process().Send(message);
  child.process().Kill();
  const auto exited = child.AwaitExit();
  ASSERT_TRUE(exited);
  EXPECT_EQ(exited->signal(), SIGKILL);
  child.process().Send(message);  // to nobody
}

TEST(TrainerProcess, AProgramThatIsNotThereIsNamed) {
  const auto spawned = TrainerProcess::Spawn({"/nowhere/trainer"}, {});
  EXPECT_EQ(spawned.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(spawned.status().message()), HasSubstr("/nowhere/trainer"));
}

}  // namespace
}  // namespace esteira

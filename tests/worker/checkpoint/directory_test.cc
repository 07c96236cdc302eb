#include "worker/checkpoint/directory.h"

#include <gmock/gmock.h>

#include "tests/fakes/fake_file_system.h"
#include "tests/fakes/faulty_file_system.h"

namespace esteira {
namespace {

using testing::HasSubstr;

TEST(DirectoryTest, AProbeMakesTheDirectoryAndLeavesNothing) {
  FakeFileSystem files;
  ASSERT_TRUE(ProbeDirectory(files, "/a/ckpt", 0).ok());
  EXPECT_TRUE(files.Exists("/a/ckpt"));
  EXPECT_TRUE(files.List("/a/ckpt")->empty());
}

TEST(DirectoryTest, WhateverFailsIsNamedWithThePath) {
  FakeFileSystem files;
  FaultyFileSystem counting(files);
  ASSERT_TRUE(ProbeDirectory(counting, "/ckpt", 2).ok());
  ASSERT_EQ(counting.operations(), 5);
  for (int operation = 0; operation < counting.operations(); ++operation) {
    FaultyFileSystem faulty(files);
    faulty.FailOnce(operation, absl::PermissionDeniedError("read-only file system"));
    const absl::Status status = ProbeDirectory(faulty, "/ckpt", 2);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << operation;
    EXPECT_THAT(std::string(status.message()), HasSubstr("/ckpt"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("read-only file system"));
  }
  FaultyFileSystem full(files);
  full.FailAfterBytes(0);
  EXPECT_EQ(ProbeDirectory(full, "/ckpt", 2).code(), absl::StatusCode::kResourceExhausted);
}

TEST(DirectoryTest, AFileInItsPlace) {
  RealFileSystem files;
  const std::string path = testing::TempDir() + "/directory_test_file";
  ASSERT_TRUE(WriteFileAtomically(files, path, "x").ok());
  const absl::Status status = ProbeDirectory(files, path, 0);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  EXPECT_FALSE(status.ok());
  ASSERT_TRUE(files.RemoveAll(path).ok());
}

TEST(DirectoryTest, TheSecondJobIsRefusedUntilTheFirstHasLeft) {
  FakeFileSystem files;
  ASSERT_TRUE(files.CreateDirectories("/ckpt").ok());
  ASSERT_TRUE(files.CreateDirectories("/other").ok());
  auto first = LockDirectory(files, "/ckpt");
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = LockDirectory(files, "/ckpt").status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), HasSubstr("/ckpt is in use by another job"));
  EXPECT_TRUE(LockDirectory(files, "/other").ok());
  first->reset();
  EXPECT_TRUE(LockDirectory(files, "/ckpt").ok());
}

}  // namespace
}  // namespace esteira

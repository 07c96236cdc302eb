#include "common/base/file_system.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>

namespace esteira {
namespace {

class FileSystemTest : public testing::Test {
 protected:
  FileSystemTest() : root_(testing::TempDir() + "/files_" + std::to_string(getpid())) {
    std::filesystem::create_directories(root_);
  }
  ~FileSystemTest() override { std::filesystem::remove_all(root_); }

  std::string root_;
  RealFileSystem files_;
};

TEST_F(FileSystemTest, AtomicWriteLeavesOnlyTheFile) {
  ASSERT_TRUE(WriteFileAtomically(files_, root_ + "/a", "one").ok());
  ASSERT_TRUE(WriteFileAtomically(files_, root_ + "/a", "two").ok());
  EXPECT_EQ(*files_.Read(root_ + "/a"), "two");
  EXPECT_EQ(*files_.List(root_), std::vector<std::string>{"a"});
}

TEST_F(FileSystemTest, ErrorsNameThePathAndKeepTheirKind) {
  EXPECT_EQ(files_.Read(root_ + "/missing").status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(files_.Read(root_ + "/missing").status().message().find("/missing"), std::string::npos);
  EXPECT_FALSE(files_.Read(root_).ok());
  EXPECT_FALSE(files_.List(root_ + "/missing").ok());
  EXPECT_FALSE(WriteFileAtomically(files_, root_ + "/no/such/folder", "x").ok());
  EXPECT_TRUE(files_.RemoveAll(root_ + "/missing").ok());
}

TEST_F(FileSystemTest, ReadAtRefusesToReadPastTheEnd) {
  ASSERT_TRUE(WriteFileAtomically(files_, root_ + "/a", "abcdef").ok());
  std::array<char, 3> bytes;
  ASSERT_TRUE(files_.ReadAt(root_ + "/a", 3, bytes).ok());
  EXPECT_EQ(std::string(bytes.data(), 3), "def");
  EXPECT_EQ(files_.ReadAt(root_ + "/a", 4, bytes).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(FileSystemTest, AFullDiskIsResourceExhausted) {
  if (!files_.Exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  auto file = files_.Create("/dev/full");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->Append("x").code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(FileSystemTest, ALockIsHeldOnceAndUntilItsEnd) {
  auto lock = files_.Lock(root_ + "/lock");
  ASSERT_TRUE(lock.ok()) << lock.status();
  const absl::Status second = files_.Lock(root_ + "/lock").status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.message().find(root_ + "/lock"), std::string::npos);
  lock->reset();
  EXPECT_TRUE(files_.Lock(root_ + "/lock").ok());
  EXPECT_EQ(files_.Lock(root_ + "/no/lock").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace esteira

#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace esteira {

// A folder of its own for each test, removed afterwards.
class TemporaryFiles : public testing::Test {
 protected:
  TemporaryFiles()
      : root_(testing::TempDir() + "/data_" + std::to_string(getpid()) + "_" +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(root_);
  }
  ~TemporaryFiles() override { std::filesystem::remove_all(root_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = root_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  static std::string Tokens(const std::vector<uint16_t>& tokens) {
    return std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2);
  }

  static std::string LlmcHeader(int32_t magic, int32_t version, int32_t count) {
    std::vector<int32_t> header(256, 0);
    header[0] = magic;
    header[1] = version;
    header[2] = count;
    return std::string(reinterpret_cast<const char*>(header.data()), header.size() * 4);
  }

  std::string root_;
};

}  // namespace esteira

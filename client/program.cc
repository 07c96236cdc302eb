#include "client/program.h"

#include <filesystem>

namespace esteira {

std::string ProgramPath(const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path beside = self.parent_path() / name;
  return !error && std::filesystem::exists(beside, error) ? beside.string() : name;
}

}  // namespace esteira

#include "tests/worker/communication/ucx/peer_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "absl/strings/escaping.h"
#include "common/base/status_macros.h"

namespace esteira {

PeerProcess::PeerProcess(int rank, int size) {
  int in[2], out[2];
  CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  CHECK(posix_spawn_file_actions_init(&actions) == 0);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string arguments[] = {UCX_PEER_BINARY, std::to_string(rank), std::to_string(size)};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  CHECK(posix_spawn(&pid_, UCX_PEER_BINARY, &actions, nullptr, argv, environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  to_child_ = fdopen(in[1], "w");
  from_child_ = fdopen(out[0], "r");
  address_ = absl::HexStringToBytes(ReadLine());
}

PeerProcess::~PeerProcess() {
  Signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
  fclose(to_child_);
  fclose(from_child_);
}

void PeerProcess::SendAddresses(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    std::fprintf(to_child_, "%s\n", absl::BytesToHexString(address).c_str());
  }
  std::fflush(to_child_);
}

void PeerProcess::AwaitReady() { CHECK(ReadLine() == "ready"); }

void PeerProcess::Signal(int signal) const { kill(pid_, signal); }

std::string PeerProcess::ReadLine() {
  char line[4096];
  CHECK(std::fgets(line, sizeof(line), from_child_) != nullptr);
  std::string text = line;
  text.pop_back();
  return text;
}

}  // namespace esteira

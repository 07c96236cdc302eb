#include "tests/worker/communication/ucx/peer_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "absl/strings/escaping.h"
#include "common/base/status_macros.h"

namespace esteira {

absl::Status ExchangeForever(Transport& transport, int peer) {
  constexpr size_t kSizes[] = {0, 8, 5'000, 16 << 10, 20'000, 300'000, 3 << 20};
  for (uint32_t i = 0;; ++i) {
    const size_t size = kSizes[i % std::size(kSizes)];
    std::vector<std::byte> sent(size, static_cast<std::byte>(i)), received(size);
    const Tag tag{1, 0, i};
    const absl::Status status =
        transport.Run({{{Transfer::Direction::kSend, peer, tag, sent},
                        {Transfer::Direction::kReceive, peer, tag, received}}},
                      absl::Seconds(30));
    if (!status.ok()) return status;
    if (received != sent) return absl::DataLossError("other bytes than were sent");
  }
}

PeerProcess::PeerProcess(int rank, int size, int exchanges_with) {
  int in[2], out[2];
  CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  CHECK(posix_spawn_file_actions_init(&actions) == 0);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string arguments[] = {UCX_PEER_BINARY, std::to_string(rank), std::to_string(size),
                             std::to_string(exchanges_with)};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                  exchanges_with < 0 ? nullptr : arguments[3].data(), nullptr};
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

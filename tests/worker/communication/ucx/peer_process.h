#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

namespace esteira {

// A ucx_peer as a child of this process. Killed on destruction.
class PeerProcess {
 public:
  PeerProcess(int rank, int size);
  PeerProcess(const PeerProcess&) = delete;
  ~PeerProcess();

  const std::string& address() const { return address_; }
  void SendAddresses(const std::vector<std::string>& addresses);
  // Blocks until it has connected.
  void AwaitReady();
  void Signal(int signal) const;

 private:
  std::string ReadLine();

  pid_t pid_ = -1;
  FILE* to_child_ = nullptr;
  FILE* from_child_ = nullptr;
  std::string address_;
};

}  // namespace esteira

#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/communication/transport.h"

namespace esteira {

// Messages of all sizes both ways with `peer`, who does the same, until it fails.
absl::Status ExchangeForever(Transport& transport, int peer);

// A ucx_peer as a child of this process. Killed on destruction.
class PeerProcess {
 public:
  // `exchanges_with`: a rank, or -1.
  PeerProcess(int rank, int size, int exchanges_with = -1);
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

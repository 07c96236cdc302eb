// One rank of a mesh in a process of its own, for tests that kill it. Writes its address as hex on
// a line, reads those of all ranks, connects, says "ready", and waits for a message that never
// comes; or exchanges messages with another rank without end.
//
//   ucx_peer RANK SIZE [PEER]
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/worker/communication/ucx/peer_process.h"
#include "worker/communication/ucx/ucx_transport.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int rank = std::atoi(argv[1]);
  const int size = std::atoi(argv[2]);
  auto endpoint = esteira::OpenUcx({.job_id = "killed", .epoch = 3, .rank = rank, .size = size});
  if (!endpoint.ok()) return 3;
  std::cout << absl::BytesToHexString((*endpoint)->address()) << std::endl;

  std::vector<std::string> addresses;
  for (int i = 0; i < size; ++i) {
    std::string line;
    std::getline(std::cin, line);
    addresses.push_back(absl::HexStringToBytes(line));
  }
  const std::vector<std::string> versions(static_cast<size_t>(size), (*endpoint)->version());
  auto transport = (*endpoint)->Connect(addresses, versions);
  if (!transport.ok()) return 4;
  std::cout << "ready" << std::endl;

  if (argc > 3) {
    esteira::ExchangeForever(**transport, std::atoi(argv[3])).IgnoreError();
    return 5;
  }
  std::vector<std::byte> bytes(1);
  const esteira::Transfer never{
      esteira::Transfer::Direction::kReceive, rank == 0 ? 1 : 0, {99, 0, 0}, bytes};
  const absl::Status status = (*transport)->Run({{never}}, absl::Minutes(1));
  return status.ok() ? 5 : 6;
}

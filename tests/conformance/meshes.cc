#include "tests/conformance/meshes.h"

#include "common/base/status_macros.h"
#include "worker/communication/inproc/inproc_transport.h"
#include "worker/communication/ucx/ucx_transport.h"

namespace esteira {
namespace {

Transports ConnectUcx(int ranks, bool read_peer_memory) {
  std::vector<std::unique_ptr<UcxEndpoint>> endpoints;
  std::vector<std::string> addresses, versions;
  for (int rank = 0; rank < ranks; ++rank) {
    auto endpoint = OpenUcx({.job_id = "test",
                             .epoch = 1,
                             .rank = rank,
                             .size = ranks,
                             .read_peer_memory = read_peer_memory});
    CHECK(endpoint.ok());
    addresses.push_back((*endpoint)->address());
    versions.push_back((*endpoint)->version());
    endpoints.push_back(*std::move(endpoint));
  }
  Transports transports(static_cast<size_t>(ranks));
  OnEveryRank(ranks, [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    auto transport = endpoints[index]->Connect(addresses, versions);
    CHECK(transport.ok());
    transports[index] = *std::move(transport);
  });
  return transports;
}

Transports MakeUcxTransports(int ranks) { return ConnectUcx(ranks, /*read_peer_memory=*/true); }
// As between machines.
Transports MakeTcpTransports(int ranks) { return ConnectUcx(ranks, /*read_peer_memory=*/false); }

}  // namespace

std::vector<MeshKind> MeshKinds() {
  return {{.name = "inproc", .sends_early = false, .make = MakeInprocTransports},
          {.name = "ucx", .sends_early = true, .make = MakeUcxTransports},
          {.name = "ucx_tcp", .sends_early = true, .make = MakeTcpTransports}};
}

}  // namespace esteira

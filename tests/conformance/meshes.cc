#include "tests/conformance/meshes.h"

#include "common/base/status_macros.h"
#include "worker/communication/inproc/inproc_transport.h"
#include "worker/communication/ucx/ucx_transport.h"

namespace esteira {
namespace {

// The first `readers` ranks read each other's memory.
Transports ConnectUcx(int ranks, int readers) {
  std::vector<std::unique_ptr<UcxEndpoint>> endpoints;
  std::vector<std::string> addresses, versions;
  for (int rank = 0; rank < ranks; ++rank) {
    auto endpoint = OpenUcx({.job_id = "test",
                             .epoch = 1,
                             .rank = rank,
                             .size = ranks,
                             .read_peer_memory = rank < readers});
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

Transports MakeUcxTransports(int ranks) { return ConnectUcx(ranks, /*readers=*/ranks); }
// As between machines, all but one rank on one of them, or each on its own.
Transports MakeMixedTransports(int ranks) { return ConnectUcx(ranks, /*readers=*/ranks - 1); }
Transports MakeTcpTransports(int ranks) { return ConnectUcx(ranks, /*readers=*/0); }

}  // namespace

std::vector<MeshKind> MeshKinds() {
  return {{.name = "inproc", .sends_early = false, .make = MakeInprocTransports},
          {.name = "ucx", .sends_early = true, .make = MakeUcxTransports},
          {.name = "ucx_mixed", .sends_early = true, .make = MakeMixedTransports},
          {.name = "ucx_tcp", .sends_early = true, .make = MakeTcpTransports}};
}

}  // namespace esteira

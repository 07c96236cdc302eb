#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/communication/transport.h"

namespace esteira {

struct UcxOptions {
  std::string job_id;
  int64_t epoch = 0;
  int rank = 0;
  int size = 1;
  std::string network_device = "lo";                   // UCX_NET_DEVICES; empty: UCX's own choice
  absl::Duration connect_timeout = absl::Seconds(60);  // for all peers to have connected
  bool read_peer_memory = true;  // of peers on this machine, where it may; else all goes over TCP
};

// Two steps, because addresses travel through the coordinator: Open, exchange, Connect. Owns a
// thread that calls UCX, from Open on; the transport takes it over. Buffers must be host memory.
class UcxEndpoint {
 public:
  virtual ~UcxEndpoint() = default;
  virtual const std::string& address() const = 0;  // opaque bytes
  virtual const std::string& version()
      const = 0;  // UCX's version and transports; must be equal on all ranks
  // Makes the mesh, once, and returns when every peer has been heard. Both vectors are by rank,
  // this one included. FailedPrecondition names the rank whose version differs, InvalidArgument one
  // whose address is damaged, before any endpoint is made; Unavailable or DeadlineExceeded names
  // the peer that cannot be reached.
  virtual absl::StatusOr<std::unique_ptr<Transport>> Connect(
      const std::vector<std::string>& addresses, const std::vector<std::string>& versions) = 0;
  // After Connect: peers that are reached through shared memory; all others are reached over TCP.
  virtual int num_host_peers() const = 0;
};

absl::StatusOr<std::unique_ptr<UcxEndpoint>> OpenUcx(const UcxOptions& options);

}  // namespace esteira

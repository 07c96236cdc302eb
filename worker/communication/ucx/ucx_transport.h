#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/communication/transport.h"

namespace esteira {

struct UcxOptions {
  std::string job_id;
  int64_t epoch = 0;
  int rank = 0;
  int size = 1;
  std::string network_device = "lo";  // UCX_NET_DEVICES; empty: UCX's own choice
};

// Two steps, because addresses travel through the coordinator: Open, exchange, Connect.
class UcxEndpoint {
 public:
  virtual ~UcxEndpoint() = default;
  virtual const std::string& address() const = 0;  // opaque bytes
  virtual const std::string& version() const = 0;  // UCX's version and transports; must be equal on all ranks
  // Makes the mesh. FailedPrecondition names the rank whose version differs, before any endpoint is made.
  virtual absl::StatusOr<std::unique_ptr<Transport>> Connect(const std::vector<std::string>& addresses,
                                                             const std::vector<std::string>& versions) = 0;
};

absl::StatusOr<std::unique_ptr<UcxEndpoint>> OpenUcx(const UcxOptions& options);

}  // namespace esteira

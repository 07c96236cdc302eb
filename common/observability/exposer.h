#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace esteira {

// Serves /metrics over HTTP on one address. Keeps the collectables alive (the library itself would
// drop them silently). Made once at start, never before a fork. Scrapes run on the library's own
// threads.
class MetricsExposer {
 public:
  // `address` is "host:port"; port 0 takes a free one. Unavailable, with the address, when it
  // cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsExposer>> Open(
      const std::string& address,
      std::vector<std::shared_ptr<prometheus::Collectable>> collectables);
  ~MetricsExposer();

  int port() const { return port_; }

 private:
  MetricsExposer(std::unique_ptr<prometheus::Exposer> exposer,
                 std::vector<std::shared_ptr<prometheus::Collectable>> collectables);

  std::vector<std::shared_ptr<prometheus::Collectable>> collectables_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  int port_ = 0;
};

}  // namespace esteira

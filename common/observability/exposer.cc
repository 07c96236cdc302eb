#include "common/observability/exposer.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace esteira {

absl::StatusOr<std::unique_ptr<MetricsExposer>> MetricsExposer::Open(
    const std::string& address,
    std::vector<std::shared_ptr<prometheus::Collectable>> collectables) {
  std::unique_ptr<prometheus::Exposer> exposer;
  try {
    // A connection that says nothing holds one of the few threads only for a moment.
    exposer = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", address, "num_threads", "16", "request_timeout_ms", "1000"});
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address,
                                               ": is the address taken, or not of this machine? (",
                                               error.what(), ")"));
  }
  return std::unique_ptr<MetricsExposer>(
      new MetricsExposer(std::move(exposer), std::move(collectables)));
}

MetricsExposer::MetricsExposer(std::unique_ptr<prometheus::Exposer> exposer,
                               std::vector<std::shared_ptr<prometheus::Collectable>> collectables)
    : collectables_(std::move(collectables)),
      exposer_(std::move(exposer)),
      port_(exposer_->GetListeningPorts().front()) {
  for (const auto& collectable : collectables_) exposer_->RegisterCollectable(collectable);
}

MetricsExposer::~MetricsExposer() = default;

}  // namespace esteira

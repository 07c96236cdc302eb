#include "worker/communication/inproc/inproc_transport.h"

#include <utility>

#include "common/base/status_macros.h"
#include "worker/communication/inproc/mesh.h"

namespace esteira {
namespace {

// One rank's view of a shared Mesh. Thread-safe as the mesh is.
class InprocTransport : public Transport {
 public:
  InprocTransport(std::shared_ptr<Mesh> mesh, int rank) : mesh_(std::move(mesh)), rank_(rank) {}
  ~InprocTransport() override { mesh_->Close(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return mesh_->size(); }
  absl::Status Run(std::span<const Transfer> transfers, absl::Duration timeout) override {
    return mesh_->Run(rank_, transfers, timeout);
  }
  void Abort(const absl::Status& cause) override {
    CHECK(!cause.ok());
    mesh_->Abort(rank_, cause);
  }
  TransportCounters counters() const override { return mesh_->counters(rank_); }

 private:
  const std::shared_ptr<Mesh> mesh_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeInprocTransports(int ranks) {
  CHECK(ranks > 0);
  const auto mesh = std::make_shared<Mesh>(ranks);
  std::vector<std::unique_ptr<Transport>> transports;
  transports.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    transports.push_back(std::make_unique<InprocTransport>(mesh, rank));
  }
  return transports;
}

}  // namespace esteira

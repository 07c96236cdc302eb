#include "tests/conformance/host_transports.h"

#include <mutex>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/communication/host/host_mesh.h"
#include "worker/communication/transfer_text.h"

namespace esteira {
namespace {

// Decides which failure was the first, as the mesh of the endpoints does between processes.
class Referee {
 public:
  explicit Referee(int ranks) : meshes_(static_cast<size_t>(ranks)) {}

  void Enter(int rank, HostMesh* mesh) { meshes_[static_cast<size_t>(rank)] = mesh; }
  void Leave(int rank) {
    std::lock_guard lock(mutex_);
    meshes_[static_cast<size_t>(rank)] = nullptr;
    for (HostMesh* mesh : meshes_) {
      if (mesh != nullptr) mesh->Depart(rank);
    }
  }
  void Fail(int rank, const absl::Status& cause, int origin) {
    std::lock_guard lock(mutex_);
    if (std::exchange(failed_, true)) return;
    const absl::Status seen = origin == rank ? RankAborted(rank, cause.message())
                                             : absl::UnavailableError(cause.message());
    for (size_t other = 0; other < meshes_.size(); ++other) {
      const bool own = other == static_cast<size_t>(rank);
      if (meshes_[other] != nullptr) meshes_[other]->Fail(own ? cause : seen);
    }
  }

 private:
  std::recursive_mutex mutex_;  // a mesh that is told of a departure may report a failure
  std::vector<HostMesh*> meshes_;
  bool failed_ = false;
};

class HostTransport : public Transport {
 public:
  HostTransport(std::shared_ptr<Referee> referee, int rank, int size)
      : referee_(std::move(referee)),
        rank_(rank),
        size_(size),
        mesh_({.job_hash = 7, .epoch = 1, .rank = rank, .size = size},
              [this](const absl::Status& cause, int origin) {
                referee_->Fail(rank_, cause, origin);
              }) {
    referee_->Enter(rank, &mesh_);
  }
  ~HostTransport() override { referee_->Leave(rank_); }

  HostMesh& mesh() { return mesh_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::Status Run(std::span<const Transfer> transfers, absl::Duration timeout) override {
    return mesh_.Run(transfers, timeout);
  }
  absl::Status RunInSegments(std::span<const Transfer> transfers, absl::Duration timeout,
                             const Arrived& arrived) override {
    if (!mesh_.ReadsInSegments(transfers)) {
      return Transport::RunInSegments(transfers, timeout, arrived);
    }
    return mesh_.RunInSegments(transfers, timeout, arrived);
  }
  void Abort(const absl::Status& cause) override { referee_->Fail(rank_, cause, rank_); }
  TransportCounters counters() const override { return mesh_.counters(); }

 private:
  const std::shared_ptr<Referee> referee_;
  const int rank_;
  const int size_;
  HostMesh mesh_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeHostTransports(int ranks) {
  const auto referee = std::make_shared<Referee>(ranks);
  std::vector<HostTransport*> made;
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank) {
    auto transport = std::make_unique<HostTransport>(referee, rank, ranks);
    made.push_back(transport.get());
    transports.push_back(std::move(transport));
  }
  for (HostTransport* self : made) {
    for (HostTransport* peer : made) {
      if (peer != self) CHECK(self->mesh().Meet(peer->rank(), peer->mesh().address()));
    }
  }
  for (HostTransport* self : made) {
    std::vector<uint8_t> met_by(static_cast<size_t>(ranks), 1);
    met_by[static_cast<size_t>(self->rank())] = 0;
    self->mesh().Settle(met_by);
  }
  return transports;
}

}  // namespace esteira

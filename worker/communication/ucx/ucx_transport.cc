#include "worker/communication/ucx/ucx_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "worker/communication/ucx/address.h"
#include "worker/communication/ucx/peer_memory.h"
#include "worker/communication/ucx/progress_thread.h"
#include "worker/communication/ucx/ucp_worker.h"
#include "worker/communication/ucx/ucx_mesh.h"

namespace esteira {
namespace {

constexpr absl::Duration kCloseLimit = absl::Seconds(1);

// A mesh and the thread that drives it; closes in order.
struct Link {
  Link(std::unique_ptr<UcpWorker> worker, const FrameIdentity& self)
      : mesh(std::move(worker), self), thread(mesh) {}
  ~Link() {
    thread.Post([this] { mesh.Close(kCloseLimit); });
  }

  absl::Status Run(FrameKind kind, std::span<const Transfer> transfers, absl::Duration timeout) {
    return Run(std::make_shared<Batch>(kind, transfers, timeout));
  }
  absl::Status Run(const std::shared_ptr<Batch>& batch) {
    thread.Post([this, batch] { mesh.Start(batch); });
    return batch->Wait();
  }

  UcxMesh mesh;
  ProgressThread thread;  // stops before the mesh goes
};

// Posts to the progress thread and waits. Thread-safe.
class UcxTransport : public Transport {
 public:
  explicit UcxTransport(std::unique_ptr<Link> link) : link_(std::move(link)) {}

  int rank() const override { return link_->mesh.self().rank; }
  int size() const override { return link_->mesh.self().size; }
  absl::Status Run(std::span<const Transfer> transfers, absl::Duration timeout) override {
    return link_->Run(FrameKind::kData, transfers, timeout);
  }
  absl::Status RunInSegments(std::span<const Transfer> transfers, absl::Duration timeout,
                             const Arrived& arrived) override {
    const auto batch = std::make_shared<Batch>(FrameKind::kData, transfers, timeout, &arrived);
    RETURN_IF_ERROR(link_->Run(batch));
    if (!batch->in_segments()) ArrivedWhole(transfers, arrived);
    return absl::OkStatus();
  }
  void Abort(const absl::Status& cause) override {
    CHECK(!cause.ok());
    link_->thread.Post([this, cause] { link_->mesh.Fail(cause, rank()); });
  }
  TransportCounters counters() const override { return link_->mesh.counters(); }

 private:
  const std::unique_ptr<Link> link_;
};

class OpenedUcxEndpoint : public UcxEndpoint {
 public:
  OpenedUcxEndpoint(std::unique_ptr<UcpWorker> worker, const UcxOptions& options)
      : options_(options),
        address_(WrapAddress(worker->address())),
        version_(UcpWorker::Version()),
        link_(std::make_unique<Link>(
            std::move(worker),
            FrameIdentity{HashName(options.job_id), options.epoch, options.rank, options.size})) {}

  const std::string& address() const override { return address_; }
  const std::string& version() const override { return version_; }

  absl::StatusOr<std::unique_ptr<Transport>> Connect(
      const std::vector<std::string>& addresses,
      const std::vector<std::string>& versions) override {
    if (link_ == nullptr) return absl::FailedPreconditionError("the endpoint is connected already");
    ASSIGN_OR_RETURN(const std::vector<std::string> bodies, Check(addresses, versions));
    link_->thread.Post([this, &bodies] { link_->mesh.Connect(bodies); });
    const absl::StatusOr<std::vector<UcxMesh::Neighbour>> met = MeetPeers();
    if (!met.ok()) {
      return absl::Status(met.status().code(),
                          absl::StrCat("connecting the mesh: ", met.status().message()));
    }
    link_->thread.Post([mesh = &link_->mesh, met = *met] { mesh->SetNeighbours(met); });
    return std::make_unique<UcxTransport>(std::move(link_));
  }

 private:
  absl::StatusOr<std::vector<std::string>> Check(const std::vector<std::string>& addresses,
                                                 const std::vector<std::string>& versions) const {
    const auto size = static_cast<size_t>(options_.size);
    if (addresses.size() != size || versions.size() != size) {
      return absl::InvalidArgumentError(absl::StrCat(
          addresses.size(), " addresses and ", versions.size(), " versions for ", size, " ranks"));
    }
    std::vector<std::string> bodies;
    for (size_t rank = 0; rank < size; ++rank) {
      if (versions[rank] != version_) {
        return absl::FailedPreconditionError(absl::StrCat("rank ", rank, " runs \"", versions[rank],
                                                          "\", rank ", options_.rank, " runs \"",
                                                          version_, "\""));
      }
      absl::StatusOr<std::string> body = UnwrapAddress(addresses[rank]);
      if (!body.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("address of rank ", rank, ": ", body.status().message()));
      }
      bodies.push_back(*std::move(body));
    }
    return bodies;
  }

  // Everyone shows everyone a word of its memory, then says whose it has found.
  absl::StatusOr<std::vector<UcxMesh::Neighbour>> MeetPeers() {
    const auto size = static_cast<size_t>(options_.size);
    std::vector<MemoryProof> proofs(size);
    proofs[static_cast<size_t>(options_.rank)] = OwnMemoryProof();
    const std::vector<MemoryProof> own(size, OwnMemoryProof());
    RETURN_IF_ERROR(Greet<MemoryProof>(own, proofs));
    std::vector<uint8_t> found(size), found_by(size);
    for (size_t peer = 0; peer < size; ++peer) {
      found[peer] = options_.read_peer_memory && CanRead(proofs[peer]) ? 1 : 0;
    }
    RETURN_IF_ERROR(Greet<uint8_t>(found, found_by));
    std::vector<UcxMesh::Neighbour> neighbours(size);
    for (size_t peer = 0; peer < size; ++peer) {
      if (found[peer] != 0) neighbours[peer].process = proofs[peer].process;
      neighbours[peer].takes_offers = found_by[peer] != 0;
    }
    return neighbours;
  }

  // To each peer its element of `said`; what each has said to this rank into `heard`.
  template <typename Element>
  absl::Status Greet(std::vector<Element> said, std::vector<Element>& heard) {
    std::vector<Transfer> hellos;
    for (int peer = 0; peer < options_.size; ++peer) {
      if (peer == options_.rank) continue;
      const auto bytes = [peer](std::vector<Element>& elements) {
        return std::as_writable_bytes(std::span(elements).subspan(static_cast<size_t>(peer), 1));
      };
      hellos.push_back({Transfer::Direction::kSend, peer, {}, bytes(said)});
      hellos.push_back({Transfer::Direction::kReceive, peer, {}, bytes(heard)});
    }
    return link_->Run(FrameKind::kHello, hellos, options_.connect_timeout);
  }

  const UcxOptions options_;
  const std::string address_;
  const std::string version_;
  std::unique_ptr<Link> link_;  // null once connected
};

}  // namespace

absl::StatusOr<std::unique_ptr<UcxEndpoint>> OpenUcx(const UcxOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of ", options.size, " ranks"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<UcpWorker> worker, UcpWorker::Open(options.network_device));
  return std::make_unique<OpenedUcxEndpoint>(std::move(worker), options);
}

}  // namespace esteira

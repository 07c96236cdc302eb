#include "worker/communication/ucx/ucx_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "worker/communication/host/host_mesh.h"
#include "worker/communication/rank_identity.h"
#include "worker/communication/ucx/address.h"
#include "worker/communication/ucx/progress_thread.h"
#include "worker/communication/ucx/ucp_worker.h"
#include "worker/communication/ucx/ucx_mesh.h"

namespace esteira {
namespace {

constexpr absl::Duration kCloseLimit = absl::Seconds(1);

// A mesh and the thread that drives it; closes in order.
struct Link {
  Link(std::unique_ptr<UcpWorker> worker, const RankIdentity& self)
      : mesh(std::move(worker), self),
        host(self, [this](const absl::Status& cause, int origin) { Fail(cause, origin); }),
        thread(mesh) {}
  ~Link() {
    thread.Post([this] { mesh.Close(kCloseLimit); });
  }

  absl::Status Run(FrameKind kind, std::span<const Transfer> transfers, absl::Duration timeout) {
    return Start(kind, transfers, timeout)->Wait();
  }
  std::shared_ptr<Batch> Start(FrameKind kind, std::span<const Transfer> transfers,
                               absl::Duration timeout) {
    auto batch = std::make_shared<Batch>(kind, transfers, timeout);
    thread.Post([this, batch] { mesh.Start(batch); });
    return batch;
  }
  void Fail(const absl::Status& cause, int origin) {
    thread.Post([this, cause, origin] { mesh.Fail(cause, origin); });
  }

  UcxMesh mesh;
  HostMesh host;
  ProgressThread thread;  // stops before the mesh goes
};

// Transfers with ranks of this machine are done by the calling thread, all others are posted to the
// progress thread. Thread-safe.
class UcxTransport : public Transport {
 public:
  explicit UcxTransport(std::unique_ptr<Link> link) : link_(std::move(link)) {}

  int rank() const override { return link_->mesh.self().rank; }
  int size() const override { return link_->mesh.self().size; }
  absl::Status Run(std::span<const Transfer> transfers, absl::Duration timeout) override {
    const auto here = [this](const Transfer& transfer) {
      return link_->host.Reaches(transfer.peer);
    };
    if (std::all_of(transfers.begin(), transfers.end(), here)) {
      return link_->host.Run(transfers, timeout);
    }
    std::vector<Transfer> sorted(transfers.begin(), transfers.end());
    const auto others = std::stable_partition(sorted.begin(), sorted.end(), here);
    const auto batch = link_->Start(FrameKind::kData, {others, sorted.end()}, timeout);
    const absl::Status status = link_->host.Run({sorted.begin(), others}, timeout);
    const absl::Status of_others = batch->Wait();
    return status.ok() ? of_others : status;
  }
  absl::Status RunInSegments(std::span<const Transfer> transfers, absl::Duration timeout,
                             const Arrived& arrived) override {
    if (link_->host.ReadsInSegments(transfers)) {
      return link_->host.RunInSegments(transfers, timeout, arrived);
    }
    return Transport::RunInSegments(transfers, timeout, arrived);
  }
  void Abort(const absl::Status& cause) override {
    CHECK(!cause.ok());
    link_->Fail(cause, rank());
  }
  TransportCounters counters() const override {
    TransportCounters sum = link_->mesh.counters();
    const TransportCounters here = link_->host.counters();
    sum.bytes_sent += here.bytes_sent;
    sum.bytes_received += here.bytes_received;
    sum.messages_sent += here.messages_sent;
    return sum;
  }

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
            RankIdentity{HashName(options.job_id), options.epoch, options.rank, options.size})) {}

  const std::string& address() const override { return address_; }
  const std::string& version() const override { return version_; }

  int num_host_peers() const override { return num_host_peers_; }
  absl::StatusOr<std::unique_ptr<Transport>> Connect(
      const std::vector<std::string>& addresses,
      const std::vector<std::string>& versions) override {
    if (link_ == nullptr) return absl::FailedPreconditionError("the endpoint is connected already");
    ASSIGN_OR_RETURN(const std::vector<std::string> bodies, Check(addresses, versions));
    link_->thread.Post([this, &bodies] { link_->mesh.Connect(bodies); });
    if (const absl::Status met = MeetPeers(); !met.ok()) {
      return absl::Status(met.code(), absl::StrCat("connecting the mesh: ", met.message()));
    }
    link_->thread.Post([link = link_.get()] { link->mesh.SetHost(link->host); });
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

  // Everyone shows everyone a word of its memory and where its mailbox is, then says whose it has
  // found.
  absl::Status MeetPeers() {
    const auto size = static_cast<size_t>(options_.size);
    std::vector<MailboxAddress> mailboxes(size);
    const std::vector<MailboxAddress> own(size, link_->host.address());
    RETURN_IF_ERROR(Greet<MailboxAddress>(own, mailboxes));
    std::vector<uint8_t> met(size), met_by(size);
    for (int peer = 0; peer < options_.size; ++peer) {
      const auto index = static_cast<size_t>(peer);
      const bool may = options_.read_peer_memory && peer != options_.rank;
      met[index] = may && link_->host.Meet(peer, mailboxes[index]) ? 1 : 0;
    }
    RETURN_IF_ERROR(Greet<uint8_t>(met, met_by));
    num_host_peers_ = link_->host.Settle(met_by);
    return absl::OkStatus();
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
  int num_host_peers_ = 0;
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

#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker/communication/deadline.h"
#include "worker/communication/host/host_mesh.h"
#include "worker/communication/rank_identity.h"
#include "worker/communication/transport.h"
#include "worker/communication/ucx/batch.h"
#include "worker/communication/ucx/frame.h"
#include "worker/communication/ucx/matcher.h"
#include "worker/communication/ucx/ucp_worker.h"

namespace esteira {

// One rank's end of the mesh: a UCX endpoint to every peer, the messages on their way, and the one
// failure that ends it. Owns the UCP worker. Everything but counters() belongs to the progress
// thread. UCX's callbacks only note what happened; it is acted upon after ucp_worker_progress has
// returned, for UCX may not be called back from most of them.
class UcxMesh {
 public:
  UcxMesh(std::unique_ptr<UcpWorker> worker, const RankIdentity& self);
  UcxMesh(const UcxMesh&) = delete;
  ~UcxMesh();

  // Makes an endpoint to each other rank. `addresses` are UCX's own bytes, by rank.
  void Connect(const std::vector<std::string>& addresses);
  // From now on `host` is told of failures and of peers that leave. It outlives the work of the
  // progress thread.
  void SetHost(HostMesh& host);
  // Starts every operation of `batch`, which is finished now or later.
  void Start(const std::shared_ptr<Batch>& batch);
  // `cause` is what this rank reports; the peers are told that `origin` was the first to fail. Only
  // the first counts.
  void Fail(const absl::Status& cause, int origin);
  // Moves what can be moved; true if anything was. Fails what is past its deadline.
  bool Progress();
  // Takes leave of the peers and closes the endpoints, within `limit`.
  void Close(absl::Duration limit);

  Deadline NextDeadline() const;
  const UcpWorker& worker() const { return *worker_; }
  const RankIdentity& self() const { return self_; }
  TransportCounters counters() const;  // any thread

 private:
  struct Peer {
    UcxMesh* mesh = nullptr;
    int rank = 0;
    ucp_ep_h endpoint = nullptr;
    uint64_t next_sent = 0;
    uint64_t next_received = 0;
    bool left = false;           // said goodbye
    ucs_status_t lost = UCS_OK;  // what the error handler said
  };
  struct Failure {
    absl::Status cause;
    int origin = 0;
  };
  // A message of our own about this rank; UCX reads it until it is sent.
  struct Notice {
    FrameHeader header;
    std::string reason;
  };
  // A rendezvous that has met its receive, to be started after the callback.
  struct Ready {
    Operation* receive;
    void* descriptor;
  };

  static ucs_status_t OnMessage(void* mesh, const void* header, size_t header_bytes, void* data,
                                size_t length, const ucp_am_recv_param_t* param);
  static void OnSent(void* request, ucs_status_t status, void* operation);
  static void OnReceived(void* request, ucs_status_t status, size_t length, void* operation);
  static void OnPeerError(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  Peer& PeerOf(int rank) { return peers_[static_cast<size_t>(rank)]; }
  void StartSend(Operation& send);
  void StartReceive(Operation& receive);
  void StartRendezvous(const Ready& ready);
  ucs_status_t Accept(const FrameHeader& header, const void* data, void* rendezvous);
  ucs_status_t AcceptData(const FrameHeader& header, const void* data, void* rendezvous);
  bool FitsOrNotes(const FrameHeader& header, const Operation& receive);
  void Deliver(const FrameHeader& header, const void* data, Operation& receive);

  void Landed(Operation& operation, ucs_status_t status);
  void Complete(Operation& operation);
  // Remembers the first failure until it can be acted upon.
  void Note(const absl::Status& cause, int origin);
  void NoteLoss(int peer, ucs_status_t error);
  void NoteOverdue(Deadline now);
  void NoteDepartures();
  void ActOnNotes();
  void ReleaseKept();
  void SendNotice(Peer& peer, FrameKind kind, int origin, absl::string_view reason);
  void CloseEndpoints(unsigned flags);
  void ProgressUntilClosed(Deadline limit);

  std::unique_ptr<UcpWorker> worker_;
  const RankIdentity self_;
  HostMesh* host_ = nullptr;
  std::vector<Peer> peers_;
  Matcher matcher_;
  std::list<std::shared_ptr<Batch>> batches_;
  std::vector<Ready> ready_;
  std::vector<void*> unwanted_;  // descriptors that met a receive of another size
  std::vector<void*> pending_;   // UCX's requests for notices and for closing endpoints
  std::list<Notice> notices_;
  bool departures_ = false;  // a peer has left, and nobody has looked yet who waits for it
  Failure noted_;            // to be acted upon
  absl::Status failed_;      // acted upon

  std::atomic<int64_t> bytes_sent_ = 0;
  std::atomic<int64_t> bytes_received_ = 0;
  std::atomic<int64_t> messages_sent_ = 0;
  std::atomic<int64_t> messages_dropped_ = 0;
};

}  // namespace esteira

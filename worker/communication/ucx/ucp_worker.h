#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace esteira {

// `error` in words; the code is Unavailable where a peer or a connection is at fault, else
// Internal.
absl::Status UcsStatus(ucs_status_t error, const std::string& what);

// Owns a UCP context and its one worker. Used by one thread at a time.
class UcpWorker {
 public:
  // `network_device` empty: UCX's own choice. FailedPrecondition when the device does not exist.
  static absl::StatusOr<std::unique_ptr<UcpWorker>> Open(const std::string& network_device);
  UcpWorker(const UcpWorker&) = delete;
  ~UcpWorker();

  ucp_worker_h get() const { return worker_; }  // null after Destroy
  // Ends everything that is under way, whatever state it is in.
  void Destroy();
  // UCX's own bytes.
  const std::string& address() const { return address_; }
  // Becomes readable when Arm has returned true and something happens.
  int event_fd() const { return event_fd_; }
  // False: there is work to do first.
  bool Arm() const;
  // UCX's version and the transports in use.
  static std::string Version();

 private:
  UcpWorker() = default;
  absl::Status OpenContext(const std::string& network_device);
  absl::Status OpenWorker();

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  int event_fd_ = -1;
};

}  // namespace esteira

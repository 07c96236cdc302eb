#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <span>
#include <string>

#include "worker/communication/ucx/ucp_worker.h"

namespace esteira {

// A stranger who knows a rank's address: sends it any header and any bytes, as active messages of
// UCX.
class RawUcxSender {
 public:
  // `address` as UcxEndpoint gives it.
  explicit RawUcxSender(const std::string& address);
  RawUcxSender(const RawUcxSender&) = delete;
  ~RawUcxSender();

  // Blocks until UCX says that it is sent, or refused. `flags` of ucp_am_send_nbx.
  ucs_status_t Send(std::span<const std::byte> header, std::span<const std::byte> bytes,
                    unsigned flags);

 private:
  ucs_status_t Await(ucs_status_ptr_t request);

  std::unique_ptr<UcpWorker> worker_;
  ucp_ep_h endpoint_ = nullptr;
};

}  // namespace esteira

#include "tests/worker/communication/ucx/raw_ucx_sender.h"

#include <thread>

#include "common/base/status_macros.h"
#include "worker/communication/ucx/address.h"
#include "worker/communication/ucx/frame.h"

namespace esteira {

RawUcxSender::RawUcxSender(const std::string& address) {
  auto worker = UcpWorker::Open("lo");
  CHECK(worker.ok());
  worker_ = *std::move(worker);
  const auto body = UnwrapAddress(address);
  CHECK(body.ok());
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(body->data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  CHECK(ucp_ep_create(worker_->get(), &params, &endpoint_) == UCS_OK);
}

RawUcxSender::~RawUcxSender() {
  const ucp_request_param_t param{};
  Await(ucp_ep_close_nbx(endpoint_, &param));
}

ucs_status_t RawUcxSender::Send(std::span<const std::byte> header, std::span<const std::byte> bytes,
                                unsigned flags) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flags;
  return Await(ucp_am_send_nbx(endpoint_, kActiveMessage, header.data(), header.size(),
                               bytes.data(), bytes.size(), &param));
}

ucs_status_t RawUcxSender::Await(ucs_status_ptr_t request) {
  if (!UCS_PTR_IS_PTR(request)) return UCS_PTR_STATUS(request);
  while (ucp_request_check_status(request) == UCS_INPROGRESS) {
    if (ucp_worker_progress(worker_->get()) == 0) std::this_thread::yield();
  }
  const ucs_status_t status = ucp_request_check_status(request);
  ucp_request_free(request);
  return status;
}

}  // namespace esteira

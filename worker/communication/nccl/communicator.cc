#include "worker/communication/nccl/communicator.h"

#include <chrono>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

// Far below what an operation takes that is worth a GPU; a spinning thread would take a core.
constexpr std::chrono::microseconds kPause(20);

std::string VersionOf(const nccl::Library& library) {
  int version = 0;
  if (library.get_version(&version) != nccl::kSuccess) return "of unknown version";
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::Status ToStatus(const nccl::Library& library, nccl::Comm comm, nccl::Result result,
                      const char* call) {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return absl::OkStatus();
  const bool peer_lost = result == nccl::kRemoteError || result == nccl::kTimeout;
  return absl::Status(
      peer_lost ? absl::StatusCode::kUnavailable : absl::StatusCode::kInternal,
      absl::StrCat(call, ": ", library.get_error_string(result), "; ", library.get_last_error(comm),
                   " (NCCL ", VersionOf(library), ")"));
}

}  // namespace

absl::StatusOr<std::string> NewNcclId(const nccl::Library& library) {
  nccl::UniqueId id;
  RETURN_IF_ERROR(ToStatus(library, nullptr, library.get_unique_id(&id), "ncclGetUniqueId"));
  return std::string(id.bytes, sizeof(id.bytes));
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Open(
    std::shared_ptr<const nccl::Library> library, const NcclGroup& group) {
  if (group.size < 1 || group.position < 0 || group.position >= group.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("position ", group.position, " of ", group.size, " members"));
  }
  if (group.unique_id.size() != sizeof(nccl::UniqueId)) {
    return absl::InvalidArgumentError(absl::StrCat("an NCCL id of ", group.unique_id.size(),
                                                   " bytes; ", sizeof(nccl::UniqueId),
                                                   " are needed"));
  }
  std::unique_ptr<NcclCommunicator> communicator(new NcclCommunicator(std::move(library), group));
  const absl::Status status = communicator->Connect();
  if (!status.ok()) return communicator->Fail(status);
  return communicator;
}

absl::Status NcclCommunicator::Connect() {
  const nccl::CudaError device = library_->set_device(group_.device);
  if (device != nccl::kCudaSuccess) {
    return absl::FailedPreconditionError(absl::StrCat(
        "GPU ", group_.device, " cannot be used: ", library_->cuda_error_string(device)));
  }
  RETURN_IF_ERROR(CheckCuda(library_->stream_create(&stream_, nccl::kStreamNonBlocking),
                            "cudaStreamCreateWithFlags"));
  void* bytes = nullptr;
  RETURN_IF_ERROR(
      CheckCuda(library_->allocate(&bytes, static_cast<size_t>(group_.size)), "cudaMalloc"));
  device_bytes_ = static_cast<std::byte*>(bytes);
  nccl::UniqueId id;
  std::memcpy(id.bytes, group_.unique_id.data(), sizeof(id.bytes));
  nccl::Config config;
  const Deadline deadline = DeadlineAfter(group_.timeout);
  RETURN_IF_ERROR(
      Check(library_->init_rank_config(&comm_, group_.size, id, group_.position, &config),
            "ncclCommInitRankConfig"));
  return Await("ncclCommInitRankConfig", /*stream_too=*/false, deadline);
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ != nullptr) {
    library_->set_device(group_.device);
    absl::Status status = failure();
    if (status.ok()) status = Check(library_->finalize(comm_), "ncclCommFinalize");
    if (status.ok()) {
      status = Await("ncclCommFinalize", /*stream_too=*/false, DeadlineAfter(group_.timeout));
    }
    if (status.ok()) {
      library_->destroy(comm_);
    } else {
      AbortInTime();
    }
  }
  // What waits for the GPU would not return either; the process has to end.
  if (stuck_) return;
  library_->set_device(group_.device);
  if (device_bytes_ != nullptr) library_->free(device_bytes_);
  if (stream_ != nullptr) library_->stream_destroy(stream_);
}

absl::Status NcclCommunicator::Run(const Issue& issue, const Then& then) {
  absl::Status status = failure();
  if (status.ok()) status = IssueAndWait(issue, then);
  if (status.ok() || comm_ == nullptr) return status;
  return Fail(status);
}

absl::Status NcclCommunicator::IssueAndWait(const Issue& issue, const Then& then) {
  const Deadline deadline = DeadlineAfter(group_.timeout);
  RETURN_IF_ERROR(CheckCuda(library_->set_device(group_.device), "cudaSetDevice"));
  RETURN_IF_ERROR(Check(library_->group_start(), "ncclGroupStart"));
  const absl::Status issued = issue(comm_, stream_);
  const absl::Status ended = Check(library_->group_end(), "ncclGroupEnd");
  RETURN_IF_ERROR(issued);
  RETURN_IF_ERROR(ended);
  // Until then the calls may not be on the stream yet.
  RETURN_IF_ERROR(Await("ncclGroupEnd", /*stream_too=*/false, deadline));
  if (then) RETURN_IF_ERROR(then(stream_));
  return Await("the GPU", /*stream_too=*/true, deadline);
}

absl::Status NcclCommunicator::Await(const char* what, bool stream_too, Deadline deadline) const {
  while (true) {
    RETURN_IF_ERROR(failure());
    nccl::Result state = nccl::kSuccess;
    RETURN_IF_ERROR(Check(library_->get_async_error(comm_, &state), "ncclCommGetAsyncError"));
    RETURN_IF_ERROR(Check(state, what));
    if (state != nccl::kInProgress) {
      const nccl::CudaError stream =
          stream_too ? library_->stream_query(stream_) : nccl::kCudaSuccess;
      if (stream != nccl::kCudaNotReady) return CheckCuda(stream, "cudaStreamQuery");
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, " has not finished within ", absl::FormatDuration(group_.timeout),
                       ": a member is missing or runs another operation"));
    }
    std::this_thread::sleep_for(kPause);
  }
}

void NcclCommunicator::Abort(const absl::Status& cause) {
  std::lock_guard lock(mutex_);
  failure_.Update(cause);
}

absl::Status NcclCommunicator::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

absl::Status NcclCommunicator::Fail(const absl::Status& status) {
  if (comm_ != nullptr) AbortInTime();
  std::lock_guard lock(mutex_);
  failure_.Update(status);  // unless Abort came first
  if (stuck_) {
    failure_ =
        absl::Status(failure_.code(),
                     absl::StrCat(failure_.message(), "; the communicator is not aborted after ",
                                  absl::FormatDuration(group_.abort_limit),
                                  ", and the GPU may still use the buffers: end the process"));
  }
  return failure_;
}

// On a thread of its own: what waits for the GPU may never return.
void NcclCommunicator::AbortInTime() {
  std::promise<void> aborted;
  const std::future<void> returned = aborted.get_future();
  std::thread([library = library_, comm = std::exchange(comm_, nullptr), stream = stream_,
               device = group_.device, aborted = std::move(aborted)]() mutable {
    library->set_device(device);
    library->abort(comm);
    while (library->stream_query(stream) == nccl::kCudaNotReady)
      std::this_thread::sleep_for(kPause);
    aborted.set_value();
  }).detach();
  stuck_ =
      returned.wait_for(absl::ToChronoNanoseconds(group_.abort_limit)) != std::future_status::ready;
}

absl::Status NcclCommunicator::Check(nccl::Result result, const char* call) const {
  return ToStatus(*library_, comm_, result, call);
}

absl::Status NcclCommunicator::CheckCuda(nccl::CudaError error, const char* call) const {
  if (error == nccl::kCudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", library_->cuda_error_string(error)));
}

}  // namespace esteira

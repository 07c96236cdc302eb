#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/communication/deadline.h"
#include "worker/communication/nccl/library.h"

namespace esteira {

struct NcclGroup {
  std::string
      unique_id{};   // NewNcclId of one member; of this group in this epoch, never used again
  int position = 0;  // of this rank in the group
  int size = 1;
  int device = 0;                                  // index of the GPU; each member has its own
  absl::Duration timeout = absl::Minutes(5);       // of opening, of each operation, of closing
  absl::Duration abort_limit = absl::Seconds(10);  // that an abort is waited for
};

// One rank's communicator, and the CUDA stream that its operations run on. Never waits inside NCCL:
// the communicator is non-blocking and is polled until the deadline. The first failure aborts it
// for good. One thread at a time, except Abort. Knows nothing of what is sent.
class NcclCommunicator {
 public:
  // Blocks until all members have come. FailedPrecondition: no such GPU.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Open(
      std::shared_ptr<const nccl::Library> library, const NcclGroup& group);
  // Without a failure, waits for the members until nothing is under way any more.
  ~NcclCommunicator();

  using Issue = std::function<absl::Status(nccl::Comm comm, nccl::CudaStream stream)>;
  using Then = std::function<absl::Status(nccl::CudaStream stream)>;
  // Issues one group of calls, then what follows them on the same stream, if anything, and blocks
  // until the GPU has done all of it. DeadlineExceeded, Unavailable (a member is lost), the cause
  // of Abort, or Internal; later calls fail alike.
  absl::Status Run(const Issue& issue, const Then& then = nullptr);
  // Fails what runs, and all later calls, with `cause`. Any thread; the first cause stays.
  void Abort(const absl::Status& cause);

  const nccl::Library& library() const { return *library_; }
  const NcclGroup& group() const { return group_; }
  std::byte* device_bytes() const { return device_bytes_; }  // group().size of them, on the GPU
  absl::Status Check(nccl::Result result, const char* call) const;

 private:
  NcclCommunicator(std::shared_ptr<const nccl::Library> library, const NcclGroup& group)
      : library_(std::move(library)), group_(group) {}

  absl::Status Connect();
  absl::Status IssueAndWait(const Issue& issue, const Then& then);
  // Until the communicator is ready and, if asked, the stream has done all its work.
  absl::Status Await(const char* what, bool stream_too, Deadline deadline) const;
  absl::Status CheckCuda(nccl::CudaError error, const char* call) const;
  absl::Status failure() const;
  absl::Status Fail(const absl::Status& status);
  void AbortInTime();

  const std::shared_ptr<const nccl::Library> library_;
  const NcclGroup group_;
  nccl::Comm comm_ = nullptr;
  nccl::CudaStream stream_ = nullptr;
  std::byte* device_bytes_ = nullptr;
  bool stuck_ = false;  // the communicator could not be aborted
  mutable std::mutex mutex_;
  absl::Status failure_;
};

// A new group's id, for one of its members to make and for all to have.
absl::StatusOr<std::string> NewNcclId(const nccl::Library& library);

}  // namespace esteira

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/communication/collectives.h"
#include "worker/communication/nccl/communicator.h"
#include "worker/communication/nccl/library.h"

namespace esteira {

// What a GPU backend has to bring for sums whose order counts: sums[i] <- ((pieces[0][i] +
// pieces[1][i]) + ...) in fp32, in exactly this order, each addition rounded, for `count` elements.
// Called on the stream's thread; enqueues on `stream` and does not wait; `pieces` itself may go
// when it returns. All pointers are to GPU memory; with kFp32 `sums` may be one of the pieces.
enum class PieceType : uint8_t { kFp32, kBf16 };
using AddPieces = std::function<absl::Status(PieceType type, std::span<const void* const> pieces,
                                             float* sums, size_t count, nccl::CudaStream stream)>;

// Collectives of buffers in the memory of one GPU. A stream's tasks must run on a thread that may
// call CUDA and may block (as CpuStream's), not in a host callback of CUDA: each issues its
// operation on the communicator's own CUDA stream and returns when the GPU has done it, so that
// events recorded behind it hold for the GPU's memory.
class NcclCollectives : public Collectives {
 public:
  // Fails what runs, and all later operations, with `cause`. Any thread; the first cause stays.
  virtual void Abort(const absl::Status& cause) = 0;
};

// Blocks until all members have opened. `group_id`: for messages of errors. Without `add_pieces`,
// sums of fp32 and bf16 are Unimplemented; sums of int64, which no order changes, are NCCL's own.
absl::StatusOr<std::unique_ptr<NcclCollectives>> OpenNccl(
    std::shared_ptr<const nccl::Library> library, const NcclGroup& group, uint32_t group_id,
    AddPieces add_pieces);

}  // namespace esteira

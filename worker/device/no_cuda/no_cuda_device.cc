#include "worker/device/device.h"

namespace esteira {

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int) {
  return absl::UnimplementedError(
      "this worker was built without CUDA: use --device cpu, or a worker built with CUDA");
}

}  // namespace esteira

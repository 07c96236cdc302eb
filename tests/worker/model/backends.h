#pragma once

#include <memory>
#include <string>

#include "worker/kernels/kernels.h"
#include "worker/kernels/reference/reference_kernels.h"

namespace esteira {

enum class BackendKind { kCpu, kReference };

inline std::string BackendName(BackendKind kind) {
  return kind == BackendKind::kCpu ? "cpu" : "reference";
}

inline std::unique_ptr<Kernels> MakeTestKernels(BackendKind kind) {
  return kind == BackendKind::kCpu ? MakeCpuKernels(/*threads=*/1) : MakeReferenceKernels();
}

}  // namespace esteira

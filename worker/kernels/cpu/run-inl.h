// How an operation becomes work of a stream; for the .cc files of CpuKernels.
#pragma once

#include <omp.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/kernels/cpu/cpu_kernels.h"
#include "worker/kernels/cpu/parallel.h"

namespace esteira {

template <typename Task>
void CpuKernels::Run(Stream& stream, Task task) {
  stream.Enqueue([threads = threads_, task = std::move(task)]() -> absl::Status {
    omp_set_num_threads(threads);
    return task();
  });
}

template <typename Task>
void CpuKernels::RunTyped(Stream& stream, ElementType type, Task task) {
  Run(stream, [type, task = std::move(task)]() -> absl::Status {
    switch (type) {
      case ElementType::kFp32: return task(float{});
      case ElementType::kBf16: return task(Bf16{});
      case ElementType::kInt32:
      case ElementType::kInt64:
      case ElementType::kByte: break;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("a kernel needs fp32 or bf16, not element type ", static_cast<int>(type)));
  });
}

}  // namespace esteira

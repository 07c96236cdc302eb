#pragma once

#include <functional>
#include <memory>

#include "absl/strings/string_view.h"
#include "worker/kernels/kernels.h"

namespace esteira {

// Called after each operation with its name and its first output, on the thread that issues it: it
// may enqueue on `stream` what spoils the output or fails.
using KernelHook = std::function<void(absl::string_view operation, Tensor output, Stream& stream)>;

// The CPU's kernels with a hook behind each operation that has a tensor as its output.
std::unique_ptr<Kernels> MakePoisonedKernels(KernelHook hook);

// Enqueues: the first element of `tensor` (fp32) becomes NaN.
void Spoil(Tensor tensor, Stream& stream);

}  // namespace esteira

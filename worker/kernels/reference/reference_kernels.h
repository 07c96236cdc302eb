#pragma once

#include <memory>

#include "worker/kernels/kernels.h"

namespace esteira {

// Every operation as its formula reads, one element at a time, in double; only what is stored is
// rounded to the type of the tensor. It is what the conformance suite compares the backends with:
// slow, single-threaded, host memory only.
std::unique_ptr<Kernels> MakeReferenceKernels();

}  // namespace esteira

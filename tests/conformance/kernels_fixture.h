// What the conformance tests of Kernels share: a backend and the reference side by side, operands
// with equal values for both, and the comparison of what they leave.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "worker/kernels/kernels.h"

namespace esteira {

struct Backend {
  std::string name;
  std::function<std::unique_ptr<Device>()> make_device;
  std::function<std::unique_ptr<Kernels>()> make_kernels;
};

struct KernelsParameter {
  Backend backend;
  ElementType type = ElementType::kFp32;
};
// Every backend that this machine can run, with each type; a backend that it cannot run is printed
// with the reason.
std::vector<KernelsParameter> KernelsParameters();
void PrintTo(const KernelsParameter& parameter, std::ostream* out);
std::string NameOf(const testing::TestParamInfo<KernelsParameter>& info);

// The same tensor twice: `tested` for the backend, `expected` for the reference.
struct Twin {
  Tensor tested;
  Tensor expected;
};

double ValueAt(const Tensor& x, int64_t i);
void SetValue(const Tensor& x, int64_t i, double value);

class KernelsTest : public testing::TestWithParam<KernelsParameter> {
 protected:
  KernelsTest();

  ElementType type() const { return GetParam().type; }
  // Normal values times `scale`, a function of the number of calls so far.
  Twin Random(int64_t rows, int64_t columns, ElementType element_type, double scale = 1.0);
  Twin Random(int64_t rows, int64_t columns) { return Random(rows, columns, type()); }
  Twin Fp32(int64_t rows, int64_t columns) { return Random(rows, columns, ElementType::kFp32); }
  Twin Ids(int64_t rows, int64_t size);  // int32 in [0, size)
  Twin None() { return {}; }
  void Set(const Twin& twin, int64_t i, double value);
  Tensor Allocate(int64_t rows, int64_t columns, ElementType element_type);

  // Runs `operation` once for each side. Side(twin) is the tensor of that side.
  using Side = std::function<Tensor(const Twin&)>;
  void Run(const std::function<void(Kernels&, const Side&, Stream&)>& operation);

  // |tested - expected| <= tolerance (|expected| + root mean square of expected), for every
  // element; non-finite values must be non-finite on both sides. The tolerance is `scale` times
  // that of the tensor's own type.
  void ExpectNear(const Twin& twin, const char* name, double scale = 1.0);
  void ExpectSameBits(const Twin& twin, const char* name);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Kernels> reference_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;
  uint64_t num_tensors_ = 0;  // made so far: set it back and the same values come again
};

}  // namespace esteira

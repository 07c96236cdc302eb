#include "tests/conformance/kernels_fixture.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "common/base/random.h"
#include "worker/kernels/cpu/cpu_kernels.h"
#include "worker/kernels/reference/reference_kernels.h"

namespace esteira {
namespace {

Backend CpuBackend(const std::string& name, int threads, const Loops& loops) {
  return {
      .name = name,
      .make_device = [threads] { return MakeCpuDevice({.threads = threads}); },
      .make_kernels = [threads, &loops] { return std::make_unique<CpuKernels>(threads, loops); }};
}

std::vector<Backend> Backends() {
  std::vector<Backend> backends = {CpuBackend("Cpu", 1, LoopsOfThisCpu()),
                                   CpuBackend("CpuTwoThreads", 2, LoopsOfThisCpu()),
                                   CpuBackend("CpuBaseline", 1, kLoopsBaseline)};
  const Loops* const best = &LoopsOfThisCpu();
  if (best == &kLoopsAmx) backends.push_back(CpuBackend("CpuAvx512", 1, kLoopsAvx512));
  if (best == &kLoopsAmx || best == &kLoopsAvx512) {
    backends.push_back(CpuBackend("CpuAvx2", 1, kLoopsAvx2));
  }
  if (const auto cuda = MakeCudaDevice(0); !cuda.ok()) {
    std::printf("skipped: CUDA: %s\n", std::string(cuda.status().message()).c_str());
  }
  return backends;
}

// fp32: a few dozen roundings. bf16: both sides round once, and may fall on neighbours: 2^-7 apart.
double ToleranceOf(ElementType type) { return type == ElementType::kFp32 ? 5e-6 : 8e-3; }

}  // namespace

std::vector<KernelsParameter> KernelsParameters() {
  static const std::vector<Backend> backends = Backends();
  std::vector<KernelsParameter> parameters;
  for (const Backend& backend : backends) {
    parameters.push_back({backend, ElementType::kFp32});
    parameters.push_back({backend, ElementType::kBf16});
  }
  return parameters;
}

void PrintTo(const KernelsParameter& parameter, std::ostream* out) {
  *out << parameter.backend.name << (parameter.type == ElementType::kFp32 ? " fp32" : " bf16");
}

std::string NameOf(const testing::TestParamInfo<KernelsParameter>& info) {
  return info.param.backend.name + (info.param.type == ElementType::kFp32 ? "Fp32" : "Bf16");
}

double ValueAt(const Tensor& x, int64_t i) {
  if (x.type == ElementType::kFp32) return static_cast<double>(x.as<float>()[i]);
  const uint32_t bits = x.as<uint16_t>()[i];
  return static_cast<double>(std::bit_cast<float>(bits << 16));
}

void SetValue(const Tensor& x, int64_t i, double value) {
  const auto rounded = static_cast<float>(value);
  if (x.type == ElementType::kFp32) {
    x.as<float>()[i] = rounded;
    return;
  }
  const auto bits = std::bit_cast<uint32_t>(rounded);
  x.as<uint16_t>()[i] = static_cast<uint16_t>(
      std::isnan(rounded) ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

KernelsTest::KernelsTest()
    : device_(GetParam().backend.make_device()),
      kernels_(GetParam().backend.make_kernels()),
      reference_(MakeReferenceKernels()),
      stream_(device_->NewStream("kernels")) {}

Tensor KernelsTest::Allocate(int64_t rows, int64_t columns, ElementType element_type) {
  Tensor x{nullptr, element_type, rows, columns};
  auto buffer = device_->Allocate(x.bytes(), MemoryKind::kOther);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  x.data = buffer->data();
  buffers_.push_back(*std::move(buffer));
  return x;
}

Twin KernelsTest::Random(int64_t rows, int64_t columns, ElementType element_type, double scale) {
  Twin twin{Allocate(rows, columns, element_type), Allocate(rows, columns, element_type)};
  ++num_tensors_;
  for (int64_t i = 0; i < rows * columns; ++i) {
    Set(twin, i, scale * RandomNormal(1, num_tensors_, static_cast<uint64_t>(i)));
  }
  return twin;
}

Twin KernelsTest::Ids(int64_t rows, int64_t size) {
  Twin twin{Allocate(rows, 1, ElementType::kInt32), Allocate(rows, 1, ElementType::kInt32)};
  ++num_tensors_;
  for (int64_t i = 0; i < rows; ++i) {
    const uint64_t id =
        RandomBits(2, num_tensors_, static_cast<uint64_t>(i)) % static_cast<uint64_t>(size);
    twin.tested.as<int32_t>()[i] = twin.expected.as<int32_t>()[i] = static_cast<int32_t>(id);
  }
  return twin;
}

void KernelsTest::Set(const Twin& twin, int64_t i, double value) {
  SetValue(twin.tested, i, value);
  SetValue(twin.expected, i, value);
}

void KernelsTest::Run(const std::function<void(Kernels&, const Side&, Stream&)>& operation) {
  operation(
      *kernels_, [](const Twin& twin) { return twin.tested; }, *stream_);
  operation(
      *reference_, [](const Twin& twin) { return twin.expected; }, *stream_);
  const absl::Status status = stream_->Synchronize();
  ASSERT_TRUE(status.ok()) << status;
}

void KernelsTest::ExpectNear(const Twin& twin, const char* name, double scale) {
  const int64_t n = twin.tested.elements();
  double squares = 0;
  int64_t finite = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double value = ValueAt(twin.expected, i);
    if (!std::isfinite(value)) continue;
    squares += value * value;
    ++finite;
  }
  const double typical = finite == 0 ? 0.0 : std::sqrt(squares / static_cast<double>(finite));
  const double tolerance = scale * ToleranceOf(twin.tested.type);
  for (int64_t i = 0; i < n; ++i) {
    const double tested = ValueAt(twin.tested, i);
    const double expected = ValueAt(twin.expected, i);
    ASSERT_EQ(std::isfinite(tested), std::isfinite(expected))
        << name << "[" << i << "]: " << tested << " for " << expected;
    if (!std::isfinite(expected)) continue;
    ASSERT_LE(std::abs(tested - expected), tolerance * (std::abs(expected) + typical))
        << name << "[" << i << "]: " << tested << " for " << expected;
  }
}

void KernelsTest::ExpectSameBits(const Twin& twin, const char* name) {
  const auto bytes = static_cast<size_t>(twin.tested.bytes());
  if (bytes == 0) return;
  EXPECT_EQ(std::memcmp(twin.tested.data, twin.expected.data, bytes), 0) << name;
}

}  // namespace esteira

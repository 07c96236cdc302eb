// Speed of the CPU kernels at the shapes of GPT-2 124M: GFLOP/s of products and attention, bytes/s
// of the rest. The first argument of a benchmark is the type: 0 fp32, 1 bf16. One kernel thread;
// rates are per second of the process's processor time, which a busy machine disturbs less.
#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "common/base/random.h"
#include "common/plan/sizes.h"
#include "worker/kernels/kernels.h"

namespace esteira {
namespace {

constexpr int64_t kSequence = 1024;
constexpr int64_t kHidden = 768;
constexpr int64_t kHeads = 12;
constexpr int64_t kVocabulary = 50304;

// A device, a stream, kernels and the tensors that one benchmark allocates.
class Bench {
 public:
  explicit Bench(const benchmark::State& state)
      : type_(state.range(0) == 0 ? ElementType::kFp32 : ElementType::kBf16) {}

  Tensor Typed(int64_t rows, int64_t columns) { return Make(rows, columns, type_); }
  Tensor Wide(int64_t rows, int64_t columns) { return Make(rows, columns, ElementType::kFp32); }
  Tensor Ids(int64_t rows, int64_t size) {
    const Tensor x = Make(rows, 1, ElementType::kInt32);
    for (int64_t n = 0; n < rows; ++n) x.as<int32_t>()[n] = static_cast<int32_t>(n * 7919 % size);
    return x;
  }

  template <typename Operation>
  void Measure(benchmark::State& state, const Operation& operation) {
    operation();
    for (auto iteration : state) {
      operation();
      if (!stream->Synchronize().ok()) state.SkipWithError("the operation failed");
    }
  }

  std::unique_ptr<Device> device = MakeCpuDevice({});
  std::unique_ptr<Kernels> kernels = MakeCpuKernels(1);
  std::vector<Buffer> buffers;
  std::unique_ptr<Stream> stream = device->NewStream("bench");

 private:
  Tensor Make(int64_t rows, int64_t columns, ElementType type) {
    Tensor x{nullptr, type, rows, columns};
    buffers.push_back(*device->Allocate(x.bytes(), MemoryKind::kOther));
    x.data = buffers.back().data();
    if (type == ElementType::kInt32) return x;
    constexpr int64_t kDistinct = 4096;
    std::vector<float> values(kDistinct);
    for (int64_t i = 0; i < kDistinct; ++i) {
      values[static_cast<size_t>(i)] =
          static_cast<float>(0.5 * RandomNormal(1, 2, static_cast<uint64_t>(i)));
    }
    for (int64_t i = 0; i < x.elements(); i += kDistinct) {
      const int64_t n = std::min(kDistinct, x.elements() - i);
      const Tensor from{reinterpret_cast<std::byte*>(values.data()), ElementType::kFp32, 1, n};
      kernels->Convert(from, {x.data + i * BytesOf(type), type, 1, n}, *stream);
    }
    (void)stream->Synchronize();
    return x;
  }

  ElementType type_;
};

void SetFlops(benchmark::State& state, double flops) {
  state.counters["FLOP/s"] = benchmark::Counter(flops * static_cast<double>(state.iterations()),
                                                benchmark::Counter::kIsRate);
}

void SetBytes(benchmark::State& state, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

enum class Pass { kForward, kBackwardInput, kBackwardWeight };

// Arguments after the type: rows, inputs, outputs, layout.
template <Pass kPass>
void BM_Linear(benchmark::State& state) {
  Bench bench(state);
  const int64_t rows = state.range(1);
  const int64_t in = state.range(2);
  const int64_t out = state.range(3);
  const auto layout = static_cast<WeightLayout>(state.range(4));
  const bool in_out = layout == WeightLayout::kInOut;
  const Tensor x = bench.Typed(rows, in);
  const Tensor w = in_out ? bench.Typed(in, out) : bench.Typed(out, in);
  const Tensor y = bench.Typed(rows, out);
  const Tensor bias = bench.Typed(1, out);
  const Tensor dw = bench.Wide(w.rows, w.columns);
  const Tensor db = bench.Wide(1, out);
  bench.Measure(state, [&] {
    switch (kPass) {
      case Pass::kForward:
        return bench.kernels->LinearForward(x, w, bias, layout, y, *bench.stream);
      case Pass::kBackwardInput:
        return bench.kernels->LinearBackwardInput(y, w, layout, x, *bench.stream);
      case Pass::kBackwardWeight:
        return bench.kernels->LinearBackwardWeight(x, y, layout, GradientSum::kContinues, dw, db,
                                                   *bench.stream);
    }
  });
  SetFlops(state, 2.0 * static_cast<double>(rows) * static_cast<double>(in * out));
}

void LinearShapes(benchmark::internal::Benchmark* benchmark) {
  for (const int64_t type : {0, 1}) {
    for (const int64_t layout : {0, 1}) {
      benchmark->Args({type, kSequence, kHidden, 3 * kHidden, layout});
      benchmark->Args({type, kSequence, 4 * kHidden, kHidden, layout});
    }
    benchmark->Args({type, 256, kHidden, kVocabulary, 1});
  }
}
BENCHMARK(BM_Linear<Pass::kForward>)->Apply(LinearShapes)->MeasureProcessCPUTime();
BENCHMARK(BM_Linear<Pass::kBackwardInput>)->Apply(LinearShapes)->MeasureProcessCPUTime();
BENCHMARK(BM_Linear<Pass::kBackwardWeight>)->Apply(LinearShapes)->MeasureProcessCPUTime();

// Arguments after the type: 0 forward, 1 backward; head size.
void BM_Attention(benchmark::State& state) {
  Bench bench(state);
  const bool backward = state.range(1) == 1;
  const AttentionShape shape = {.batch = 1,
                                .sequence = kSequence,
                                .num_heads = kHidden / state.range(2),
                                .num_kv_heads = kHidden / state.range(2),
                                .head_size = state.range(2)};
  const Tensor qkv = bench.Typed(kSequence, 3 * kHidden);
  const Tensor dqkv = bench.Typed(kSequence, 3 * kHidden);
  const Tensor y = bench.Typed(kSequence, kHidden);
  const Tensor dy = bench.Typed(kSequence, kHidden);
  const Tensor log_sum_exp = bench.Wide(kSequence, shape.num_heads);
  const Tensor workspace =
      bench.Wide(1, AttentionWorkspaceElements(1, kSequence, shape.num_kv_heads, shape.head_size));
  const auto columns = [](Tensor x, int64_t part) {
    return Kernels::Strided{{x.data + part * kHidden * BytesOf(x.type), x.type, kSequence, kHidden},
                            3 * kHidden};
  };
  const auto forward = [&] {
    bench.kernels->AttentionForward(shape, columns(qkv, 0), columns(qkv, 1), columns(qkv, 2), y,
                                    log_sum_exp, workspace, *bench.stream);
  };
  forward();
  bench.Measure(state, [&] {
    if (!backward) return forward();
    bench.kernels->AttentionBackward(shape, dy, columns(qkv, 0), columns(qkv, 1), columns(qkv, 2),
                                     y, log_sum_exp, columns(dqkv, 0), columns(dqkv, 1),
                                     columns(dqkv, 2), workspace, *bench.stream);
  });
  // Two products forward and five backward, of which causality needs half.
  SetFlops(state, (backward ? 5.0 : 2.0) * static_cast<double>(kSequence * kSequence * kHidden));
}
BENCHMARK(BM_Attention)->ArgsProduct({{0, 1}, {0, 1}, {64, 128}})->MeasureProcessCPUTime();

void BM_Gelu(benchmark::State& state) {
  Bench bench(state);
  const Tensor x = bench.Typed(kSequence, 4 * kHidden);
  const Tensor y = bench.Typed(kSequence, 4 * kHidden);
  bench.Measure(state, [&] { bench.kernels->GeluForward(x, y, *bench.stream); });
  SetBytes(state, x.bytes() + y.bytes());
}
BENCHMARK(BM_Gelu)->Arg(0)->Arg(1)->MeasureProcessCPUTime();

void BM_GeluBackward(benchmark::State& state) {
  Bench bench(state);
  const Tensor x = bench.Typed(kSequence, 4 * kHidden);
  const Tensor dy = bench.Typed(kSequence, 4 * kHidden);
  bench.Measure(state, [&] { bench.kernels->GeluBackward(dy, x, dy, *bench.stream); });
  SetBytes(state, 3 * x.bytes());
}
BENCHMARK(BM_GeluBackward)->Arg(0)->Arg(1)->MeasureProcessCPUTime();

// Arguments after the type: 0 forward, 1 backward of the input, 2 backward of the weights.
void BM_LayerNorm(benchmark::State& state) {
  Bench bench(state);
  const Tensor x = bench.Typed(kSequence, kHidden);
  const Tensor y = bench.Typed(kSequence, kHidden);
  const Tensor dx = bench.Typed(kSequence, kHidden);
  const Tensor w = bench.Typed(1, kHidden);
  const Tensor b = bench.Typed(1, kHidden);
  const Tensor mean = bench.Wide(kSequence, 1);
  const Tensor rstd = bench.Wide(kSequence, 1);
  const Tensor dw = bench.Wide(1, kHidden);
  const Tensor db = bench.Wide(1, kHidden);
  Kernels& k = *bench.kernels;
  bench.Measure(state, [&] {
    if (state.range(1) == 0) k.LayerNormForward(x, w, b, 1e-5, y, mean, rstd, *bench.stream);
    if (state.range(1) == 1) k.LayerNormBackwardInput(y, x, w, mean, rstd, dx, *bench.stream);
    if (state.range(1) == 2) k.LayerNormBackwardWeight(y, x, mean, rstd, dw, db, *bench.stream);
  });
  SetBytes(state, (state.range(1) == 1 ? 3 : 2) * x.bytes());
}
BENCHMARK(BM_LayerNorm)->ArgsProduct({{0, 1}, {0, 1, 2}})->MeasureProcessCPUTime();

void BM_CrossEntropy(benchmark::State& state) {
  Bench bench(state);
  const Tensor logits = bench.Typed(128, kVocabulary);
  const Tensor targets = bench.Ids(128, kVocabulary);
  LossSums sums;
  bench.Measure(state, [&] { bench.kernels->CrossEntropy(logits, targets, &sums, *bench.stream); });
  SetBytes(state, 2 * logits.bytes());
}
BENCHMARK(BM_CrossEntropy)->Arg(0)->Arg(1)->MeasureProcessCPUTime();

void BM_AdamW(benchmark::State& state) {
  Bench bench(state);
  constexpr int64_t kElements = 7'087'872;  // one block of GPT-2 124M
  const Tensor gradient = bench.Wide(1, kElements);
  const Tensor master = bench.Wide(1, kElements);
  const Tensor m = bench.Wide(1, kElements);
  const Tensor v = bench.Wide(1, kElements);
  const Tensor parameters = bench.Typed(1, kElements);
  bench.kernels->Zero(v, *bench.stream);
  const AdamWStep step = {.learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
  bench.Measure(state, [&] {
    bench.kernels->AdamW(step, gradient, master, m, v, parameters, *bench.stream);
  });
  SetBytes(state, kElements * (7 * 4 + BytesOf(parameters.type)));
}
BENCHMARK(BM_AdamW)->Arg(0)->Arg(1)->MeasureProcessCPUTime();

void BM_SumSquares(benchmark::State& state) {
  Bench bench(state);
  constexpr int64_t kElements = 7'087'872;
  const Tensor x = bench.Wide(1, kElements);
  std::vector<double> blocks(kElements / 64);
  bench.Measure(state, [&] { bench.kernels->SumSquaresByBlock(x, blocks.data(), *bench.stream); });
  SetBytes(state, x.bytes());
}
BENCHMARK(BM_SumSquares)->Arg(0)->MeasureProcessCPUTime();

// A thousand tiny tasks with an event each: what a stream itself costs.
void BM_Stream(benchmark::State& state) {
  const auto device = MakeCpuDevice({});
  const auto stream = device->NewStream("bench");
  const auto event = device->NewEvent();
  for (auto iteration : state) {
    for (int i = 0; i < 1000; ++i) {
      stream->Enqueue([] { return absl::OkStatus(); });
      stream->Record(*event);
    }
    (void)stream->Synchronize();
  }
  state.SetItemsProcessed(state.iterations() * 1000);
}
BENCHMARK(BM_Stream)->MeasureProcessCPUTime();

}  // namespace
}  // namespace esteira

BENCHMARK_MAIN();

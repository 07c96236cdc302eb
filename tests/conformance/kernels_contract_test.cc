// What every operation promises besides its numbers: a non-finite input never vanishes, and the
// bits of a result depend on values and shapes alone.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/plan/sizes.h"
#include "tests/conformance/kernels_fixture.h"

namespace esteira {
namespace {

// One operation as the table below lists it: `inputs` are read, `outputs` are what it leaves (some
// are both).
struct Operation {
  std::string name;
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  std::function<void(Kernels&, Stream&)> run;
};

constexpr int64_t kRows = 70;
constexpr int64_t kIn = 37;
constexpr int64_t kOut = 45;
constexpr int64_t kHeadSize = 10;
constexpr AttentionShape kAttention = {
    .batch = 1, .sequence = kRows, .num_heads = 4, .num_kv_heads = 2, .head_size = kHeadSize};

class ContractTest : public KernelsTest {
 protected:
  // Where the tensors that follow begin: `shift` elements past an aligned address.
  void set_shift(int64_t shift) { shift_ = shift; }

  Tensor Shifted(int64_t rows, int64_t columns, ElementType element_type) {
    const Tensor room = Allocate(1, rows * columns + shift_, element_type);
    Tensor x{room.data + shift_ * BytesOf(element_type), element_type, rows, columns};
    const Twin random = Random(rows, columns, element_type);
    if (x.bytes() > 0) std::memcpy(x.data, random.tested.data, static_cast<size_t>(x.bytes()));
    return x;
  }
  Tensor Typed(int64_t rows, int64_t columns) { return Shifted(rows, columns, type()); }
  Tensor Wide(int64_t rows, int64_t columns) { return Shifted(rows, columns, ElementType::kFp32); }
  Tensor Positive(int64_t rows, int64_t columns) {
    const Tensor x = Wide(rows, columns);
    for (int64_t i = 0; i < x.elements(); ++i) SetValue(x, i, std::abs(ValueAt(x, i)) + 0.1);
    return x;
  }

  std::vector<Operation> Operations() {
    std::vector<Operation> operations;
    AddPointwise(operations);
    AddLinear(operations);
    AddNorms(operations);
    AddAttention(operations);
    AddLossAndOptimizer(operations);
    return operations;
  }

 private:
  void AddPointwise(std::vector<Operation>& list) {
    const Tensor a = Typed(3, 21), b = Typed(3, 21), c = Typed(3, 21);
    const Tensor out = Typed(3, 21), other = Typed(3, 21), sum = Wide(3, 21);
    list.push_back({"Add", {a, b}, {out}, [=](Kernels& k, Stream& s) { k.Add(a, b, out, s); }});
    list.push_back(
        {"Accumulate", {a, sum}, {sum}, [=](Kernels& k, Stream& s) { k.Accumulate(a, sum, s); }});
    list.push_back({"Convert", {a}, {sum}, [=](Kernels& k, Stream& s) { k.Convert(a, sum, s); }});
    list.push_back(
        {"GeluForward", {a}, {out}, [=](Kernels& k, Stream& s) { k.GeluForward(a, out, s); }});
    list.push_back({"GeluBackward", {a, b}, {out}, [=](Kernels& k, Stream& s) {
                      k.GeluBackward(a, b, out, s);
                    }});
    list.push_back({"SwiGluForward", {a, b}, {out}, [=](Kernels& k, Stream& s) {
                      k.SwiGluForward(a, b, out, s);
                    }});
    list.push_back({"SwiGluBackward", {a, b, c}, {out, other}, [=](Kernels& k, Stream& s) {
                      k.SwiGluBackward(a, b, c, out, other, s);
                    }});
    const Tensor x = Typed(9, 24);
    list.push_back(
        {"Rope", {x}, {x}, [=](Kernels& k, Stream& s) { k.Rope(x, 9, 8, 10000.0, false, s); }});
  }

  void AddLinear(std::vector<Operation>& list) {
    for (const WeightLayout layout : {WeightLayout::kInOut, WeightLayout::kOutIn}) {
      const bool in_out = layout == WeightLayout::kInOut;
      const Tensor x = Typed(kRows, kIn), bias = Typed(1, kOut), y = Typed(kRows, kOut);
      const Tensor w = in_out ? Typed(kIn, kOut) : Typed(kOut, kIn);
      const Tensor dw = in_out ? Wide(kIn, kOut) : Wide(kOut, kIn);
      const Tensor dy = Typed(kRows, kOut), dx = Typed(kRows, kIn), db = Wide(1, kOut);
      list.push_back({"LinearForward", {x, w, bias}, {y}, [=](Kernels& k, Stream& s) {
                        k.LinearForward(x, w, bias, layout, y, s);
                      }});
      list.push_back({"LinearBackwardInput", {dy, w}, {dx}, [=](Kernels& k, Stream& s) {
                        k.LinearBackwardInput(dy, w, layout, dx, s);
                      }});
      list.push_back(
          {"LinearBackwardWeight", {x, dy, dw, db}, {dw, db}, [=](Kernels& k, Stream& s) {
             k.LinearBackwardWeight(x, dy, layout, GradientSum::kContinues, dw, db, s);
           }});
    }
  }

  void AddNorms(std::vector<Operation>& list) {
    const Tensor x = Typed(kRows, kIn), w = Typed(1, kIn), b = Typed(1, kIn), y = Typed(kRows, kIn);
    const Tensor dy = Typed(kRows, kIn), dx = Typed(kRows, kIn), dw = Wide(1, kIn);
    const Tensor db = Wide(1, kIn), mean = Wide(kRows, 1), rstd = Positive(kRows, 1);
    const Tensor new_mean = Wide(kRows, 1), new_rstd = Wide(kRows, 1);
    list.push_back(
        {"LayerNormForward", {x, w, b}, {y, new_mean, new_rstd}, [=](Kernels& k, Stream& s) {
           k.LayerNormForward(x, w, b, 1e-5, y, new_mean, new_rstd, s);
         }});
    list.push_back(
        {"LayerNormBackwardInput", {dy, x, w, mean, rstd}, {dx}, [=](Kernels& k, Stream& s) {
           k.LayerNormBackwardInput(dy, x, w, mean, rstd, dx, s);
         }});
    list.push_back(
        {"LayerNormBackwardWeight",
         {dy, x, mean, rstd, dw, db},
         {dw, db},
         [=](Kernels& k, Stream& s) { k.LayerNormBackwardWeight(dy, x, mean, rstd, dw, db, s); }});
    list.push_back({"RmsNormForward", {x, w}, {y, new_rstd}, [=](Kernels& k, Stream& s) {
                      k.RmsNormForward(x, w, 1e-5, y, new_rstd, s);
                    }});
    list.push_back({"RmsNormBackwardInput", {dy, x, w, rstd}, {dx}, [=](Kernels& k, Stream& s) {
                      k.RmsNormBackwardInput(dy, x, w, rstd, dx, s);
                    }});
    list.push_back({"RmsNormBackwardWeight", {dy, x, rstd, dw}, {dw}, [=](Kernels& k, Stream& s) {
                      k.RmsNormBackwardWeight(dy, x, rstd, dw, s);
                    }});
  }

  void AddAttention(std::vector<Operation>& list) {
    constexpr int64_t kQ = 4 * kHeadSize, kK = 2 * kHeadSize;
    const Tensor q = Typed(kRows, kQ), key = Typed(kRows, kK), v = Typed(kRows, kK);
    const Tensor y = Typed(kRows, kQ), dy = Typed(kRows, kQ), log_sum_exp = Positive(kRows, 4);
    const Tensor new_y = Typed(kRows, kQ), new_log_sum_exp = Wide(kRows, 4);
    const Tensor dq = Typed(kRows, kQ), dk = Typed(kRows, kK), dv = Typed(kRows, kK);
    const Tensor workspace = Wide(1, AttentionWorkspaceElements(1, kRows, 2, kHeadSize));
    list.push_back(
        {"AttentionForward", {q, key, v}, {new_y, new_log_sum_exp}, [=](Kernels& k, Stream& s) {
           k.AttentionForward(kAttention, {q, kQ}, {key, kK}, {v, kK}, new_y, new_log_sum_exp,
                              workspace, s);
         }});
    list.push_back({"AttentionBackward",
                    {dy, q, key, v, y, log_sum_exp},
                    {dq, dk, dv},
                    [=](Kernels& k, Stream& s) {
                      k.AttentionBackward(kAttention, dy, {q, kQ}, {key, kK}, {v, kK}, y,
                                          log_sum_exp, {dq, kQ}, {dk, kK}, {dv, kK}, workspace, s);
                    }});
  }

  void AddLossAndOptimizer(std::vector<Operation>& list) {
    const Tensor tokens = Ids(kRows, kRows).tested;
    const Tensor table = Typed(kRows, kIn), positions = Typed(kRows, kIn);
    for (int32_t n = 0; n < kRows; ++n) tokens.as<int32_t>()[n] = n;
    const Tensor y = Typed(kRows, kIn), dtable = Wide(kRows, kIn), dpositions = Wide(kRows, kIn);
    list.push_back({"EmbeddingForward", {table, positions}, {y}, [=](Kernels& k, Stream& s) {
                      k.EmbeddingForward(tokens, table, positions, kRows, y, s);
                    }});
    const Tensor dy = Typed(kRows, kIn);
    list.push_back({"EmbeddingBackward",
                    {dy, dtable, dpositions},
                    {dtable, dpositions},
                    [=](Kernels& k, Stream& s) {
                      k.EmbeddingBackward(dy, tokens, kRows, dtable, dpositions, s);
                    }});
    const Tensor logits = Typed(kRows, kRows + 3);
    const Tensor loss = Allocate(1, 2, ElementType::kInt64);
    list.push_back({"CrossEntropy", {logits}, {logits, loss}, [=](Kernels& k, Stream& s) {
                      k.CrossEntropy(logits, tokens, loss.as<LossSums>(), s);
                    }});
    const Tensor g = Wide(1, 77), master = Wide(1, 77), m = Wide(1, 77), v = Positive(1, 77);
    const Tensor parameters = Typed(1, 77);
    list.push_back(
        {"AdamW", {g, master, m, v}, {master, m, v, parameters}, [=](Kernels& k, Stream& s) {
           k.AdamW({.learning_rate = 0.1,
                    .beta1 = 0.9,
                    .beta2 = 0.9,
                    .epsilon = 1e-8,
                    .weight_decay = 0.1},
                   g, master, m, v, parameters, s);
         }});
  }

  int64_t shift_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Backends, ContractTest, testing::ValuesIn(KernelsParameters()), NameOf);

bool IsNumber(const Tensor& x) {
  return x.type == ElementType::kFp32 || x.type == ElementType::kBf16;
}

bool HasNonFinite(const std::vector<Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& x) {
    for (int64_t i = 0; IsNumber(x) && i < x.elements(); ++i) {
      if (!std::isfinite(ValueAt(x, i))) return true;
    }
    return false;
  });
}

std::vector<std::string> BytesOfAll(const std::vector<Tensor>& tensors) {
  std::vector<std::string> bytes;
  for (const Tensor& x : tensors) {
    bytes.emplace_back(reinterpret_cast<const char*>(x.data), static_cast<size_t>(x.bytes()));
  }
  return bytes;
}

void Restore(const std::vector<Tensor>& tensors, const std::vector<std::string>& bytes) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::memcpy(tensors[i].data, bytes[i].data(), bytes[i].size());
  }
}

TEST_P(ContractTest, ANonFiniteInputNeverVanishes) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Operation& operation : Operations()) {
    const auto inputs = BytesOfAll(operation.inputs);
    const auto outputs = BytesOfAll(operation.outputs);
    operation.run(*kernels_, *stream_);
    ASSERT_TRUE(stream_->Synchronize().ok());
    ASSERT_FALSE(HasNonFinite(operation.outputs)) << operation.name << " of finite inputs";
    for (const Tensor& input : operation.inputs) {
      for (const double bad : {std::nan(""), kInfinity, -kInfinity}) {
        for (const int64_t at : {int64_t{0}, input.elements() / 2, input.elements() - 1}) {
          Restore(operation.outputs, outputs);
          Restore(operation.inputs, inputs);
          SetValue(input, at, bad);
          operation.run(*kernels_, *stream_);
          ASSERT_TRUE(stream_->Synchronize().ok());
          EXPECT_TRUE(HasNonFinite(operation.outputs))
              << operation.name << ": " << bad << " at " << at << " of input "
              << &input - operation.inputs.data();
        }
      }
    }
    Restore(operation.outputs, outputs);
    Restore(operation.inputs, inputs);  // others read them too
  }
}

TEST_P(ContractTest, BitsDependOnNeitherAddressNorTimeNorObject) {
  std::vector<std::vector<std::string>> first;
  for (const int64_t shift : {0, 1, 3, 7, 16}) {
    set_shift(shift);
    num_tensors_ = 0;
    const auto kernels = GetParam().backend.make_kernels();
    std::vector<std::vector<std::string>> results;
    for (const Operation& operation : Operations()) {
      operation.run(*kernels, *stream_);
      ASSERT_TRUE(stream_->Synchronize().ok());
      results.push_back(BytesOfAll(operation.outputs));
    }
    if (shift == 0) first = results;
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i] == first[i], true) << Operations()[i].name << ", shifted by " << shift;
    }
  }
}

// Two objects at work at once, each on its own stream: the same bits as one alone.
TEST_P(ContractTest, ObjectsOnSeveralStreamsDoNotDisturbEachOther) {
  constexpr int kObjects = 3;
  const auto alone = Operations();
  for (const Operation& operation : alone) operation.run(*kernels_, *stream_);
  ASSERT_TRUE(stream_->Synchronize().ok());
  std::vector<std::vector<Operation>> all;
  std::vector<std::unique_ptr<Kernels>> kernels;
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < kObjects; ++i) {
    num_tensors_ = 0;
    all.push_back(Operations());
    kernels.push_back(GetParam().backend.make_kernels());
    streams.push_back(device_->NewStream("object"));
  }
  for (size_t j = 0; j < alone.size(); ++j) {
    for (size_t i = 0; i < kObjects; ++i) all[i][j].run(*kernels[i], *streams[i]);
  }
  for (size_t i = 0; i < kObjects; ++i) {
    ASSERT_TRUE(streams[i]->Synchronize().ok());
    for (size_t j = 0; j < alone.size(); ++j) {
      EXPECT_EQ(BytesOfAll(all[i][j].outputs) == BytesOfAll(alone[j].outputs), true)
          << alone[j].name;
    }
  }
}

}  // namespace
}  // namespace esteira

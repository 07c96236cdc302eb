// Linear operations, norms and pointwise operations of every backend against the reference.
#include <cmath>
#include <limits>
#include <vector>

#include "tests/conformance/kernels_fixture.h"

namespace esteira {
namespace {

INSTANTIATE_TEST_SUITE_P(Backends, KernelsTest, testing::ValuesIn(KernelsParameters()), NameOf);

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST_P(KernelsTest, ZeroFills) {
  const Twin x = Random(7, 13);
  Run([&](Kernels& k, const Side& side, Stream& stream) { k.Zero(side(x), stream); });
  ExpectSameBits(x, "x");
  EXPECT_EQ(ValueAt(x.tested, 90), 0.0);
}

TEST_P(KernelsTest, ConvertRoundsToNearestEvenAndKeepsSpecialValues) {
  for (const ElementType to : {ElementType::kFp32, ElementType::kBf16}) {
    const Twin from = Random(1, 1037);
    const double special[] = {0.0,       -0.0,       1.0 + 1.0 / 256, 1.0 + 3.0 / 256, kNan,
                              kInfinity, -kInfinity, 3.4e38,          1e-40,           -1e-45};
    for (size_t i = 0; i < std::size(special); ++i) {
      Set(from, static_cast<int64_t>(i), special[i]);
      Set(from, 1030 - static_cast<int64_t>(i), special[i]);
    }
    const Twin out = Random(1, 1037, to);
    Run([&](Kernels& k, const Side& side, Stream& stream) {
      k.Convert(side(from), side(out), stream);
    });
    ExpectSameBits(out, "out");
  }
}

TEST_P(KernelsTest, AddAndAccumulate) {
  for (const int64_t n : {0, 1, 3, 16, 17, 1009, 40000}) {
    const Twin a = Random(1, n);
    const Twin b = Random(1, n);
    const Twin sum = Random(1, n);
    const Twin wide = Fp32(1, n);
    Run([&](Kernels& k, const Side& side, Stream& stream) {
      k.Add(side(a), side(b), side(sum), stream);
      k.Accumulate(side(a), side(wide), stream);
      k.Add(side(a), side(b), side(a), stream);
      k.Add(side(a), side(b), side(b), stream);
    });
    for (const Twin& twin : {a, b, sum, wide}) ExpectSameBits(twin, "sum");
  }
}

struct LinearSizes {
  int64_t rows, in, out;
};
constexpr LinearSizes kLinearSizes[] = {
    {1, 1, 1},    {0, 5, 7},     {3, 1, 5},     {5, 3, 1},       {1, 17, 31},    {7, 13, 11},
    {64, 64, 64}, {65, 48, 130}, {37, 101, 67}, {257, 129, 515}, {1030, 33, 19}, {300, 1100, 40}};

TEST_P(KernelsTest, LinearForward) {
  for (const auto& [rows, in, out] : kLinearSizes) {
    for (const WeightLayout layout : {WeightLayout::kInOut, WeightLayout::kOutIn}) {
      for (const bool with_bias : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << in << " x " << out);
        const bool in_out = layout == WeightLayout::kInOut;
        const Twin x = Random(rows, in);
        const Twin w = in_out ? Random(in, out) : Random(out, in);
        const Twin bias = with_bias ? Random(1, out) : None();
        const Twin y = Random(rows, out);
        Run([&](Kernels& k, const Side& side, Stream& stream) {
          k.LinearForward(side(x), side(w), side(bias), layout, side(y), stream);
        });
        ExpectNear(y, "y");
      }
    }
  }
}

TEST_P(KernelsTest, LinearBackwardInput) {
  for (const auto& [rows, in, out] : kLinearSizes) {
    for (const WeightLayout layout : {WeightLayout::kInOut, WeightLayout::kOutIn}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << in << " x " << out);
      const Twin dy = Random(rows, out);
      const Twin w = layout == WeightLayout::kInOut ? Random(in, out) : Random(out, in);
      const Twin dx = Random(rows, in);
      Run([&](Kernels& k, const Side& side, Stream& stream) {
        k.LinearBackwardInput(side(dy), side(w), layout, side(dx), stream);
      });
      ExpectNear(dx, "dx");
    }
  }
}

TEST_P(KernelsTest, LinearBackwardWeightAccumulatesInFp32) {
  for (const auto& [rows, in, out] : kLinearSizes) {
    for (const WeightLayout layout : {WeightLayout::kInOut, WeightLayout::kOutIn}) {
      for (const bool with_bias : {false, true}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << in << " x " << out);
        const Twin x = Random(rows, in);
        const Twin dy = Random(rows, out);
        const Twin dw = layout == WeightLayout::kInOut ? Fp32(in, out) : Fp32(out, in);
        const Twin db = with_bias ? Fp32(1, out) : None();
        Run([&](Kernels& k, const Side& side, Stream& stream) {
          k.LinearBackwardWeight(side(x), side(dy), layout, GradientSum::kContinues, side(dw),
                                 side(db), stream);
        });
        ExpectNear(dw, "dw");
        if (with_bias) ExpectNear(db, "db");
      }
    }
  }
}

// Also that a sum of negative products too small for fp32 is 0, not -0.
TEST_P(KernelsTest, LinearBackwardWeightBegunHasTheBitsOfASumFromZero) {
  std::vector<LinearSizes> sizes(std::begin(kLinearSizes), std::end(kLinearSizes));
  sizes.push_back({33, 832, 640});  // larger than a cache
  for (const auto& [rows, in, out] : sizes) {
    for (const WeightLayout layout : {WeightLayout::kInOut, WeightLayout::kOutIn}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << in << " x " << out);
      const Twin x = Random(rows, in);
      const Twin dy = Random(rows, out);
      for (int64_t n = 0; n < rows; ++n) {
        Set(x, n * in, 1e-30);
        Set(dy, n * out, -1e-30);
      }
      const bool in_out = layout == WeightLayout::kInOut;
      const Twin from_zero = in_out ? Fp32(in, out) : Fp32(out, in);
      const Twin begun = in_out ? Fp32(in, out) : Fp32(out, in);
      const Twin bias_from_zero = Fp32(1, out);
      const Twin bias_begun = Fp32(1, out);
      Set(begun, 0, kNan);
      Set(bias_begun, out - 1, kInfinity);
      Run([&](Kernels& k, const Side& side, Stream& stream) {
        k.Zero(side(from_zero), stream);
        k.Zero(side(bias_from_zero), stream);
        k.LinearBackwardWeight(side(x), side(dy), layout, GradientSum::kContinues, side(from_zero),
                               side(bias_from_zero), stream);
        k.LinearBackwardWeight(side(x), side(dy), layout, GradientSum::kBegins, side(begun),
                               side(bias_begun), stream);
      });
      ExpectSameBits({begun.tested, from_zero.tested}, "dw");
      ExpectSameBits({bias_begun.tested, bias_from_zero.tested}, "db");
    }
  }
}

struct NormSizes {
  int64_t rows, hidden;
};
constexpr NormSizes kNormSizes[] = {{0, 8}, {1, 1}, {3, 2}, {2, 17}, {5, 64}, {131, 31}, {67, 768}};

TEST_P(KernelsTest, LayerNorm) {
  for (const auto& [rows, hidden] : kNormSizes) {
    SCOPED_TRACE(testing::Message() << rows << " x " << hidden);
    const Twin x = Random(rows, hidden);
    const Twin w = Random(1, hidden);
    const Twin b = Random(1, hidden);
    const Twin y = Random(rows, hidden);
    const Twin mean = Fp32(rows, 1);
    const Twin rstd = Fp32(rows, 1);
    const Twin dy = Random(rows, hidden);
    const Twin dx = Random(rows, hidden);
    const Twin dw = Fp32(1, hidden);
    const Twin db = Fp32(1, hidden);
    Run([&](Kernels& k, const Side& side, Stream& stream) {
      k.LayerNormForward(side(x), side(w), side(b), 1e-5, side(y), side(mean), side(rstd), stream);
      k.LayerNormBackwardInput(side(dy), side(x), side(w), side(mean), side(rstd), side(dx),
                               stream);
      k.LayerNormBackwardWeight(side(dy), side(x), side(mean), side(rstd), side(dw), side(db),
                                stream);
    });
    // One column has no variance: its rstd is 316, and so are the errors.
    const double scale = hidden < 3 ? 400.0 : 1.0;
    ExpectNear(mean, "mean");
    ExpectNear(rstd, "rstd", scale);
    ExpectNear(y, "y", scale);
    if (hidden >= 3) ExpectNear(dx, "dx");
    ExpectNear(dw, "dw", scale);
    ExpectNear(db, "db");
  }
}

TEST_P(KernelsTest, RmsNorm) {
  for (const auto& [rows, hidden] : kNormSizes) {
    SCOPED_TRACE(testing::Message() << rows << " x " << hidden);
    const Twin x = Random(rows, hidden);
    const Twin w = Random(1, hidden);
    const Twin y = Random(rows, hidden);
    const Twin rstd = Fp32(rows, 1);
    const Twin dy = Random(rows, hidden);
    const Twin dx = Random(rows, hidden);
    const Twin dw = Fp32(1, hidden);
    Run([&](Kernels& k, const Side& side, Stream& stream) {
      k.RmsNormForward(side(x), side(w), 1e-6, side(y), side(rstd), stream);
      k.RmsNormBackwardInput(side(dy), side(x), side(w), side(rstd), side(dx), stream);
      k.RmsNormBackwardWeight(side(dy), side(x), side(rstd), side(dw), stream);
    });
    ExpectNear(rstd, "rstd");
    ExpectNear(y, "y");
    if (hidden > 1) ExpectNear(dx, "dx");
    ExpectNear(dw, "dw");
  }
}

// Values over the whole range: the tails of exp and tanh are where approximations break.
TEST_P(KernelsTest, DropoutIsAFunctionOfSampleAndElement) {
  constexpr int64_t kSequence = 6;
  for (const int64_t columns : {1, 3, 8, 300}) {
    for (const double rate : {0.1, 0.5, 0.99}) {
      const DropoutMask mask = {
          .rate = rate, .seed = 7, .site = 5, .first_sample = 11, .sequence = kSequence};
      DropoutMask later = mask;  // the second sample alone
      later.first_sample = 12;
      const Twin x = Random(2 * kSequence, columns);
      const Twin y = Random(2 * kSequence, columns);
      const Twin second = Random(kSequence, columns);
      Run([&](Kernels& k, const Side& side, Stream& stream) {
        const Tensor all = side(x);
        Tensor half = all;
        half.rows = kSequence;
        half.data += kSequence * columns * BytesOf(all.type);
        k.Dropout(half, later, side(second), stream);
        k.Dropout(all, mask, side(y), stream);
        k.Dropout(all, mask, all, stream);
      });
      ExpectNear(y, "y");
      ExpectNear(x, "in place");
      for (int64_t i = 0; i < kSequence * columns; ++i) {
        ASSERT_EQ(ValueAt(second.tested, i), ValueAt(y.tested, kSequence * columns + i));
      }
    }
  }
}

TEST_P(KernelsTest, DropoutDropsItsShareAndKeepsTheMean) {
  constexpr int64_t kRows = 64, kColumns = 512;
  const Twin x = Random(kRows, kColumns);
  for (int64_t i = 0; i < kRows * kColumns; ++i) Set(x, i, 1);
  Run([&](Kernels& k, const Side& side, Stream& stream) {
    k.Dropout(side(x), {.rate = 0.25, .seed = 1, .site = 2, .first_sample = 3, .sequence = 8},
              side(x), stream);
  });
  int64_t dropped = 0;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const double value = ValueAt(x.tested, i);
    if (value == 0) {
      ++dropped;
    } else {
      ASSERT_NEAR(value, 4.0 / 3, 6e-3);
    }
  }
  // 32768 draws: a standard deviation is 0.24 %.
  EXPECT_NEAR(static_cast<double>(dropped) / (kRows * kColumns), 0.25, 0.01);
}

constexpr double kTails[] = {0.0,   -0.0, 1e-30, -1e-30, 9.0,    -9.0, 20.5,  -20.5, 87.5,
                             -87.5, 88.5, -88.5, 200.0,  -200.0, 1e10, -1e10, 1e30,  -1e30};

TEST_P(KernelsTest, Gelu) {
  for (const int64_t n : {0, 1, 5, 31, 33000}) {
    const Twin x = Random(1, n, type(), 3.0);
    const Twin y = Random(1, n);
    const Twin dy = Random(1, n);
    const Twin dx = Random(1, n);
    const Twin over_x = Random(1, n);
    Run([&](Kernels& k, const Side& side, Stream& stream) {
      k.GeluForward(side(x), side(y), stream);
      k.GeluBackward(side(dy), side(x), side(dx), stream);
      k.Convert(side(x), side(over_x), stream);
      k.GeluBackward(side(dy), side(over_x), side(over_x), stream);
      k.GeluBackward(side(dy), side(x), side(dy), stream);
    });
    ExpectNear(y, "y");
    ExpectNear(dx, "dx");
    ExpectSameBits({over_x.tested, dx.tested}, "over x");
    ExpectNear(dy, "dy");
  }
}

TEST_P(KernelsTest, ActivationsInTheTails) {
  for (const double tail : kTails) {
    const Twin x = Random(1, 3);
    const Twin one = Random(1, 3);
    for (int64_t i = 0; i < 3; ++i) {
      Set(x, i, tail);
      Set(one, i, 1.0);
    }
    const Twin gelu = Random(1, 3);
    const Twin dgelu = Random(1, 3);
    const Twin silu = Random(1, 3);
    const Twin dsilu = Random(1, 3);
    const Twin dup = Random(1, 3);
    Run([&](Kernels& k, const Side& side, Stream& stream) {
      k.GeluForward(side(x), side(gelu), stream);
      k.GeluBackward(side(one), side(x), side(dgelu), stream);
      k.SwiGluForward(side(x), side(one), side(silu), stream);
      k.SwiGluBackward(side(one), side(x), side(one), side(dsilu), side(dup), stream);
    });
    SCOPED_TRACE(tail);
    for (int64_t i = 0; i < 3; ++i) {
      for (const Twin& twin : {gelu, dgelu, silu, dsilu, dup}) {
        // Where the exact result is tiny the backend may flush it to zero.
        ASSERT_NEAR(ValueAt(twin.tested, i), ValueAt(twin.expected, i),
                    std::abs(ValueAt(twin.expected, i)) * 8e-3 + 1e-6);
      }
    }
  }
}

TEST_P(KernelsTest, SwiGlu) {
  for (const int64_t n : {0, 1, 5, 31, 33000}) {
    const Twin gate = Random(1, n, type(), 3.0);
    const Twin up = Random(1, n);
    const Twin y = Random(1, n);
    const Twin dy = Random(1, n);
    const Twin dgate = Random(1, n);
    const Twin dup = Random(1, n);
    Run([&](Kernels& k, const Side& side, Stream& stream) {
      k.SwiGluForward(side(gate), side(up), side(y), stream);
      k.SwiGluBackward(side(dy), side(gate), side(up), side(dgate), side(dup), stream);
      k.SwiGluBackward(side(dy), side(gate), side(up), side(gate), side(up), stream);
    });
    for (const Twin& twin : {y, dgate, dup, gate, up}) ExpectNear(twin, "swiglu");
  }
}

TEST_P(KernelsTest, RopeAndItsInverse) {
  struct Sizes {
    int64_t rows, sequence, heads, head_size;
  };
  for (const auto& [rows, sequence, heads, head_size] :
       {Sizes{0, 4, 1, 2}, Sizes{1, 1, 1, 2}, Sizes{10, 5, 3, 6}, Sizes{66, 33, 2, 64},
        Sizes{14, 7, 5, 34}}) {
    const Twin x = Random(rows, heads * head_size);
    const Twin original = Random(rows, heads * head_size);
    for (int64_t i = 0; i < original.tested.elements(); ++i) {
      Set(original, i, ValueAt(x.tested, i));
    }
    const auto rope = [&](bool inverse) {
      Run([&](Kernels& k, const Side& side, Stream& stream) {
        k.Rope(side(x), sequence, head_size, 10000.0, inverse, stream);
      });
    };
    rope(false);
    ExpectNear(x, "x");
    rope(true);
    ExpectNear({x.tested, original.expected}, "inverse", 2.0);
  }
}

TEST_P(KernelsTest, RopeIsExactAtFarPositions) {
  const Twin x = Random(100001, 4);
  Run([&](Kernels& k, const Side& side, Stream& stream) {
    k.Rope(side(x), 100001, 4, 500000.0, false, stream);
  });
  ExpectNear(x, "x");
}

TEST_P(KernelsTest, RopeRefusesAnOddHeadSize) {
  const Twin x = Random(2, 3);
  kernels_->Rope(x.tested, 2, 3, 10000.0, false, *stream_);
  EXPECT_EQ(stream_->Synchronize().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(KernelsTest, ConvertRefusesIntegersAsNumbers) {
  const Twin x = Random(2, 3);
  const Twin ids = Ids(6, 3);
  kernels_->Convert(ids.tested, x.tested, *stream_);
  EXPECT_EQ(stream_->Synchronize().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace esteira

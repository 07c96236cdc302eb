#include "worker/model/paced_units.h"

#include <utility>

#include "common/plan/sizes.h"
#include "worker/model/layers.h"

namespace esteira {
namespace {

class SyntheticUnit : public UnitCompute {
 public:
  SyntheticUnit(const ModelSpec& model, const UnitSpec& unit, const SyntheticPace& pace,
                std::shared_ptr<Pacer> pacer)
      : model_(model), unit_(unit), pace_(pace), pacer_(std::move(pacer)) {}

  void Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const override {
    Pass(ForwardFlops, arguments, stream, [&] {
      if (arguments.y.data != nullptr) kernels.Zero(arguments.y, stream);
      if (unit_.kind == UnitKind::kHead && arguments.loss != nullptr) Count(arguments, stream);
    });
  }
  void BackwardInput(const UnitArguments& arguments, Kernels& kernels,
                     Stream& stream) const override {
    Pass(BackwardInputFlops, arguments, stream, [&] {
      if (arguments.dx.data != nullptr) kernels.Zero(arguments.dx, stream);
    });
  }
  void BackwardWeight(const UnitArguments& arguments, Kernels& kernels,
                      Stream& stream) const override {
    Pass(BackwardWeightFlops, arguments, stream, [&] { BeginSums(arguments, kernels, stream); });
  }

 private:
  using Flops = double (*)(const ModelSpec&, const UnitSpec&, int64_t batch, int64_t sequence);

  // What `issue` enqueues is part of the pass.
  template <typename Issue>
  void Pass(Flops flops, const UnitArguments& arguments, Stream& stream, const Issue& issue) const {
    if (arguments.batch == 0) return;
    stream.Enqueue([pacer = pacer_] {
      pacer->Begin();
      return absl::OkStatus();
    });
    issue();
    stream.Enqueue([pacer = pacer_, length = Length(flops, arguments)] {
      pacer->End(length);
      return absl::OkStatus();
    });
  }

  absl::Duration Length(Flops flops, const UnitArguments& arguments) const {
    if (pace_.pass_seconds > 0) {
      return absl::Seconds(unit_.kind == UnitKind::kBlock ? pace_.pass_seconds : 0);
    }
    return absl::Seconds(flops(model_, unit_, arguments.batch, arguments.sequence) / pace_.flops);
  }

  void BeginSums(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const {
    const auto own = GradientWindow::Of(arguments);
    const auto tied = GradientWindow::OfTied(arguments);
    if (own.sum == GradientSum::kBegins) {
      for (const ParameterSpec& parameter : unit_.parameters) {
        kernels.Zero(ParameterView{parameter.offset, 1, parameter.elements}.In(own), stream);
      }
    }
    if (tied.sum == GradientSum::kBegins) {
      kernels.Zero(ParameterView::TiedTable(model_).In(tied), stream);
    }
  }

  static void Count(const UnitArguments& arguments, Stream& stream) {
    stream.Enqueue([targets = arguments.targets, loss = arguments.loss] {
      for (int64_t n = 0; n < targets.rows; ++n) {
        if (targets.as<int32_t>()[n] != kIgnoredTarget) ++loss->valid_tokens;
      }
      return absl::OkStatus();
    });
  }

  const ModelSpec model_;
  const UnitSpec unit_;
  const SyntheticPace pace_;
  const std::shared_ptr<Pacer> pacer_;
};

class SlowedUnit : public UnitCompute {
 public:
  SlowedUnit(std::unique_ptr<UnitCompute> unit, double factor, std::shared_ptr<Pacer> pacer)
      : unit_(std::move(unit)), factor_(factor), pacer_(std::move(pacer)) {}

  void Forward(const UnitArguments& arguments, Kernels& kernels, Stream& stream) const override {
    Pass(stream, [&] { unit_->Forward(arguments, kernels, stream); });
  }
  void BackwardInput(const UnitArguments& arguments, Kernels& kernels,
                     Stream& stream) const override {
    Pass(stream, [&] { unit_->BackwardInput(arguments, kernels, stream); });
  }
  void BackwardWeight(const UnitArguments& arguments, Kernels& kernels,
                      Stream& stream) const override {
    Pass(stream, [&] { unit_->BackwardWeight(arguments, kernels, stream); });
  }

 private:
  template <typename Issue>
  void Pass(Stream& stream, const Issue& issue) const {
    stream.Enqueue([pacer = pacer_] {
      pacer->Begin();
      return absl::OkStatus();
    });
    issue();
    stream.Enqueue([pacer = pacer_, factor = factor_] {
      pacer->Stretch(factor);
      return absl::OkStatus();
    });
  }

  const std::unique_ptr<UnitCompute> unit_;
  const double factor_;
  const std::shared_ptr<Pacer> pacer_;
};

}  // namespace

UnitFactory SyntheticUnits(const SyntheticPace& pace, std::shared_ptr<Pacer> pacer) {
  return [pace, pacer = std::move(pacer)](const ModelSpec& model, const UnitSpec& unit, Precision) {
    return std::make_unique<SyntheticUnit>(model, unit, pace, pacer);
  };
}

UnitFactory SlowedUnits(UnitFactory factory, double factor, std::shared_ptr<Pacer> pacer) {
  return [factory = std::move(factory), factor, pacer = std::move(pacer)](
             const ModelSpec& model, const UnitSpec& unit, Precision precision) {
    return std::make_unique<SlowedUnit>(factory(model, unit, precision), factor, pacer);
  };
}

}  // namespace esteira

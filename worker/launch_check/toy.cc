#include "worker/launch_check/toy.h"

#include <algorithm>

#include "common/base/random.h"
#include "common/plan/validate.h"
#include "worker/kernels/kernels.h"

namespace esteira {
namespace {

constexpr int64_t kHeadSize = 8;
constexpr int64_t kTokens = 6;       // of a sample
constexpr int64_t kVocabulary = 67;  // a prime, so that no number of replicas divides a table
constexpr int64_t kInner = 20;

ModelSpec ToyModel(const ModelSpec& model) {
  ModelSpec toy = model;
  toy.num_kv_heads = std::min<int64_t>(model.num_kv_heads, 2);
  toy.num_heads = toy.num_kv_heads * std::min<int64_t>(model.num_heads / model.num_kv_heads, 2);
  toy.hidden_size = toy.num_heads * kHeadSize;
  toy.intermediate_size = kInner;
  toy.vocab_size = kVocabulary;
  toy.max_sequence_length = kTokens;
  return toy;
}

// Numbers at which a fault shows: the clip is at work, decay too, and an update follows the
// gradient smoothly instead of by its sign.
JobSpec ToyJobOf(const JobSpec& job, const ModelSpec& model) {
  JobSpec toy = job;
  toy.model = model;
  toy.sequence_length = kTokens;
  toy.steps = 8;
  toy.gradient_clip_norm = 0.5;
  toy.adamw = {.learning_rate = 0.1, .epsilon = 0.1, .weight_decay = 0.1};
  toy.schedule = {.warmup_steps = 0, .decay = Decay::kConstant};
  return toy;
}

int ReplicasToRun(const Layout& layout, int most_ranks) {
  return std::min(layout.replicas, std::max(2, most_ranks / layout.stages));
}

}  // namespace

Toy AtToyWidth(const JobSpec& job, const Plan& plan, Numerics numerics, Precision precision,
               int most_ranks) {
  Toy toy{ToyJobOf(job, ToyModel(plan.model)), plan};
  toy.plan.model = toy.job.model;
  toy.plan.precision = toy.job.precision = precision;
  Layout& layout = toy.plan.layout;
  layout.numerics = toy.job.numerics = numerics;
  if (numerics == Numerics::kExact) {
    layout.gradient_traffic = toy.job.gradient_traffic = GradientTraffic::kFull;
  }
  layout.sequence_length = kTokens;
  layout.replicas = ReplicasToRun(plan.layout, most_ranks);
  toy.replicas_left_out = plan.layout.replicas - layout.replicas;
  if (toy.replicas_left_out > 0) {
    const MicroBatch last =
        plan.layout.MicroBatchOf(layout.replicas - 1, plan.layout.num_micro_batches() - 1);
    layout.global_batch_size = last.first_sample + last.num_samples;
  }
  toy.job.global_batch_size = layout.global_batch_size;
  toy.plan.worker_of_rank.clear();
  toy.plan.prediction = {};
  SizeSlots(toy.plan);
  return toy;
}

SampleReader RandomSamples(const JobSpec& job) {
  const auto vocabulary = static_cast<uint64_t>(job.model.vocab_size);
  const int64_t tokens = job.sequence_length;
  return [seed = job.seed, vocabulary, tokens](
             int64_t first, int64_t count, std::span<int32_t> inputs, std::span<int32_t> targets) {
    constexpr uint64_t kStream = 0x746f79;
    for (int64_t n = 0; n < count; ++n) {
      const auto sample = static_cast<uint64_t>(first + n);
      const int64_t ignored = sample % 5 == 4 ? tokens : static_cast<int64_t>(sample % 3);
      const auto token = [&](int64_t t) {
        const uint64_t at = sample * static_cast<uint64_t>(tokens + 1) + static_cast<uint64_t>(t);
        return static_cast<int32_t>(RandomBits(seed, kStream, at) % vocabulary);
      };
      for (int64_t t = 0; t < tokens; ++t) {
        const auto at = static_cast<size_t>(n * tokens + t);
        inputs[at] = token(t);
        targets[at] = t < ignored ? kIgnoredTarget : token(t + 1);
      }
    }
    return absl::OkStatus();
  };
}

}  // namespace esteira

#include "worker/data/data_set.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace esteira {

absl::StatusOr<std::unique_ptr<DataSet>> DataSet::Open(const std::vector<DataSource>& sources,
                                                       const JobSpec& job, bool shuffle) {
  if (sources.empty()) return absl::InvalidArgumentError("data: no file is named");
  std::unique_ptr<DataSet> data(new DataSet);
  data->sequence_length_ = job.sequence_length;
  std::vector<int64_t> num_samples;
  std::vector<double> weights;
  for (const DataSource& source : sources) {
    if (!std::isfinite(source.weight) || source.weight <= 0) {
      return absl::InvalidArgumentError(absl::StrCat("data file ", source.path, ": weight ",
                                                     source.weight, " is not a positive number"));
    }
    ASSIGN_OR_RETURN(
        std::unique_ptr<TokenSource> opened,
        OpenTokenSource(source.path, job.tokenizer, job.sequence_length, job.model.vocab_size));
    num_samples.push_back(opened->num_samples());
    weights.push_back(source.weight);
    data->sources_.push_back(std::move(opened));
  }
  if (shuffle)
    data->sampler_ = std::make_unique<Sampler>(job.seed, std::move(num_samples), weights);
  return data;
}

absl::Status DataSet::Read(int64_t first, int64_t count, std::span<int32_t> inputs,
                           std::span<int32_t> targets) const {
  const auto length = static_cast<size_t>(sequence_length_);
  CHECK(inputs.size() == static_cast<size_t>(count) * length && targets.size() == inputs.size());
  for (int64_t i = 0; i < count; ++i) {
    const SampleId id = At(first + i);
    const size_t row = static_cast<size_t>(i) * length;
    RETURN_IF_ERROR(sources_[static_cast<size_t>(id.source)]->Read(
        id.sample, inputs.subspan(row, length), targets.subspan(row, length)));
  }
  return absl::OkStatus();
}

int64_t DataSet::num_samples() const {
  int64_t total = 0;
  for (const auto& source : sources_) total += source->num_samples();
  return total;
}

SampleId DataSet::At(int64_t global_index) const {
  if (sampler_ != nullptr) return sampler_->At(global_index);
  int64_t index = global_index % num_samples();
  int source = 0;
  while (index >= sources_[static_cast<size_t>(source)]->num_samples()) {
    index -= sources_[static_cast<size_t>(source)]->num_samples();
    ++source;
  }
  return {source, index};
}

int64_t DataSet::NumberOf(const SampleId& id) const {
  int64_t number = id.sample;
  for (int source = 0; source < id.source; ++source) {
    number += sources_[static_cast<size_t>(source)]->num_samples();
  }
  return number;
}

}  // namespace esteira

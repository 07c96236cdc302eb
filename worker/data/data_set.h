// Token streams and the order of samples. A sample is `sequence_length + 1` consecutive tokens: inputs and, shifted by
// one, targets. Which sample comes when is a pure function of (seed, global sample index).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"

namespace esteira {

// One source of samples. Immutable, thread-safe.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t num_samples() const = 0;
  // Fills both spans (sequence_length each) with inputs and targets of a sample; -100 marks a target that does not count.
  virtual void Read(int64_t sample, std::span<int32_t> inputs, std::span<int32_t> targets) const = 0;
};

// Opens by the file's kind: text with a tokenizer, or llm.c / nanoGPT .bin of uint16 tokens. Memory-mapped. Errors name the path, the
// first token outside the vocabulary and its place, and files too short for one sample.
absl::StatusOr<std::unique_ptr<TokenSource>> OpenTokenSource(const std::string& path, const std::string& tokenizer,
                                                             int64_t sequence_length, int64_t vocab_size);

struct SampleId {
  int source = 0;
  int64_t sample = 0;
  bool operator==(const SampleId&) const = default;
};

// The order of samples over weighted sources: each source is walked in a permutation of its own, a new one each pass;
// sources are mixed by weight in blocks. Never repeats a sample of a source before all of them were used.
class Sampler {
 public:
  Sampler(uint64_t seed, std::vector<int64_t> num_samples, std::vector<double> weights);
  SampleId At(int64_t global_index) const;

 private:
  uint64_t seed_;
  std::vector<int64_t> num_samples_;
  std::vector<double> cumulative_weights_;
};

// The training or validation data of a job. Thread-safe.
class DataSet {
 public:
  // `shuffle`: training. Otherwise samples come in file order (validation).
  static absl::StatusOr<std::unique_ptr<DataSet>> Open(const std::vector<DataSource>& sources, const JobSpec& job,
                                                       bool shuffle);
  // Samples [first, first + count) of the run into [count, sequence_length] matrices.
  void Read(int64_t first, int64_t count, std::span<int32_t> inputs, std::span<int32_t> targets) const;
  int64_t num_samples() const;  // over all sources, one pass
  SampleId At(int64_t global_index) const;

 private:
  DataSet() = default;
  std::vector<std::unique_ptr<TokenSource>> sources_;
  std::unique_ptr<Sampler> sampler_;  // absent: file order
  int64_t sequence_length_ = 0;
};

}  // namespace esteira

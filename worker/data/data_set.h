// Token streams and the order of samples. A sample is `sequence_length + 1` consecutive tokens:
// inputs and, shifted by one, targets; the last token of a sample is the first of the next. Which
// sample comes when is a pure function of (seed, global sample index).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/job_spec.h"

namespace esteira {

// One source of samples. Immutable, thread-safe.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t num_samples() const = 0;
  // Fills both spans (sequence_length each) with inputs and targets of a sample; -100 marks a
  // target that does not count. Fails when the file has changed since it was opened: shorter, or
  // with a token outside the vocabulary.
  virtual absl::Status Read(int64_t sample, std::span<int32_t> inputs,
                            std::span<int32_t> targets) const = 0;
};

// Opens by the file's kind: *.bin holds uint16 tokens (with llm.c's header, told by its magic, or
// bare as nanoGPT writes them), *.jsonl is one sample a line (jsonl_source.h), everything else is
// text for `tokenizer`. Keeps the file open and reads what is asked for. Checks every token against
// the vocabulary once. Errors name the path: NotFound, PermissionDenied; InvalidArgument for a
// directory, a broken header, the first token outside the vocabulary with its place, a file too
// short for one sample; Unimplemented for kinds that are not built in (Megatron's .bin with .idx,
// llm.c's uint32 tokens).
absl::StatusOr<std::unique_ptr<TokenSource>> OpenTokenSource(const std::string& path,
                                                             const std::string& tokenizer,
                                                             int64_t sequence_length,
                                                             int64_t vocab_size);

struct SampleId {
  int source = 0;
  int64_t sample = 0;
  bool operator==(const SampleId&) const = default;
};

// The order of samples over weighted sources: each source is walked in a permutation of its own, a
// new one each pass, and never repeats a sample before all of them were used. Sources are
// interleaved evenly: any first n samples hold each source's share by weight, rounded. Pure and
// without memory of what was drawn.
class Sampler {
 public:
  // Sizes and weights are positive, one each a source. Weights count relative to their sum, to 32
  // bits.
  Sampler(uint64_t seed, std::vector<int64_t> num_samples, const std::vector<double>& weights);
  SampleId At(int64_t global_index) const;

 private:
  uint64_t seed_;
  std::vector<int64_t> num_samples_;
  std::vector<uint64_t> weights_;  // integers, so that shares are exact
};

// The training or validation data of a job. Thread-safe.
class DataSet {
 public:
  // `shuffle`: training. Otherwise samples come in file order (validation). Both go on with a new
  // pass after the last sample, so a validation batch larger than the data counts some samples
  // twice.
  static absl::StatusOr<std::unique_ptr<DataSet>> Open(const std::vector<DataSource>& sources,
                                                       const JobSpec& job, bool shuffle);
  // Samples [first, first + count) of the run into [count, sequence_length] matrices.
  absl::Status Read(int64_t first, int64_t count, std::span<int32_t> inputs,
                    std::span<int32_t> targets) const;
  int64_t num_samples() const;  // over all sources, one pass
  SampleId At(int64_t global_index) const;
  // A sample's number when those of all sources are counted through, in the order of the sources.
  int64_t NumberOf(const SampleId& id) const;

 private:
  DataSet() = default;
  std::vector<std::unique_ptr<TokenSource>> sources_;
  std::unique_ptr<Sampler> sampler_;  // absent: file order
  int64_t sequence_length_ = 0;
};

}  // namespace esteira

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace esteira {

enum class Architecture { kGpt2, kLlama };
enum class Precision { kFp32, kBf16 };

// In what gradients are added up over micro-batches, replicas and the ends of a tied table: fp32,
// in an order that a layout may change, or 64-bit fixed point, in which no order changes a bit.
enum class Numerics { kFast, kExact };

// As what a replica's gradients travel to be added up over the replicas: as they are summed, or
// rounded to bf16.
enum class GradientTraffic { kFull, kBf16 };

// What is trained: every size of the model, with all defaults filled in. Knows no ranks and no
// devices.
struct ModelSpec {
  Architecture architecture = Architecture::kGpt2;
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t max_sequence_length = 0;
  bool tie_embeddings = false;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;

  int64_t head_size() const { return hidden_size / num_heads; }
  bool operator==(const ModelSpec&) const = default;
};

// Elements of a flat buffer that belong together: parameters start at multiples of it, shards end
// at multiples of it, and the gradient norm is formed from sums over it. So no layout can change
// what is summed together.
inline constexpr int64_t kBlockElements = 64;

enum class UnitKind {
  kEmbedding,
  kBlock,
  kHead,
  kTied,  // parameters only: one end of the table that a tied model's embedding and head share
};

enum class Init { kNormal, kZeros, kOnes };

// One logical parameter. `name` is Hugging Face's and survives any partition; `shape` is Hugging
// Face's too (GPT-2's linear weights are [in, out], Llama's [out, in]).
struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  Init init = Init::kZeros;
  double init_std = 0;
  bool decay = false;  // weight decay applies: matrices only
  int64_t offset =
      0;  // of the first element in the unit's flat buffer, a multiple of kBlockElements
  int64_t elements = 0;
};

// The smallest piece that a plan moves. Its parameters lie in one flat buffer of `flat_elements`
// (gaps are zero).
struct UnitSpec {
  UnitKind kind = UnitKind::kBlock;
  int64_t layer = -1;  // of a block
  std::vector<ParameterSpec> parameters;
  int64_t flat_elements = 0;       // a multiple of kBlockElements; 0: no parameters of its own
  int64_t parameter_elements = 0;  // without gaps
  std::vector<int>
      uses;  // units whose parameters its computation reads: itself and, tied, its end of the table
  int owner = -1;  // of a tied table's head end: the embedding end, which holds the optimizer state
};

// The units of a model in the order of computation: embedding, blocks, head; then, for a tied
// model, the two ends of the shared table (embedding end, head end). Both ends name the same
// parameter.
std::vector<UnitSpec> MakeUnits(const ModelSpec& model);

// Units that compute: the embedding, the blocks and the head. They have the lowest numbers.
inline int NumComputeUnits(const ModelSpec& model) {
  return static_cast<int>(model.num_layers) + 2;
}
inline int TiedEmbeddingEnd(const ModelSpec& model) { return NumComputeUnits(model); }
inline int TiedHeadEnd(const ModelSpec& model) { return NumComputeUnits(model) + 1; }

// Logical parameters (a tied table counts once).
int64_t CountParameters(const ModelSpec& model);

// Floating point operations of one token's forward and backward passes, attention included, without
// recomputation: 6 per matrix weight, plus 12 * layers * hidden * sequence / 2 for causal attention
// (Chowdhery et al., PaLM, app. B).
double ModelFlopsPerToken(const ModelSpec& model, int64_t sequence_length);

int64_t BytesOf(Precision precision);  // 4 or 2
const char* ArchitectureName(Architecture architecture);
const char* PrecisionName(Precision precision);
const char* NumericsName(Numerics numerics);
const char* GradientTrafficName(GradientTraffic traffic);
absl::StatusOr<Architecture> ParseArchitecture(const std::string& name);
absl::StatusOr<Precision> ParsePrecision(const std::string& name);
absl::StatusOr<Numerics> ParseNumerics(const std::string& name);
absl::StatusOr<GradientTraffic> ParseGradientTraffic(const std::string& name);

}  // namespace esteira

#include "tests/worker/model/fixture.h"

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

template <typename T>
std::vector<T> ReadNumbers(std::istream& line) {
  size_t count = 0;
  line >> count;
  std::vector<T> values(count);
  for (T& value : values) line >> value;
  CHECK(!line.fail());
  return values;
}

void ReadModel(std::istream& line, Fixture& fixture) {
  std::string key;
  std::string value;
  line >> key >> value;
  ModelSpec& model = fixture.model;
  const std::map<std::string, int64_t*> sizes = {
      {"num_layers", &model.num_layers},
      {"hidden_size", &model.hidden_size},
      {"num_heads", &model.num_heads},
      {"num_kv_heads", &model.num_kv_heads},
      {"intermediate_size", &model.intermediate_size},
      {"vocab_size", &model.vocab_size},
      {"max_sequence_length", &model.max_sequence_length},
      {"batch", &fixture.batch.batch},
      {"sequence", &fixture.batch.sequence},
  };
  if (key == "architecture") {
    model.architecture = *ParseArchitecture(value);
  } else if (key == "tie_embeddings") {
    model.tie_embeddings = value == "1";
  } else if (key == "norm_epsilon") {
    model.norm_epsilon = std::stod(value);
  } else if (key == "rope_theta") {
    model.rope_theta = std::stod(value);
  } else {
    *sizes.at(key) = std::stoll(value);
  }
}

void ReadLine(const std::string& text, Fixture& fixture) {
  std::istringstream line(text);
  std::string kind;
  line >> kind;
  if (kind == "model") {
    ReadModel(line, fixture);
  } else if (kind == "tokens") {
    fixture.batch.tokens = ReadNumbers<int32_t>(line);
  } else if (kind == "targets") {
    fixture.batch.targets = ReadNumbers<int32_t>(line);
  } else if (kind == "loss") {
    line >> fixture.loss;
  } else if (kind == "valid") {
    line >> fixture.valid_tokens;
  } else if (kind == "logits") {
    fixture.logits = ReadNumbers<float>(line);
  } else {
    CHECK(kind == "gradient");
    std::string name;
    line >> name;
    fixture.gradients[name] = ReadNumbers<float>(line);
  }
}

// In [0, 1): FNV-1a of the name, then MurmurHash3's finaliser, as the script has it.
double Uniform(const std::string& name, int64_t index) {
  uint32_t seed = 0x811c9dc5;
  for (char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 0x01000193;
  uint32_t x = seed + static_cast<uint32_t>(index) * 2654435761U;
  x ^= x >> 16;
  x *= 0x85ebca6b;
  x ^= x >> 13;
  x *= 0xc2b2ae35;
  x ^= x >> 16;
  return (x >> 8) / 16777216.0;
}

}  // namespace

Fixture ReadFixture(const std::string& name) {
  std::ifstream file(ESTEIRA_SOURCE_DIR "/tests/worker/model/fixtures/" + name + ".txt");
  CHECK(file.is_open());
  Fixture fixture;
  for (std::string line; std::getline(file, line);) ReadLine(line, fixture);
  CHECK(!fixture.gradients.empty());
  return fixture;
}

float FixtureWeight(const std::string& name, int64_t index) {
  const bool norm = absl::EndsWith(name, ".weight") &&
                    (absl::StrContains(name, "ln_") || absl::StrContains(name, "norm"));
  return static_cast<float>((norm ? 1.0 : 0.0) + (Uniform(name, index) - 0.5) * 0.5);
}

}  // namespace esteira

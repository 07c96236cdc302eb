// Numbers from PyTorch and transformers: see make_fixtures.py, which writes the files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/plan/model_spec.h"
#include "tests/worker/model/small_model.h"

namespace esteira {

struct Fixture {
  ModelSpec model;
  TestBatch batch;
  double loss = 0;
  int64_t valid_tokens = 0;
  std::vector<float> logits;
  std::map<std::string, std::vector<float>> gradients;  // by parameter
};

// `name`: "gpt2_tied", ...
Fixture ReadFixture(const std::string& name);

// The weights that the script used.
float FixtureWeight(const std::string& name, int64_t index);

}  // namespace esteira

#pragma once

#include <cstdint>
#include <span>

namespace esteira {

// A token drawn from softmax(logits / temperature) by inverting its distribution at `uniform` in
// [0, 1). Temperature 0 takes the largest logit, the lowest token among equals. Pure. `logits` is
// not empty.
int32_t SampleToken(std::span<const float> logits, double temperature, double uniform);

}  // namespace esteira

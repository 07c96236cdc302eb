#pragma once

namespace esteira {

// What a worker's device achieves, measured or given. 0: not known.
struct ComputeRates {
  double flops_fp32 = 0;  // a matrix product of a transformer's usual shape, operations a second
  double flops_bf16 = 0;
  double memory_bytes_per_second = 0;
  double pass_seconds = 0;  // synthetic: each pass of a block takes so long, whatever its sizes
};

}  // namespace esteira

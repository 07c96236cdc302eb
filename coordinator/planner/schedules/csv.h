// Pipeline schedules of the user's own, in PyTorch's compute-only CSV: one row a rank (our stage),
// cells such as 2F0 (chunk 2, forward, micro-batch 0), 2B0 (full backward), 2I0 and 2W0 (backward
// for the input, for the weights), nothing where a rank idles, and (0F1;1B0)OVERLAP_F_B, which is
// its parts in their order. PyTorch's "stage" is our chunk. A schedule that is read can run to its
// end, and adds up gradients in the order of micro-batches. Pure: whoever has the file reads it.
#pragma once

#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "coordinator/planner/schedules/schedules.h"

namespace esteira {

// The first thing wrong with a text. Rows and columns count from 0; -1: all of the row, all of the
// file. `message` is a sentence that says what is wrong and what to do.
struct CsvFault {
  int row = -1;
  int column = -1;
  std::string cell;
  std::string message;
};

struct CsvSchedule {
  PipelineOps pipeline;
  int micro_batches = 0;
  int chunks_per_stage = 0;
};

std::variant<CsvSchedule, CsvFault> ReadCsvSchedule(absl::string_view text);

// For people: where and what, then the rows around the cell, aligned, with the cell underlined.
std::string MarkFault(absl::string_view text, const CsvFault& fault);

// A row a stage, without idle cells. ReadCsvSchedule of it gives the same pipeline.
std::string WriteCsvSchedule(const PipelineOps& pipeline);

}  // namespace esteira

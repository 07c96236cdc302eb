// Internal to csv.h: whether the cells of a file are a schedule that can run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/planner/schedules/csv.h"

namespace esteira {

// One operation and where it stands. `text` is the whole cell, of which an overlapped pair has two.
struct CsvCell {
  ChunkOp op;
  int row = 0;
  int column = 0;
  absl::string_view text;
};

using CsvRows = std::vector<std::vector<CsvCell>>;

CsvFault FaultAt(const CsvCell& cell, std::string message);
std::string CellText(const ChunkOp& op);  // "2F0"

struct CsvShape {
  std::vector<int> stage_of_chunk;
  int micro_batches = 0;
};

// The chunks of each row and the number of micro-batches. Every chunk is on one row, every row has
// as many chunks as the others, and no number is left out.
std::variant<CsvShape, CsvFault> ShapeOf(const CsvRows& rows);

// Each chunk does each micro-batch exactly once, and in an order that its own row allows.
std::optional<CsvFault> CheckPasses(const CsvRows& rows, const CsvShape& shape);

// No row waits for ever. `rows` have passed the checks above.
std::optional<CsvFault> CheckDeadlock(const CsvRows& rows, const CsvShape& shape);

}  // namespace esteira

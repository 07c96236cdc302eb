#include "coordinator/planner/schedules/csv.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/planner/schedules/csv_legal.h"

namespace esteira {
namespace {

constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr size_t kMaxShown = 40;
// More ranks or micro-batches than any plan has.
constexpr int kMaxNumber = 1 << 20;

// The lines without their ends; blank ones at the end of the file do not count.
std::vector<absl::string_view> Lines(absl::string_view text) {
  absl::ConsumePrefix(&text, kByteOrderMark);
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  while (!lines.empty() && absl::StripAsciiWhitespace(lines.back()).empty()) lines.pop_back();
  return lines;
}

absl::string_view Stripped(absl::string_view cell) {
  cell = absl::StripAsciiWhitespace(cell);
  if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') {
    cell = absl::StripAsciiWhitespace(cell.substr(1, cell.size() - 2));
  }
  return cell;
}

std::string Shown(absl::string_view cell) {
  std::string shown = absl::CHexEscape(cell.substr(0, kMaxShown));
  if (cell.size() > kMaxShown) shown += "...";
  return shown;
}

absl::string_view TakeDigits(absl::string_view& text) {
  size_t length = 0;
  while (length < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[length]))) {
    ++length;
  }
  const absl::string_view digits = text.substr(0, length);
  text.remove_prefix(length);
  return digits;
}

std::optional<Op> OpOf(absl::string_view letters) {
  for (Op op : {Op::kForward, Op::kBackward, Op::kBackwardInput, Op::kBackwardWeight}) {
    if (letters == OpName(op)) return op;
  }
  return std::nullopt;
}

bool IsCommunication(absl::string_view action) {
  for (absl::string_view known :
       {"SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"}) {
    if (action == known) return true;
  }
  return false;
}

// Turns one cell after the other into operations, up to the first that is none.
class CellReader {
 public:
  std::optional<CsvFault> Read(const CsvCell& cell, std::vector<CsvCell>& row) {
    absl::string_view text = cell.text;
    if (!absl::ConsumePrefix(&text, "(")) return ReadAction(text, cell, row);
    const size_t end = text.find(')');
    if (end == absl::string_view::npos || Stripped(text.substr(end + 1)) != "OVERLAP_F_B") {
      return NoAction(cell);
    }
    const std::vector<absl::string_view> parts = absl::StrSplit(text.substr(0, end), ';');
    for (absl::string_view part : parts) {
      if (std::optional<CsvFault> fault = ReadAction(Stripped(part), cell, row)) return fault;
    }
    return std::nullopt;
  }

 private:
  static CsvFault NoAction(const CsvCell& cell) {
    return FaultAt(cell,
                   absl::StrCat("\"", Shown(cell.text),
                                "\" is not an action; write the chunk, then F, B, I or W, then the "
                                "micro-batch, as in 2F0, or leave the cell empty"));
  }

  static std::optional<CsvFault> ReadAction(absl::string_view text, CsvCell cell,
                                            std::vector<CsvCell>& row) {
    const absl::string_view chunk = TakeDigits(text);
    const size_t letters = std::min(text.find_first_of("0123456789"), text.size());
    const absl::string_view action = text.substr(0, letters);
    text.remove_prefix(letters);
    const absl::string_view micro_batch = TakeDigits(text);
    if (!chunk.empty() && text.empty() && IsCommunication(action)) {
      return FaultAt(cell, absl::StrCat("\"", Shown(cell.text),
                                        "\" moves data, and Esteira places communication itself; "
                                        "export the schedule in its compute-only form"));
    }
    const std::optional<Op> op = OpOf(action);
    if (chunk.empty() || micro_batch.empty() || !text.empty() || !op.has_value()) {
      return NoAction(cell);
    }
    cell.op.op = *op;
    if (!absl::SimpleAtoi(chunk, &cell.op.chunk) || cell.op.chunk >= kMaxNumber ||
        !absl::SimpleAtoi(micro_batch, &cell.op.micro_batch) || cell.op.micro_batch >= kMaxNumber) {
      return FaultAt(cell, absl::StrCat("\"", Shown(cell.text),
                                        "\" has a number that is too large; chunks and "
                                        "micro-batches are numbered from 0 without holes, below ",
                                        kMaxNumber));
    }
    row.push_back(cell);
    return std::nullopt;
  }
};

std::variant<CsvRows, CsvFault> ReadRows(absl::string_view text) {
  CsvRows rows;
  CellReader reader;
  bool any = false;
  for (absl::string_view line : Lines(text)) {
    const int row = static_cast<int>(rows.size());
    rows.emplace_back();
    int column = 0;
    for (absl::string_view field : absl::StrSplit(line, ',')) {
      const CsvCell cell{.op = {}, .row = row, .column = column++, .text = Stripped(field)};
      if (cell.text.empty()) continue;
      if (std::optional<CsvFault> fault = reader.Read(cell, rows.back())) return *fault;
      any = true;
    }
  }
  if (any) return rows;
  return CsvFault{.row = -1,
                  .column = -1,
                  .cell = "",
                  .message = "the schedule is empty; write one row of actions for each stage"};
}

// A part of the file, cells left-aligned in their columns.
class Picture {
 public:
  Picture(absl::string_view text, const CsvFault& fault) : fault_(fault) {
    constexpr int kRowsAround = 2;
    constexpr int kColumnsAround = 4;
    const std::vector<absl::string_view> lines = Lines(text);
    const int last_row = std::min(static_cast<int>(lines.size()) - 1, fault.row + kRowsAround);
    first_row_ = std::max(0, fault.row - kRowsAround);
    first_column_ = std::max(0, fault.column - kColumnsAround);
    const int columns = 2 * kColumnsAround + 1;
    for (int row = first_row_; row <= last_row; ++row) {
      std::vector<std::string> cells;
      int column = 0;
      for (absl::string_view cell : absl::StrSplit(lines[static_cast<size_t>(row)], ',')) {
        if (column++ < first_column_) continue;
        if (static_cast<int>(cells.size()) == columns) break;
        cells.push_back(Shown(Stripped(cell)));
      }
      rows_.push_back(std::move(cells));
    }
  }

  std::string Draw() const {
    std::string out = Line("column ", ColumnNumbers());
    for (size_t i = 0; i < rows_.size(); ++i) {
      const int row = first_row_ + static_cast<int>(i);
      out += Line(absl::StrCat("row ", row), rows_[i]);
      if (row != fault_.row) continue;
      std::vector<std::string> marks(rows_[i].size());
      for (size_t c = 0; c < marks.size(); ++c) {
        const bool all = fault_.column < 0;
        if (!all && first_column_ + static_cast<int>(c) != fault_.column) continue;
        marks[c] = std::string(std::max(rows_[i][c].size(), size_t{1}), '^');
      }
      out += Line("", marks);
    }
    return out;
  }

 private:
  std::vector<std::string> ColumnNumbers() const {
    size_t count = 0;
    for (const std::vector<std::string>& row : rows_) count = std::max(count, row.size());
    std::vector<std::string> numbers;
    for (size_t c = 0; c < count; ++c) {
      numbers.push_back(absl::StrCat(first_column_ + static_cast<int>(c)));
    }
    return numbers;
  }

  size_t Width(size_t column) const {
    size_t width = 3;
    for (const std::vector<std::string>& row : rows_) {
      if (column < row.size()) width = std::max(width, row[column].size());
    }
    return width;
  }

  std::string Line(const std::string& label, const std::vector<std::string>& cells) const {
    constexpr size_t kLabelWidth = 10;
    std::string line = label;
    line.resize(std::max(line.size() + 1, kLabelWidth), ' ');
    size_t end = line.size();
    for (size_t c = 0; c < cells.size(); ++c) {
      line.resize(end, ' ');
      line += cells[c];
      end += Width(c) + 1;
    }
    return absl::StrCat(absl::StripTrailingAsciiWhitespace(line), "\n");
  }

  const CsvFault& fault_;
  int first_row_ = 0;
  int first_column_ = 0;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace

std::variant<CsvSchedule, CsvFault> ReadCsvSchedule(absl::string_view text) {
  std::variant<CsvRows, CsvFault> read = ReadRows(text);
  if (std::holds_alternative<CsvFault>(read)) return std::get<CsvFault>(read);
  const CsvRows& rows = std::get<CsvRows>(read);
  std::variant<CsvShape, CsvFault> shaped = ShapeOf(rows);
  if (std::holds_alternative<CsvFault>(shaped)) return std::get<CsvFault>(shaped);
  const CsvShape& shape = std::get<CsvShape>(shaped);
  if (std::optional<CsvFault> fault = CheckPasses(rows, shape)) return *std::move(fault);
  if (std::optional<CsvFault> fault = CheckDeadlock(rows, shape)) return *std::move(fault);
  CsvSchedule schedule;
  schedule.micro_batches = shape.micro_batches;
  schedule.chunks_per_stage = static_cast<int>(shape.stage_of_chunk.size() / rows.size());
  schedule.pipeline.stage_of_chunk = shape.stage_of_chunk;
  for (const std::vector<CsvCell>& row : rows) {
    std::vector<ChunkOp>& ops = schedule.pipeline.ops.emplace_back();
    for (const CsvCell& cell : row) ops.push_back(cell.op);
  }
  return schedule;
}

std::string MarkFault(absl::string_view text, const CsvFault& fault) {
  if (fault.row < 0) return absl::StrCat(fault.message, "\n");
  std::string out = absl::StrCat("row ", fault.row);
  if (fault.column >= 0) absl::StrAppend(&out, ", column ", fault.column);
  absl::StrAppend(&out, " (counted from 0): ", fault.message, "\n\n");
  return out + Picture(text, fault).Draw();
}

std::string WriteCsvSchedule(const PipelineOps& pipeline) {
  std::string out;
  for (const std::vector<ChunkOp>& ops : pipeline.ops) {
    for (size_t i = 0; i < ops.size(); ++i) {
      absl::StrAppend(&out, i == 0 ? "" : ",", CellText(ops[i]));
    }
    out += "\n";
  }
  return out;
}

}  // namespace esteira

#include "coordinator/planner/schedules/csv_legal.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace esteira {
namespace {

using Pass = std::pair<int, int>;  // chunk, micro-batch

bool EndsInputGradient(Op op) { return op == Op::kBackward || op == Op::kBackwardInput; }
bool AddsWeightGradient(Op op) { return op == Op::kBackward || op == Op::kBackwardWeight; }

std::string Place(const CsvCell& cell) {
  return absl::StrCat("row ", cell.row, ", column ", cell.column);
}

std::string Text(Op op, const Pass& pass) { return CellText({op, pass.first, pass.second}); }

// A number that is missing below the largest one of `cells` by number, with the cell above the
// hole.
template <typename CellByNumber>
std::optional<CsvFault> FindHole(const CellByNumber& cells, const char* what, const char* advice) {
  int expected = 0;
  for (const auto& [number, cell] : cells) {
    if (number != expected) {
      return FaultAt(*cell,
                     absl::StrCat("\"", cell->text, "\" is of ", what, " ", number,
                                  ", and no cell is of ", what, " ", expected, "; ", advice));
    }
    ++expected;
  }
  return std::nullopt;
}

std::optional<CsvFault> CheckChunkCounts(const CsvRows& rows,
                                         const std::vector<int>& stage_of_chunk) {
  std::vector<int> chunks(rows.size());
  for (int stage : stage_of_chunk) ++chunks[static_cast<size_t>(stage)];
  for (size_t row = 0; row < rows.size(); ++row) {
    if (chunks[row] == chunks[0]) continue;
    return CsvFault{
        .row = static_cast<int>(row),
        .column = -1,
        .cell = "",
        .message = absl::StrCat("row ", row, " has ", chunks[row], " chunks, and row 0 has ",
                                chunks[0], "; give every row as many chunks as the others")};
  }
  return std::nullopt;
}

// What was seen of one (chunk, micro-batch).
struct Seen {
  const CsvCell* forward = nullptr;
  const CsvCell* backward = nullptr;
  const CsvCell* input = nullptr;
  const CsvCell* weight = nullptr;

  const CsvCell*& of(Op op) {
    switch (op) {
      case Op::kForward: return forward;
      case Op::kBackward: return backward;
      case Op::kBackwardInput: return input;
      default: return weight;
    }
  }
};

// Goes through the cells of one chunk's row in order.
class PassChecker {
 public:
  explicit PassChecker(const CsvShape& shape)
      : shape_(shape), last_weight_(shape.stage_of_chunk.size()) {}

  std::optional<CsvFault> Add(const CsvCell& cell) {
    const Pass pass{cell.op.chunk, cell.op.micro_batch};
    Seen& seen = seen_[pass];
    const std::string name = absl::StrCat("\"", CellText(cell.op), "\"");
    const Op op = cell.op.op;
    if (const CsvCell* first = seen.of(op)) {
      return FaultAt(cell, absl::StrCat(name, " stands in ", Place(*first),
                                        " already; remove one of the two"));
    }
    seen.of(op) = &cell;
    if (seen.backward != nullptr && (seen.input != nullptr || seen.weight != nullptr)) {
      return FaultAt(cell, absl::StrCat("micro-batch ", pass.second, " of chunk ", pass.first,
                                        " has both a full backward pass (B) and a split one (I, "
                                        "W); keep B alone, or I and W (older PyTorch writes B "
                                        "where it means I)"));
    }
    if (op != Op::kForward && seen.forward == nullptr) {
      return FaultAt(cell, absl::StrCat(name, " comes before its forward pass; move ",
                                        Text(Op::kForward, pass), " before it"));
    }
    if (op == Op::kBackwardWeight && seen.input == nullptr) {
      return FaultAt(cell,
                     absl::StrCat(name, " comes before the backward pass for the input; move ",
                                  Text(Op::kBackwardInput, pass), " before it"));
    }
    return AddsWeightGradient(op) ? CheckOrder(cell) : std::nullopt;
  }

  // After all cells: the first pass that is missing.
  std::optional<CsvFault> CheckComplete() {
    for (int chunk = 0; chunk < static_cast<int>(shape_.stage_of_chunk.size()); ++chunk) {
      for (int micro_batch = 0; micro_batch < shape_.micro_batches; ++micro_batch) {
        const Pass pass{chunk, micro_batch};
        const auto found = seen_.find(pass);
        if (found == seen_.end()) return Missing(Op::kForward, pass, nullptr);
        const Seen& seen = found->second;  // what comes before a pass has been found before it
        if (seen.backward != nullptr || seen.weight != nullptr) continue;
        const bool split = seen.input != nullptr;
        return Missing(split ? Op::kBackwardWeight : Op::kBackward, pass,
                       split ? seen.input : seen.forward);
      }
    }
    return std::nullopt;
  }

 private:
  std::optional<CsvFault> CheckOrder(const CsvCell& cell) {
    const CsvCell*& last = last_weight_[static_cast<size_t>(cell.op.chunk)];
    if (last != nullptr && last->op.micro_batch > cell.op.micro_batch) {
      return FaultAt(cell,
                     absl::StrCat("\"", CellText(cell.op), "\" comes after ", CellText(last->op),
                                  "; gradients of a chunk are added up in the order of "
                                  "micro-batches, so that a schedule changes no number: put the B "
                                  "and W passes of a chunk in ascending order"));
    }
    last = &cell;
    return std::nullopt;
  }

  CsvFault Missing(Op op, const Pass& pass, const CsvCell* after) const {
    const bool whole = op == Op::kBackward;
    std::string message = absl::StrCat("the ",
                                       op == Op::kForward ? "forward"
                                       : whole            ? "backward"
                                                          : "weights' backward",
                                       " pass of micro-batch ", pass.second, " on chunk ",
                                       pass.first, " is missing; add ", Text(op, pass));
    if (whole)
      absl::StrAppend(&message, ", or ", Text(Op::kBackwardInput, pass), " and ",
                      Text(Op::kBackwardWeight, pass));
    if (after != nullptr) return FaultAt(*after, std::move(message));
    return {.row = shape_.stage_of_chunk[static_cast<size_t>(pass.first)],
            .column = -1,
            .cell = "",
            .message = std::move(message)};
  }

  const CsvShape& shape_;
  absl::flat_hash_map<Pass, Seen> seen_;
  std::vector<const CsvCell*> last_weight_;  // by chunk
};

// The rows as queues. A cell starts when what it waits for on other rows has ended.
class QueueRun {
 public:
  QueueRun(const CsvRows& rows, const CsvShape& shape)
      : rows_(rows),
        shape_(shape),
        heads_(rows.size()),
        forward_done_(NumPasses()),
        input_done_(NumPasses()) {}

  std::optional<CsvFault> Run() {
    std::vector<int> woken;
    for (int row = static_cast<int>(rows_.size()) - 1; row >= 0; --row) woken.push_back(row);
    while (!woken.empty()) {
      const int row = woken.back();
      woken.pop_back();
      Advance(row, woken);
    }
    const CsvCell* stuck = nullptr;
    for (int row = 0; row < static_cast<int>(rows_.size()); ++row) {
      const CsvCell* head = Head(row);
      if (head == nullptr) continue;
      if (stuck == nullptr || head->column < stuck->column) stuck = head;
    }
    if (stuck == nullptr) return std::nullopt;
    return FaultAt(*stuck, Explain(*stuck));
  }

 private:
  size_t NumPasses() const {
    return shape_.stage_of_chunk.size() * static_cast<size_t>(shape_.micro_batches);
  }
  size_t Index(const ChunkOp& op) const {
    return static_cast<size_t>(op.chunk) * static_cast<size_t>(shape_.micro_batches) +
           static_cast<size_t>(op.micro_batch);
  }
  int RowOf(int chunk) const { return shape_.stage_of_chunk[static_cast<size_t>(chunk)]; }
  const CsvCell* Head(int row) const {
    const auto r = static_cast<size_t>(row);
    return heads_[r] < rows_[r].size() ? &rows_[r][heads_[r]] : nullptr;
  }

  // What `op` needs of the chunk before or after, if anything.
  std::optional<ChunkOp> Needed(const ChunkOp& op) const {
    const int last = static_cast<int>(shape_.stage_of_chunk.size()) - 1;
    if (op.op == Op::kForward && op.chunk > 0) {
      return ChunkOp{Op::kForward, op.chunk - 1, op.micro_batch};
    }
    if (EndsInputGradient(op.op) && op.chunk < last) {
      return ChunkOp{Op::kBackwardInput, op.chunk + 1, op.micro_batch};
    }
    return std::nullopt;
  }

  bool Done(const ChunkOp& op) const {
    return op.op == Op::kForward ? forward_done_[Index(op)] : input_done_[Index(op)];
  }

  void Advance(int row, std::vector<int>& woken) {
    while (const CsvCell* head = Head(row)) {
      const ChunkOp& op = head->op;
      const std::optional<ChunkOp> needed = Needed(op);
      if (needed.has_value() && !Done(*needed)) return;
      ++heads_[static_cast<size_t>(row)];
      const int last = static_cast<int>(shape_.stage_of_chunk.size()) - 1;
      if (op.op == Op::kForward) {
        forward_done_[Index(op)] = true;
        if (op.chunk < last) woken.push_back(RowOf(op.chunk + 1));
      } else if (EndsInputGradient(op.op)) {
        input_done_[Index(op)] = true;
        if (op.chunk > 0) woken.push_back(RowOf(op.chunk - 1));
      }
    }
  }

  // The name in the file of what `needed` stands for.
  std::string NameInFile(const ChunkOp& needed) const {
    for (const CsvCell& cell : rows_[static_cast<size_t>(RowOf(needed.chunk))]) {
      const bool same_pass =
          cell.op.chunk == needed.chunk && cell.op.micro_batch == needed.micro_batch;
      if (!same_pass) continue;
      if (cell.op.op == needed.op || (needed.op != Op::kForward && cell.op.op == Op::kBackward)) {
        return CellText(cell.op);
      }
    }
    return CellText(needed);
  }

  // Follows who waits for whom until a row comes again, which it must.
  std::string Explain(const CsvCell& first) const {
    constexpr int kMaxLinks = 6;
    std::string message = absl::StrCat("\"", CellText(first.op), "\" can never start: ");
    std::set<int> rows;
    const CsvCell* cell = &first;
    for (int link = 0; link < kMaxLinks && rows.insert(cell->row).second; ++link) {
      const ChunkOp needed = *Needed(cell->op);
      const CsvCell* blocker = Head(RowOf(needed.chunk));
      absl::StrAppend(&message, link == 0 ? "it" : absl::StrCat(", and ", CellText(cell->op)),
                      " waits for ", NameInFile(needed), ", which stands in row ", blocker->row,
                      " behind ", CellText(blocker->op));
      cell = blocker;
    }
    return absl::StrCat(message, "; move one of them so that the circle opens");
  }

  const CsvRows& rows_;
  const CsvShape& shape_;
  std::vector<size_t> heads_;
  std::vector<bool> forward_done_;
  std::vector<bool> input_done_;
};

}  // namespace

CsvFault FaultAt(const CsvCell& cell, std::string message) {
  return {.row = cell.row,
          .column = cell.column,
          .cell = std::string(cell.text),
          .message = std::move(message)};
}

std::string CellText(const ChunkOp& op) {
  return absl::StrCat(op.chunk, OpName(op.op), op.micro_batch);
}

std::variant<CsvShape, CsvFault> ShapeOf(const CsvRows& rows) {
  absl::flat_hash_map<int, const CsvCell*> first_of_chunk;
  std::vector<std::pair<int, const CsvCell*>> chunks;
  absl::flat_hash_map<int, const CsvCell*> first_of_micro_batch;
  for (const std::vector<CsvCell>& row : rows) {
    for (const CsvCell& cell : row) {
      const auto [found, added] = first_of_chunk.emplace(cell.op.chunk, &cell);
      if (added) chunks.emplace_back(cell.op.chunk, &cell);
      first_of_micro_batch.emplace(cell.op.micro_batch, &cell);
      if (found->second->row == cell.row) continue;
      return FaultAt(cell,
                     absl::StrCat("chunk ", cell.op.chunk, " stands in row ", found->second->row,
                                  " already (column ", found->second->column,
                                  "); keep all cells of a chunk in one row"));
    }
  }
  std::sort(chunks.begin(), chunks.end());
  if (auto fault = FindHole(chunks, "chunk", "number the chunks from 0 without holes")) {
    return *std::move(fault);
  }
  std::vector<std::pair<int, const CsvCell*>> micro_batches(first_of_micro_batch.begin(),
                                                            first_of_micro_batch.end());
  std::sort(micro_batches.begin(), micro_batches.end());
  if (auto fault =
          FindHole(micro_batches, "micro-batch", "number the micro-batches from 0 without holes")) {
    return *std::move(fault);
  }
  CsvShape shape;
  for (const auto& [chunk, cell] : chunks) shape.stage_of_chunk.push_back(cell->row);
  shape.micro_batches = static_cast<int>(micro_batches.size());
  if (auto fault = CheckChunkCounts(rows, shape.stage_of_chunk)) return *std::move(fault);
  return shape;
}

std::optional<CsvFault> CheckPasses(const CsvRows& rows, const CsvShape& shape) {
  PassChecker checker(shape);
  for (const std::vector<CsvCell>& row : rows) {
    for (const CsvCell& cell : row) {
      if (std::optional<CsvFault> fault = checker.Add(cell)) return fault;
    }
  }
  return checker.CheckComplete();
}

std::optional<CsvFault> CheckDeadlock(const CsvRows& rows, const CsvShape& shape) {
  return QueueRun(rows, shape).Run();
}

}  // namespace esteira

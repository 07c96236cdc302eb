#include "client/plan_views/text_chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/plan_views/stage_memory.h"
#include "client/render.h"

namespace esteira {
namespace {

constexpr int kMinChartWidth = 20;

struct ActivityLook {
  char letter;
  int color;        // of 256, behind the letter
  int other_color;  // of a stage's second, fourth, ... chunk
  const char* name;
};
constexpr std::array<ActivityLook, kNumActivities> kLooks = {{
    {'F', 75, 69, "forward"},
    {'B', 114, 72, "backward"},
    {'I', 80, 37, "backward for inputs"},
    {'W', 221, 178, "backward for weights"},
    {'R', 183, 140, "recompute"},
    {'U', 250, 250, "update"},
}};
constexpr char kBubble = '.';
constexpr char kExposed = '~';
constexpr int kBubbleColor = 240;
constexpr int kExposedColor = 203;

const ActivityLook& LookOf(Activity activity) { return kLooks[static_cast<size_t>(activity)]; }

// Text with colours, which take no room.
class Painter {
 public:
  explicit Painter(bool color) : color_(color) {}

  void Plain(absl::string_view text) { Paint("", text); }
  void Front(int color, absl::string_view text) { Paint(absl::StrCat("38;5;", color), text); }
  void Behind(int color, absl::string_view text) {
    Paint(absl::StrCat("38;5;16;48;5;", color), text);
  }
  std::string Finish() {
    Paint("", "");
    return std::move(out_);
  }

 private:
  void Paint(std::string code, absl::string_view text) {
    if (color_ && code != code_) {
      absl::StrAppend(&out_, "\x1b[0", code.empty() ? "" : ";", code, "m");
      code_ = std::move(code);
    }
    absl::StrAppend(&out_, text);
  }

  bool color_;
  std::string code_;
  std::string out_;
};

char Letter(Activity activity, int chunk) {
  const char letter = LookOf(activity).letter;
  return chunk % 2 == 0 ? letter : static_cast<char>(letter - 'A' + 'a');
}

int ChunkOf(const StageRow& row, int pass) {
  return pass < 0 ? 0 : row.passes[static_cast<size_t>(pass)].chunk;
}

char Glyph(const StageRow& row, const Column& column) {
  switch (column.kind) {
    case Column::Kind::kBusy: return Letter(column.activity, ChunkOf(row, column.pass));
    case Column::Kind::kExposed: return kExposed;
    case Column::Kind::kBubble: break;
  }
  return kBubble;
}

// One character a column; the number of a micro-batch follows the first letter of its pass where
// there is room.
std::string RowText(const StageRow& row, const std::vector<Column>& columns) {
  std::string text;
  for (const Column& column : columns) text.push_back(Glyph(row, column));
  for (size_t begin = 0; begin < columns.size();) {
    size_t end = begin + 1;
    const auto same = [&](const Column& column) {
      return column.kind == Column::Kind::kBusy && column.pass == columns[begin].pass;
    };
    while (end < columns.size() && same(columns[end])) ++end;
    if (same(columns[begin]) && columns[begin].pass >= 0) {
      const std::string number =
          absl::StrCat(row.passes[static_cast<size_t>(columns[begin].pass)].micro_batch);
      if (number.size() < end - begin) text.replace(begin + 1, number.size(), number);
    }
    begin = end;
  }
  return text;
}

void PaintRow(const StageRow& row, const std::vector<Column>& columns, Painter& painter) {
  const std::string text = RowText(row, columns);
  for (size_t i = 0; i < columns.size(); ++i) {
    const absl::string_view letter = absl::string_view(text).substr(i, 1);
    switch (columns[i].kind) {
      case Column::Kind::kBusy: {
        const ActivityLook& look = LookOf(columns[i].activity);
        const bool other = ChunkOf(row, columns[i].pass) % 2 != 0;
        painter.Behind(other ? look.other_color : look.color, letter);
        break;
      }
      case Column::Kind::kExposed: painter.Front(kExposedColor, letter); break;
      case Column::Kind::kBubble: painter.Front(kBubbleColor, letter); break;
    }
  }
}

// What the drawn rows contain.
struct Occurring {
  std::array<bool, kNumActivities> activities{};
  bool exposed = false;
  bool other_chunk = false;
};

std::string Legend(const Occurring& occurring, bool color) {
  Painter painter(color);
  for (size_t a = 0; a < kNumActivities; ++a) {
    if (!occurring.activities[a]) continue;
    painter.Behind(kLooks[a].color, absl::string_view(&kLooks[a].letter, 1));
    painter.Plain(absl::StrCat(" ", kLooks[a].name, "  "));
  }
  painter.Front(kBubbleColor, absl::string_view(&kBubble, 1));
  painter.Plain(" bubble");
  if (occurring.exposed) {
    painter.Plain("  ");
    painter.Front(kExposedColor, absl::string_view(&kExposed, 1));
    painter.Plain(" exposed communication");
  }
  if (occurring.other_chunk) painter.Plain("\nsmall letters: every second chunk of a stage");
  return painter.Finish() + "\n";
}

std::string SampleNote(size_t shown, size_t all) {
  return shown == all ? "" : absl::StrCat(shown, " of ", all, " stages are shown\n");
}

// "0 .... 50 ms .... 100 ms" over `width` columns, with the middle where it fits.
std::string Axis(double seconds, int width) {
  const std::string middle = FormatSeconds(seconds / 2);
  const std::string end = FormatSeconds(seconds);
  std::string axis(static_cast<size_t>(width), ' ');
  const auto put = [&](size_t at, const std::string& text) { axis.replace(at, text.size(), text); };
  put(0, "0");
  if (middle.size() + end.size() + 4 < axis.size() / 2) put(axis.size() / 2, middle);
  if (end.size() + 2 < axis.size()) put(axis.size() - end.size(), end);
  return axis;
}

int DigitsOf(int number) { return static_cast<int>(absl::StrCat(number).size()); }

}  // namespace

std::string TextChart(const StepChart& chart, const TextStyle& style) {
  constexpr int kFiguresWidth = 21;  // "  busy bubble exposed"
  if (chart.rows.empty()) return "";
  const int label_width = 7 + DigitsOf(chart.rows.back().stage);
  const int width = std::max(style.width - label_width - kFiguresWidth, kMinChartWidth);
  const std::vector<int> sample = Sample(static_cast<int>(chart.rows.size()), style.max_rows);
  std::string out = absl::StrCat(std::string(static_cast<size_t>(label_width), ' '),
                                 Axis(chart.seconds, width), "  busy bubble exposed\n");
  Occurring occurring;
  for (int index : sample) {
    const StageRow& row = chart.rows[static_cast<size_t>(index)];
    const std::vector<Column> columns = Rasterize(row, chart.seconds, width);
    for (const Column& column : columns) {
      if (column.kind == Column::Kind::kExposed) occurring.exposed = true;
      if (column.kind != Column::Kind::kBusy) continue;
      occurring.activities[static_cast<size_t>(column.activity)] = true;
      if (ChunkOf(row, column.pass) % 2 != 0) occurring.other_chunk = true;
    }
    Painter painter(style.color);
    painter.Plain(absl::StrFormat("stage %-*d ", label_width - 7, row.stage));
    PaintRow(row, columns, painter);
    painter.Plain(absl::StrFormat(" %4.0f%%  %4.0f%%   %4.0f%%\n", 100 * row.busy, 100 * row.bubble,
                                  100 * row.exposed_communication));
    out += painter.Finish();
  }
  return absl::StrCat(out, SampleNote(sample.size(), chart.rows.size()),
                      Legend(occurring, style.color));
}

namespace {

struct MemoryLook {
  char glyph;
  int color;
};
constexpr std::array<MemoryLook, kNumMemoryParts> kMemoryLooks = {
    {{'P', 75}, {'G', 114}, {'O', 221}, {'S', 183}, {'w', 250}}};
constexpr char kBudget = '|';

// The bar of one rank, `width` columns for `scale` bytes. A part is as long as its share, and parts
// end where the running sum does, so that the whole bar has the right length.
void PaintBar(const StageMemory& memory, int64_t scale, int width, Painter& painter) {
  const auto column_of = [&](int64_t bytes) {
    return static_cast<int>(
        std::lround(static_cast<double>(bytes) / static_cast<double>(scale) * width));
  };
  const int budget = memory.budget > 0 ? std::min(column_of(memory.budget), width - 1) : -1;
  int64_t sum = 0;
  int column = 0;
  for (size_t part = 0; part < kNumMemoryParts; ++part) {
    sum += memory.parts[part];
    const int end = std::min(column_of(sum), width);
    for (; column < end; ++column) {
      const char glyph = column == budget ? kBudget : kMemoryLooks[part].glyph;
      painter.Behind(kMemoryLooks[part].color, absl::string_view(&glyph, 1));
    }
  }
  for (; column < width; ++column) {
    if (column == budget) {
      painter.Front(kExposedColor, absl::string_view(&kBudget, 1));
    } else {
      painter.Plain(" ");
    }
  }
}

std::string MemoryLegend(bool color, bool budget) {
  Painter painter(color);
  for (size_t part = 0; part < kNumMemoryParts; ++part) {
    painter.Behind(kMemoryLooks[part].color, absl::string_view(&kMemoryLooks[part].glyph, 1));
    painter.Plain(absl::StrCat(" ", MemoryPartName(part), part + 1 < kNumMemoryParts ? "  " : ""));
  }
  if (budget) painter.Plain("  | the worker's memory");
  return painter.Finish() + "\n";
}

}  // namespace

std::string MemoryBars(const Plan& plan, const std::vector<int64_t>& budgets,
                       const TextStyle& style) {
  const std::vector<StageMemory> stages = MemoryByStage(plan, budgets);
  if (stages.empty()) return "";
  const int64_t scale = MemoryScale(stages);
  bool any_budget = false;
  std::vector<std::string> figures;
  size_t figures_width = 0;
  for (const StageMemory& memory : stages) {
    std::string figure = FormatBytes(memory.total());
    if (memory.budget > 0) absl::StrAppend(&figure, " of ", FormatBytes(memory.budget));
    any_budget = any_budget || memory.budget > 0;
    figures_width = std::max(figures_width, figure.size());
    figures.push_back(std::move(figure));
  }
  const int label_width = 7 + DigitsOf(stages.back().stage);
  const int width =
      std::max(style.width - label_width - static_cast<int>(figures_width) - 2, kMinChartWidth);
  std::string out;
  const std::vector<int> sample = Sample(static_cast<int>(stages.size()), style.max_rows);
  for (int index : sample) {
    const StageMemory& memory = stages[static_cast<size_t>(index)];
    Painter painter(style.color);
    painter.Plain(absl::StrFormat("stage %-*d ", label_width - 7, memory.stage));
    PaintBar(memory, scale, width, painter);
    painter.Plain(absl::StrCat("  ", figures[static_cast<size_t>(index)], "\n"));
    out += painter.Finish();
  }
  return absl::StrCat(out, SampleNote(sample.size(), stages.size()),
                      MemoryLegend(style.color, any_budget));
}

}  // namespace esteira

#include "client/plan_views/svg_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/plan_views/stage_memory.h"
#include "client/plan_views/svg_style.h"
#include "client/render.h"

namespace esteira {
namespace {

using svg::kChartLeft;
using svg::kChartRight;
using svg::kChartTop;

constexpr double kCharWidth = 6.6;        // of 11 px digits, about
constexpr double kLegendCharWidth = 7.2;  // of 12 px text, at most

std::string Number(double value) {
  std::string text = absl::StrFormat("%.2f", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

// Which of a row's two lanes of communication, and in which colour.
struct TransferLook {
  int lane;
  const char* style;
  const char* name;
};
constexpr std::array<TransferLook, 5> kTransferLooks = {{
    {0, "ta", "activations"},
    {0, "tg", "gradients of activations"},
    {1, "sg", "GATHER"},
    {1, "sr", "REDUCE"},
    {1, "sn", "NORM, TIE"},
}};

size_t TransferLookOf(Op op) {
  switch (op) {
    case Op::kSendAct:
    case Op::kRecvAct: return 0;
    case Op::kSendGrad:
    case Op::kRecvGrad: return 1;
    case Op::kGather: return 2;
    case Op::kReduce: return 3;
    default: return 4;
  }
}

class SvgWriter {
 public:
  SvgWriter(const Plan& plan, const StepChart& chart, const std::vector<int64_t>& budgets)
      : chart_(chart),
        memory_(MemoryByStage(plan, budgets)),
        sample_(Sample(static_cast<int>(chart.rows.size()), svg::kMaxRows)) {
    constexpr double kTallest = 58;
    constexpr double kShortest = 14;
    constexpr double kUsualHeight = 900;
    const auto rows = static_cast<double>(std::max<size_t>(sample_.size(), 1));
    pitch_ = std::clamp(kUsualHeight / rows, kShortest, kTallest);
    box_ = 0.56 * pitch_;
    lane_ = 0.08 * pitch_;
    bottom_ = kChartTop + pitch_ * rows;
    size_t boxes = 0;
    for (int index : sample_) boxes += chart.rows[static_cast<size_t>(index)].pieces.size();
    rasterized_ = boxes > svg::kMaxBoxes;
  }

  std::string Write(const SvgTitle& title) {
    const double height = bottom_ + svg::kAxisHeight;
    absl::StrAppend(&out_, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ",
                    Number(svg::kWidth), " ", Number(height), "\" width=\"", Number(svg::kWidth),
                    "\" height=\"", Number(height), "\" role=\"img\">\n<title>",
                    XmlText(title.title), "</title>\n", svg::kStyle);
    Rect("card", 0, 0, svg::kWidth, height, 12);
    Text("title", svg::kMargin, 46, title.title);
    Text("sub", svg::kMargin, 70, title.subtitle);
    Grid();
    for (size_t i = 0; i < sample_.size(); ++i) {
      Row(chart_.rows[static_cast<size_t>(sample_[i])],
          kChartTop + pitch_ * static_cast<double>(i));
    }
    Legend();
    Memory();
    if (sample_.size() < chart_.rows.size()) {
      Text("small", svg::kMargin, bottom_ + 44,
           absl::StrCat(sample_.size(), " of ", chart_.rows.size(), " stages are shown"));
    }
    return out_ + "</svg>\n";
  }

 private:
  double X(double seconds) const {
    const double share = chart_.seconds > 0 ? seconds / chart_.seconds : 0;
    return kChartLeft + share * (kChartRight - kChartLeft);
  }

  void Rect(absl::string_view style, double x, double y, double width, double height,
            double radius = 0) {
    absl::StrAppend(&out_, "<rect class=\"", style, "\" x=\"", Number(x), "\" y=\"", Number(y),
                    "\" width=\"", Number(width), "\" height=\"", Number(height), "\"");
    if (radius > 0) absl::StrAppend(&out_, " rx=\"", Number(radius), "\"");
    out_ += "/>\n";
  }

  // Many boxes of one style.
  struct Box {
    double x, y, width, height;
  };
  void Boxes(absl::string_view style, const std::vector<Box>& boxes) {
    if (boxes.empty()) return;
    absl::StrAppend(&out_, "<path class=\"", style, "\" d=\"");
    for (const Box& box : boxes) {
      absl::StrAppend(&out_, "M", Number(box.x), " ", Number(box.y), "h", Number(box.width), "v",
                      Number(box.height), "h", Number(-box.width), "z");
    }
    out_ += "\"/>\n";
  }

  void Line(absl::string_view style, double x1, double y1, double x2, double y2) {
    absl::StrAppend(&out_, "<line class=\"", style, "\" x1=\"", Number(x1), "\" y1=\"", Number(y1),
                    "\" x2=\"", Number(x2), "\" y2=\"", Number(y2), "\"/>\n");
  }

  void Text(absl::string_view style, double x, double y, const std::string& text) {
    absl::StrAppend(&out_, "<text class=\"", style, "\" x=\"", Number(x), "\" y=\"", Number(y),
                    "\">", XmlText(text), "</text>\n");
  }

  // Lines at round times, 1, 2 or 5 times a power of ten apart.
  void Grid() {
    constexpr double kLines = 8;
    if (chart_.seconds <= 0) return;
    const double unit = chart_.seconds / kLines > 60 ? 60 : 1;  // whole minutes
    const double power =
        unit * std::pow(10, std::floor(std::log10(chart_.seconds / kLines / unit)));
    double step = power;
    for (double factor : {2.0, 5.0, 10.0}) {
      if (chart_.seconds / step > kLines) step = factor * power;
    }
    for (int tick = 0; tick * step <= chart_.seconds * (1 + 1e-9); ++tick) {
      const double x = X(tick * step);
      Line("grid", x, kChartTop - 6, x, bottom_ + 4);
      Text("small mid", x, bottom_ + 20, tick == 0 ? "0" : FormatSeconds(tick * step));
    }
  }

  void Row(const StageRow& row, double y) {
    const bool labelled = pitch_ >= 24;
    const double middle = y + box_ / 2 + 4;
    Text("label", svg::kMargin, middle, absl::StrCat("stage ", row.stage));
    Rect("lane", kChartLeft, y, kChartRight - kChartLeft, box_, 3);
    if (rasterized_) {
      PixelBoxes(row, y);
    } else {
      PieceBoxes(row, y, labelled);
    }
    for (const Idle& idle : row.idle) {
      const double width = X(idle.end) - X(idle.start);
      if (idle.reason != Idleness::kCommunication || width < 0.5) continue;
      exposed_ = true;
      absl::StrAppend(&out_, "<rect fill=\"url(#wait)\" x=\"", Number(X(idle.start)), "\" y=\"",
                      Number(y), "\" width=\"", Number(width), "\" height=\"", Number(box_),
                      "\"/>\n");
    }
    Transfers(row, y + box_ + 0.05 * pitch_);
    Text("small end", kChartRight + 48, middle, absl::StrFormat("%.0f %%", 100 * row.busy));
  }

  static std::string BoxStyle(Activity activity, int chunk) {
    const char* style = svg::kActivityLooks[static_cast<size_t>(activity)].style;
    return chunk % 4 == 0 ? style : absl::StrCat(style, " c", chunk % 4);
  }

  int ChunkOf(const StageRow& row, int pass) {
    return pass < 0 ? 0 : row.passes[static_cast<size_t>(pass)].chunk;
  }

  void PieceBoxes(const StageRow& row, double y, bool labelled) {
    for (const Piece& piece : row.pieces) {
      activities_[static_cast<size_t>(piece.activity)] = true;
      const double width = X(piece.end) - X(piece.start);
      const double gap = width > 4 ? 0.8 : 0;
      Rect(BoxStyle(piece.activity, ChunkOf(row, piece.pass)), X(piece.start), y,
           std::max(width - gap, 0.2), box_, width > 6 ? 2 : 0);
    }
    if (labelled) Labels(row, y);
  }

  // The number of a micro-batch stands in the longest box of its pass.
  void Labels(const StageRow& row, double y) {
    std::vector<const Piece*> longest(row.passes.size());
    for (const Piece& piece : row.pieces) {
      if (piece.pass < 0) continue;
      const auto pass = static_cast<size_t>(piece.pass);
      if (piece.activity != row.passes[pass].activity) continue;
      const Piece*& best = longest[pass];
      if (best == nullptr || piece.end - piece.start > best->end - best->start) best = &piece;
    }
    for (size_t pass = 0; pass < longest.size(); ++pass) {
      if (longest[pass] == nullptr) continue;
      const std::string number = absl::StrCat(row.passes[pass].micro_batch);
      const double width = X(longest[pass]->end) - X(longest[pass]->start);
      if (width < kCharWidth * static_cast<double>(number.size()) + 2) continue;
      Text("num", X(longest[pass]->start) + (width - 0.8) / 2, y + box_ / 2 + 4, number);
    }
  }

  // What fills most of each pixel, in runs.
  void PixelBoxes(const StageRow& row, double y) {
    const std::vector<Column> columns =
        Rasterize(row, chart_.seconds, static_cast<int>(kChartRight - kChartLeft));
    const auto style_of = [&](const Column& column) {
      if (column.kind != Column::Kind::kBusy) return std::string();
      activities_[static_cast<size_t>(column.activity)] = true;
      return BoxStyle(column.activity, ChunkOf(row, column.pass));
    };
    std::map<std::string, std::vector<Box>> boxes;  // by style
    for (size_t begin = 0; begin < columns.size();) {
      const std::string style = style_of(columns[begin]);
      size_t end = begin + 1;
      while (end < columns.size() && style_of(columns[end]) == style) ++end;
      if (!style.empty()) {
        boxes[style].push_back(
            {kChartLeft + static_cast<double>(begin), y, static_cast<double>(end - begin), box_});
      }
      begin = end;
    }
    for (const auto& [style, of_style] : boxes) Boxes(style, of_style);
  }

  // Bars of one colour that a viewer could not tell apart are one.
  void Transfers(const StageRow& row, double y) {
    const double least_gap = rasterized_ ? 2 : 0.4;
    for (size_t look = 0; look < kTransferLooks.size(); ++look) {
      const double top = y + kTransferLooks[look].lane * 1.3 * lane_;
      std::vector<Box> bars;
      for (const Interval& interval : Merged(row, look)) {
        transfers_[look] = true;
        const double begin = X(interval.start);
        if (bars.empty() || begin - (bars.back().x + bars.back().width) > least_gap) {
          bars.push_back({begin, top, 0.5, lane_});
        }
        bars.back().width = std::max(X(interval.end) - bars.back().x, 0.5);
      }
      Boxes(kTransferLooks[look].style, bars);
    }
  }

  static std::vector<Interval> Merged(const StageRow& row, size_t look) {
    std::vector<Interval> intervals;
    for (const Transfer& transfer : row.transfers) {
      if (TransferLookOf(transfer.op) == look) intervals.push_back({transfer.start, transfer.end});
    }
    std::sort(intervals.begin(), intervals.end(),
              [](const Interval& a, const Interval& b) { return a.start < b.start; });
    std::vector<Interval> merged;
    for (const Interval& interval : intervals) {
      if (!merged.empty() && interval.start <= merged.back().end) {
        merged.back().end = std::max(merged.back().end, interval.end);
      } else {
        merged.push_back(interval);
      }
    }
    return merged;
  }

  double LegendItem(const char* style, const std::string& name, double x, double y, double height) {
    Rect(style, x, y - height / 2 - 4, 14, height, 2);
    Text("small", x + 20, y, name);
    return x + 20 + kLegendCharWidth * static_cast<double>(name.size()) + 16;
  }

  void Legend() {
    double x = svg::kMargin;
    for (size_t a = 0; a < activities_.size(); ++a) {
      const svg::Look& look = svg::kActivityLooks[a];
      if (activities_[a]) x = LegendItem(look.style, look.name, x, 101, 12);
    }
    if (chart_.chunks_per_stage > 1) {
      Text("small", x, 101, "lighter: later chunks of a stage");
    }
    x = svg::kMargin;
    for (size_t look = 0; look < transfers_.size(); ++look) {
      if (transfers_[look]) {
        x = LegendItem(kTransferLooks[look].style, kTransferLooks[look].name, x, 123, 5);
      }
    }
    if (exposed_) {
      absl::StrAppend(&out_, "<rect fill=\"url(#wait)\" x=\"", Number(x),
                      "\" y=\"113\" width=\"14\" height=\"12\"/>\n");
      Text("small", x + 20, 123, "waits for communication");
    }
    Text("small end", kChartRight + 48, kChartTop - 14, "busy");
  }

  void Memory() {
    if (memory_.empty()) return;
    double x = svg::kMemoryLeft;
    double y = 101;
    const bool one_budget =
        std::all_of(memory_.begin(), memory_.end(), [&](const StageMemory& memory) {
          return memory.budget > 0 && memory.budget == memory_[0].budget;
        });
    Text("label", x, 74,
         one_budget ? absl::StrCat("memory of a rank, of ", FormatBytes(memory_[0].budget))
                    : "memory of a rank");
    for (size_t part = 0; part < kNumMemoryParts; ++part) {
      x = LegendItem(svg::kMemoryLooks[part].style, svg::kMemoryLooks[part].name, x, y, 10);
      if (part != 1) continue;
      x = svg::kMemoryLeft;
      y += 17;
    }
    const int64_t scale = MemoryScale(memory_);
    for (size_t i = 0; i < sample_.size(); ++i) {
      const auto stage = static_cast<size_t>(sample_[i]);
      if (stage >= memory_.size()) continue;
      MemoryBar(memory_[stage], scale, !one_budget, kChartTop + pitch_ * static_cast<double>(i));
    }
  }

  void MemoryBar(const StageMemory& memory, int64_t scale, bool name_budget, double top) {
    constexpr double kRoom = svg::kMemoryRight - svg::kMemoryLeft;
    const auto width_of = [&](int64_t bytes) {
      return std::min(static_cast<double>(bytes) / static_cast<double>(scale), 1.0) * kRoom;
    };
    Rect("lane", svg::kMemoryLeft, top, kRoom, box_, 3);
    int64_t sum = 0;
    for (size_t part = 0; part < kNumMemoryParts; ++part) {
      const double begin = width_of(sum);
      sum += memory.parts[part];
      const double width = width_of(sum) - begin;
      if (width >= 0.05) {
        Rect(svg::kMemoryLooks[part].style, svg::kMemoryLeft + begin, top, width, box_);
      }
    }
    if (memory.budget > 0 && memory.budget <= scale) {
      const double x = svg::kMemoryLeft + width_of(memory.budget);
      Line("budget", x, top - 3, x, top + box_ + 3);
    }
    Text("small", svg::kMemoryRight + 8, top + box_ / 2 + 4, FormatBytes(memory.total()));
    if (name_budget && memory.budget > 0 && pitch_ >= 40) {
      Text("small", svg::kMemoryLeft, top + box_ + 15,
           absl::StrCat("of ", FormatBytes(memory.budget)));
    }
  }

  const StepChart& chart_;
  std::vector<StageMemory> memory_;
  std::vector<int> sample_;
  double pitch_ = 0;
  double box_ = 0;
  double lane_ = 0;
  double bottom_ = 0;
  bool rasterized_ = false;
  // What was drawn, for the legend.
  std::array<bool, kNumActivities> activities_{};
  std::array<bool, kTransferLooks.size()> transfers_{};
  bool exposed_ = false;
  std::string out_;
};

}  // namespace

std::string XmlText(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;  // XML has no such characters
    }
  }
  return out;
}

std::string SvgChart(const SvgTitle& title, const Plan& plan, const StepChart& chart,
                     const std::vector<int64_t>& budgets) {
  return SvgWriter(plan, chart, budgets).Write(title);
}

}  // namespace esteira

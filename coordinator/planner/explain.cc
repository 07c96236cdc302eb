#include "coordinator/planner/explain.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace esteira {
namespace {

constexpr size_t kRunnersUp = 3;

std::string WindowText(int window) { return window == kAll ? "all" : absl::StrCat(window); }

// One value, or values with the stages that have them: "full on stages 0-2, none on 3".
std::string ByStage(const std::vector<std::string>& values) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < values.size();) {
    size_t end = begin + 1;
    while (end < values.size() && values[end] == values[begin]) ++end;
    if (begin == 0 && end == values.size()) return values.front();
    parts.push_back(absl::StrCat(values[begin], begin == 0 ? " on stages " : " on ", begin,
                                 end == begin + 1 ? "" : absl::StrCat("-", end - 1)));
    begin = end;
  }
  return absl::StrJoin(parts, " and ");
}

std::string PoliciesText(const Layout& layout) {
  std::vector<std::string> reduce, gather, recompute;
  for (const StagePolicy& policy : layout.policies) {
    reduce.push_back(WindowText(policy.reduce_every));
    gather.push_back(WindowText(policy.gather_for));
    recompute.push_back(policy.recompute ? "full" : "none");
  }
  std::string text;
  if (layout.zero >= 2) absl::StrAppend(&text, ", reduce_every ", ByStage(reduce));
  if (layout.zero == 3) absl::StrAppend(&text, ", gather_for ", ByStage(gather));
  const std::string recomputes = ByStage(recompute);
  if (recomputes != "none") absl::StrAppend(&text, ", recompute ", recomputes);
  return text;
}

std::string Figures(const Candidate& candidate) {
  const Prediction& prediction = candidate.prediction;
  return absl::StrFormat(
      "%.4g s a step, bubble %.1f %%, exposed communication %.1f %%, %s on the fullest rank",
      prediction.step_seconds, 100 * prediction.bubble_ratio,
      100 * prediction.exposed_communication_ratio, BytesText(PeakBytes(prediction)));
}

// What takes a rank's time, in seconds of the step.
struct Parts {
  double work, bubble, communication;
};
Parts PartsOf(const Prediction& prediction) {
  const double step = prediction.step_seconds;
  const double bubble = prediction.bubble_ratio * step;
  const double communication = prediction.exposed_communication_ratio * step;
  return {step - bubble - communication, bubble, communication};
}

std::string WhyLost(const Candidate& loser, const Candidate& winner) {
  if (!loser.fits) {
    return absl::StrCat("does not fit: rank ", loser.short_rank, " lacks ",
                        BytesText(loser.short_bytes));
  }
  const double slower = loser.prediction.step_seconds / winner.prediction.step_seconds - 1;
  if (slower < 0.005) {
    return "as fast, as far as the model can tell, and less simple";
  }
  const Parts a = PartsOf(loser.prediction), b = PartsOf(winner.prediction);
  const double work = a.work - b.work, bubble = a.bubble - b.bubble,
               communication = a.communication - b.communication;
  std::string cause =
      absl::StrFormat("computes %.3g s where the chosen one computes %.3g s", a.work, b.work);
  if (bubble >= work && bubble >= communication) {
    cause = absl::StrFormat("its ranks wait %.3g s for each other, not %.3g s", a.bubble, b.bubble);
  } else if (communication >= work) {
    cause = absl::StrFormat("%.3g s of its communication is not hidden, not %.3g s",
                            a.communication, b.communication);
  }
  return absl::StrFormat("%.1f %% slower: %s", 100 * slower, cause);
}

// What makes two layouts different choices.
auto ChoiceOf(const Candidate& candidate) {
  const Layout& layout = candidate.draft.layout;
  return std::make_tuple(layout.stages, layout.replicas, layout.chunks_per_stage, layout.zero,
                         layout.schedule, layout.micro_batch_size);
}

// A change of the request, and what it is called.
struct Change {
  const char* name;
  void (*apply)(LayoutRequest& request);
};
constexpr Change kChanges[] = {
    {"another zero", [](LayoutRequest& request) { request.zero.reset(); }},
    {"other windows",
     [](LayoutRequest& request) {
       request.reduce_every.reset();
       request.gather_for.reset();
     }},
    {"recomputation", [](LayoutRequest& request) { request.recompute = "auto"; }},
    {"another micro_batch_size", [](LayoutRequest& request) { request.micro_batch_size.reset(); }},
    {"another schedule",
     [](LayoutRequest& request) {
       request.schedule.reset();
       request.chunks_per_stage.reset();
     }},
    {"other stages and replicas",
     [](LayoutRequest& request) {
       request.stages.reset();
       request.replicas.reset();
     }},
};

// Each change alone, then one after the other, until something fits.
std::string SmallestChange(const JobSpec& job, const ClusterSpec& cluster) {
  const auto tried = [&](const JobSpec& changed, absl::string_view name) -> std::string {
    const absl::StatusOr<SearchResult> result = Search(changed, cluster);
    if (!result.ok() || result->fitting.empty()) return "";
    return absl::StrCat("with ", name, " it fits: ", LayoutText(result->fitting[0].draft.layout));
  };
  for (const Change& change : kChanges) {
    JobSpec changed = job;
    change.apply(changed.layout);
    if (changed.layout == job.layout) continue;
    std::string found = tried(changed, change.name);
    if (!found.empty()) return found;
  }
  JobSpec changed = job;
  for (const Change& change : kChanges) change.apply(changed.layout);
  if (!(changed.layout == job.layout)) {
    std::string found = tried(changed, "a layout of the planner's choice");
    if (!found.empty()) return found;
  }
  return "no layout on these workers fits; use more workers, more memory, a smaller model or a "
         "shorter sequence";
}

}  // namespace

std::string BytesText(int64_t bytes) {
  const char* const names[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < std::size(names)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " bytes") : absl::StrFormat("%.2f %s", value, names[unit]);
}

std::string LayoutText(const Layout& layout) {
  std::string text =
      absl::StrCat(layout.stages, " stages x ", layout.replicas, " replicas, ", layout.schedule);
  if (layout.chunks_per_stage > 1) {
    absl::StrAppend(&text, " with ", layout.chunks_per_stage, " chunks a stage");
  }
  absl::StrAppend(&text, ", ZeRO ", layout.zero, ", micro-batch size ", layout.micro_batch_size,
                  PoliciesText(layout));
  return text;
}

std::vector<std::string> Explain(const SearchResult& result) {
  std::vector<std::string> lines;
  if (result.fitting.empty()) return lines;
  const Candidate& chosen = result.fitting.front();
  lines.push_back(absl::StrCat(LayoutText(chosen.draft.layout), ": ", Figures(chosen)));
  std::vector<decltype(ChoiceOf(chosen))> seen = {ChoiceOf(chosen)};
  for (const std::vector<Candidate>* list : {&result.fitting, &result.too_large}) {
    for (const Candidate& other : *list) {
      if (lines.size() > kRunnersUp) return lines;
      if (std::find(seen.begin(), seen.end(), ChoiceOf(other)) != seen.end()) continue;
      seen.push_back(ChoiceOf(other));
      lines.push_back(absl::StrCat(LayoutText(other.draft.layout), ": ", WhyLost(other, chosen)));
    }
  }
  return lines;
}

absl::Status OutOfMemory(const JobSpec& job, const ClusterSpec& cluster,
                         const Candidate& smallest) {
  const int rank = smallest.short_rank;
  const int stage = smallest.draft.layout.StageOfRank(rank);
  const MemoryUse& use = smallest.prediction.memory[static_cast<size_t>(stage)];
  return absl::ResourceExhaustedError(
      absl::StrCat("memory: with ", LayoutText(smallest.draft.layout), ", rank ", rank, " (stage ",
                   stage, ") needs ", BytesText(use.total()), " (parameters ",
                   BytesText(use.parameters), ", gradients ", BytesText(use.gradients),
                   ", optimizer ", BytesText(use.optimizer), ", slots ", BytesText(use.slots),
                   ", workspace ", BytesText(use.workspace), "), ", BytesText(smallest.short_bytes),
                   " more than its worker has; ", SmallestChange(job, cluster)));
}

}  // namespace esteira

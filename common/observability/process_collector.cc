#include "common/observability/process_collector.h"

#include <prometheus/collectable.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace esteira {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily Family(const char* name, const char* help, MetricType type, double value) {
  prometheus::ClientMetric metric;
  if (type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return {name, help, type, {metric}};
}

std::string ReadAll(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The fields of /proc/self/stat after the command's name, which may itself hold spaces; index 0 is
// field 3 of proc(5).
std::vector<std::string> StatFields() {
  const std::string text = ReadAll("/proc/self/stat");
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return {};
  return absl::StrSplit(text.substr(end + 1), ' ', absl::SkipEmpty());
}

double Field(const std::vector<std::string>& fields, int proc_number) {
  const size_t index = static_cast<size_t>(proc_number - 3);
  double value = 0;
  if (index < fields.size() && absl::SimpleAtod(fields[index], &value)) return value;
  return 0;
}

double BootTimeSeconds() {
  const std::string stat = ReadAll("/proc/stat");
  for (absl::string_view line : absl::StrSplit(stat, '\n')) {
    double value = 0;
    if (absl::ConsumePrefix(&line, "btime ") && absl::SimpleAtod(line, &value)) return value;
  }
  return 0;
}

std::optional<double> OpenFiles() {
  std::error_code error;
  std::filesystem::directory_iterator it("/proc/self/fd", error);
  if (error) return std::nullopt;
  // The directory that is being listed is itself open.
  return static_cast<double>(std::distance(begin(it), end(it))) - 1;
}

class ProcessCollector : public prometheus::Collectable {
 public:
  std::vector<MetricFamily> Collect() const override {
    const std::vector<std::string> stat = StatFields();
    if (stat.empty()) return {};
    const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    const double page = static_cast<double>(sysconf(_SC_PAGESIZE));
    std::vector<MetricFamily> families = {
        Family("process_cpu_seconds_total", "User and system CPU time of the process",
               MetricType::Counter, (Field(stat, 14) + Field(stat, 15)) / ticks),
        Family("process_virtual_memory_bytes", "Virtual memory of the process", MetricType::Gauge,
               Field(stat, 23)),
        Family("process_resident_memory_bytes", "Resident memory of the process", MetricType::Gauge,
               Field(stat, 24) * page),
        Family("process_start_time_seconds", "Start of the process, since the Unix epoch",
               MetricType::Gauge, BootTimeSeconds() + Field(stat, 22) / ticks),
    };
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
      families.push_back(Family("process_max_fds", "Most files that the process may have open",
                                MetricType::Gauge, static_cast<double>(limit.rlim_cur)));
    }
    if (const std::optional<double> files = OpenFiles()) {
      families.push_back(
          Family("process_open_fds", "Files that the process has open", MetricType::Gauge, *files));
    }
    return families;
  }
};

}  // namespace

std::shared_ptr<prometheus::Collectable> MakeProcessCollector() {
  return std::make_shared<ProcessCollector>();
}

void ExportBuildInfo(prometheus::Registry& registry, absl::string_view component,
                     absl::string_view version) {
  prometheus::BuildGauge()
      .Name("esteira_build_info")
      .Help("1, labelled by the component and version of the process")
      .Register(registry)
      .Add({{"component", std::string(component)}, {"version", std::string(version)}})
      .Set(1);
}

}  // namespace esteira

#include "client/cluster_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/charconv.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file_system.h"
#include "common/base/nearest_name.h"
#include "common/plan/job_codec.h"

namespace esteira {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr int64_t kMaxWorkers = 65536;

struct Unit {
  const char* name;
  double factor;
};

// What a number may be of. A number without a unit is of the first one.
struct Quantity {
  const char* example;
  std::vector<Unit> units;
};

const Quantity& Bytes() {
  static const Quantity quantity = {"80 GiB",
                                    {{"B", 1},
                                     {"kB", 1e3},
                                     {"MB", 1e6},
                                     {"GB", 1e9},
                                     {"TB", 1e12},
                                     {"KiB", 1024.0},
                                     {"MiB", 1048576.0},
                                     {"GiB", 1073741824.0},
                                     {"TiB", 1099511627776.0}}};
  return quantity;
}
const Quantity& Bandwidth() {
  static const Quantity quantity = {"50 GB/s",
                                    {{"B/s", 1},
                                     {"kB/s", 1e3},
                                     {"MB/s", 1e6},
                                     {"GB/s", 1e9},
                                     {"TB/s", 1e12},
                                     {"GiB/s", 1073741824.0}}};
  return quantity;
}
const Quantity& Flops() {
  static const Quantity quantity = {
      "400 TFLOP/s",
      {{"FLOP/s", 1}, {"MFLOP/s", 1e6}, {"GFLOP/s", 1e9}, {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}}};
  return quantity;
}
const Quantity& Time() {
  static const Quantity quantity = {"20 us", {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}}};
  return quantity;
}

std::string Shown(const YAML::Node& node) {
  constexpr size_t kMaxShown = 60;
  if (node.IsScalar()) return absl::StrCat("\"", node.Scalar().substr(0, kMaxShown), "\"");
  return node.IsSequence() ? "a list" : node.IsMap() ? "a map of fields" : "nothing";
}

class ClusterReader {
 public:
  explicit ClusterReader(std::vector<Fault>& faults) : faults_(faults) {}

  ClusterSpec Read(const YAML::Node& root) {
    bool has_workers = false;
    ReadMap(root, "",
            {{"workers",
              [&](const YAML::Node& node, const std::string& path) {
                has_workers = true;
                ReadWorkers(node, path);
              }},
             {"links", [&](const YAML::Node& node, const std::string& path) {
                ReadMap(node, path,
                        {{"within_host", LinkReader(cluster_.within_host)},
                         {"between_hosts", LinkReader(cluster_.between_hosts)}});
              }}});
    if (!has_workers && faults_.empty()) {
      Add("workers", "is missing; list the workers, for example [{count: 8, memory: 80 GiB}]");
    }
    return std::move(cluster_);
  }

 private:
  using Read1 = std::function<void(const YAML::Node&, const std::string& path)>;
  struct Field {
    std::string name;
    Read1 read;
  };

  void Add(std::string field, std::string message) {
    faults_.push_back({field.empty() ? "cluster file" : std::move(field), std::move(message)});
  }

  void ReadMap(const YAML::Node& node, const std::string& path, const std::vector<Field>& fields) {
    if (!node.IsMap()) {
      Add(path, absl::StrCat("is ", Shown(node), ", not a map of fields"));
      return;
    }
    std::vector<std::string> known;
    known.reserve(fields.size());
    for (const Field& field : fields) known.push_back(field.name);
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : Shown(entry.first);
      const std::string field_path = path.empty() ? name : absl::StrCat(path, ".", name);
      const auto field = std::find(known.begin(), known.end(), name);
      if (field == known.end()) {
        Add(field_path,
            absl::StrCat("is not a field; did you mean ", NearestName(name, known), "?"));
      } else if (!seen.insert(name).second) {
        Add(field_path, absl::StrCat("is given twice (line ", entry.first.Mark().line + 1,
                                     "); keep one of them"));
      } else {
        fields[static_cast<size_t>(field - known.begin())].read(entry.second, field_path);
      }
    }
  }

  void ReadWorkers(const YAML::Node& node, const std::string& path) {
    if (!node.IsSequence() || node.size() == 0) {
      Add(path, absl::StrCat("is ", node.IsSequence() ? "an empty list" : Shown(node),
                             "; list at least one kind of worker, for example [{count: 8}]"));
      return;
    }
    for (size_t i = 0; i < node.size(); ++i) ReadWorker(node[i], absl::StrCat(path, "[", i, "]"));
  }

  // Workers of one kind, on hosts of their own.
  void ReadWorker(const YAML::Node& node, const std::string& path) {
    WorkerSpec worker;
    double count = 1;
    double per_host = 1;
    double memory = 0;
    double flops = 0;
    double flops_fp32 = 0;
    double flops_bf16 = 0;
    ReadMap(
        node, path,
        {{"count", CountReader(count)},
         {"kind",
          [&](const YAML::Node& kind, const std::string& at) { ReadKind(kind, at, worker); }},
         {"memory", NumberReader(Bytes(), /*zero=*/true, memory)},
         {"flops", NumberReader(Flops(), /*zero=*/false, flops)},
         {"flops_fp32", NumberReader(Flops(), /*zero=*/false, flops_fp32)},
         {"flops_bf16", NumberReader(Flops(), /*zero=*/false, flops_bf16)},
         {"memory_bandwidth", NumberReader(Bandwidth(), /*zero=*/false, worker.bytes_per_second)},
         {"pass_time", NumberReader(Time(), /*zero=*/true, worker.pass_seconds)},
         {"per_host", CountReader(per_host)}});
    worker.memory_bytes = static_cast<int64_t>(memory);
    for (const double rate : {flops, flops_fp32}) {
      if (rate > 0) worker.flops_fp32 = rate;
    }
    for (const double rate : {flops, flops_bf16}) {
      if (rate > 0) worker.flops_bf16 = rate;
    }
    const auto workers = static_cast<int64_t>(count);
    if (workers + cluster_.num_workers() > kMaxWorkers) {
      Add(path, absl::StrCat("makes more than ", kMaxWorkers, " workers; plan for fewer"));
      return;
    }
    for (int64_t i = 0; i < workers; ++i) {
      worker.host = next_host_ + static_cast<int>(i / static_cast<int64_t>(per_host));
      cluster_.workers.push_back(worker);
    }
    next_host_ = cluster_.workers.back().host + 1;
  }

  void ReadKind(const YAML::Node& node, const std::string& path, WorkerSpec& worker) {
    if (!node.IsScalar() || node.Scalar().empty()) {
      Add(path, absl::StrCat("is ", Shown(node), "; write one word, for example h100"));
      return;
    }
    worker.kind = node.Scalar();
  }

  Read1 CountReader(double& value) {
    return [this, &value](const YAML::Node& node, const std::string& path) {
      int64_t count = 0;
      if (!node.IsScalar() || !absl::SimpleAtoi(node.Scalar(), &count) || count < 1 ||
          count > kMaxWorkers) {
        Add(path, absl::StrCat("is ", Shown(node), ", not a whole number from 1 to ", kMaxWorkers));
        return;
      }
      value = static_cast<double>(count);
    };
  }

  Read1 LinkReader(LinkSpec& link) {
    return [this, &link](const YAML::Node& node, const std::string& path) {
      ReadMap(node, path,
              {{"latency", NumberReader(Time(), /*zero=*/true, link.latency_seconds)},
               {"bandwidth", NumberReader(Bandwidth(), /*zero=*/false, link.bytes_per_second)}});
    };
  }

  Read1 NumberReader(const Quantity& quantity, bool zero, double& value) {
    return [this, &quantity, zero, &value](const YAML::Node& node, const std::string& path) {
      ReadNumber(node, path, quantity, zero, value);
    };
  }

  void ReadNumber(const YAML::Node& node, const std::string& path, const Quantity& quantity,
                  bool zero, double& value) {
    constexpr double kLargest = 1e18;  // fits into int64_t
    double number = 0;
    if (!node.IsScalar() || !ParseNumber(node.Scalar(), quantity, number)) {
      const std::string units = absl::StrJoin(
          quantity.units, ", ", [](std::string* out, const Unit& unit) { *out += unit.name; });
      Add(path, absl::StrCat("is ", Shown(node), ", not a number with or without a unit (", units,
                             "); write for example ", quantity.example));
    } else if (number < 0 || (number == 0 && !zero) || number > kLargest) {
      Add(path, absl::StrCat("is ", Shown(node), "; it must be ",
                             zero ? "at least 0" : "more than 0", " and at most 1e18"));
    } else {
      value = number;
    }
  }

  static bool ParseNumber(absl::string_view text, const Quantity& quantity, double& number) {
    const char* end = text.data() + text.size();
    const absl::from_chars_result parsed = absl::from_chars(text.data(), end, number);
    if (parsed.ec != std::errc() || !std::isfinite(number)) return false;
    const absl::string_view unit = absl::StripAsciiWhitespace(
        absl::string_view(parsed.ptr, static_cast<size_t>(end - parsed.ptr)));
    if (unit.empty()) return true;
    for (const Unit& known : quantity.units) {
      if (unit != known.name) continue;
      number *= known.factor;
      return true;
    }
    return false;
  }

  std::vector<Fault>& faults_;
  ClusterSpec cluster_;
  int next_host_ = 0;
};

}  // namespace

absl::StatusOr<ClusterSpec> ParseClusterFile(absl::string_view text) {
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cluster file: has ", text.size(), " bytes, and at most ", kMaxFileBytes, " are read"));
  }
  std::vector<Fault> faults;
  ClusterSpec cluster;
  try {
    cluster = ClusterReader(faults).Read(YAML::Load(std::string(text)));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("cluster file: is not YAML: line ",
                                                   error.mark.line + 1, ", column ",
                                                   error.mark.column + 1, ": ", error.msg));
  }
  const absl::Status status = FaultsStatus(faults);
  if (!status.ok()) return status;
  return cluster;
}

absl::StatusOr<ClusterSpec> ReadClusterFile(const std::string& path) {
  RealFileSystem files;
  const absl::StatusOr<std::string> text = files.Read(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the cluster file: ", text.status().message()));
  }
  return ParseClusterFile(*text);
}

}  // namespace esteira

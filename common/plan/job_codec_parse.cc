#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/nearest_name.h"
#include "common/base/utf8.h"
#include "common/plan/job_codec.h"
#include "common/plan/job_codec_faults.h"
#include "esteira/v1/job.pb.h"

namespace esteira {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr const char* kQuotedTag = "!";  // yaml-cpp's tag of a scalar in quotes

// What --set fills in is no field of a file.
bool IsOfFile(const FieldDescriptor& field) {
  return field.number() != v1::JobSpec::kSetFieldsFieldNumber ||
         field.containing_type() != v1::JobSpec::descriptor();
}

std::string NearestField(const Descriptor& message, absl::string_view name) {
  std::vector<std::string> known;
  for (int i = 0; i < message.field_count(); ++i) {
    if (IsOfFile(*message.field(i))) known.push_back(message.field(i)->name());
  }
  return NearestName(name, known);
}

// The path of a field called `name` anywhere below `message`, or nothing.
std::string PathOf(const Descriptor& message, absl::string_view name, const std::string& prefix) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    if (!IsOfFile(field)) continue;
    std::string path = absl::StrCat(prefix, field.name());
    if (field.name() == name) return path;
    if (field.message_type() == nullptr || field.is_repeated()) continue;
    std::string below = PathOf(*field.message_type(), name, path + ".");
    if (!below.empty()) return below;
  }
  return "";
}

std::string Quoted(absl::string_view text) {
  constexpr size_t kMaxShown = 60;
  return absl::StrCat("\"", text.substr(0, kMaxShown), text.size() > kMaxShown ? "..." : "", "\"");
}

std::string Shown(const YAML::Node& node) {
  if (node.IsScalar()) return Quoted(node.Scalar());
  return node.IsSequence() ? "a list" : node.IsMap() ? "a map of fields" : "nothing";
}

// Copies a YAML tree into a message by reflection; what does not fit becomes a fault with its path.
// `part`: what is laid over another message, where a map without fields would change nothing.
class Reader {
 public:
  explicit Reader(std::vector<Fault>& faults, bool part = false) : faults_(faults), part_(part) {}

  void ReadMessage(const YAML::Node& node, const std::string& path, Message& message) {
    if (node.IsNull()) return;
    if (!node.IsMap()) {
      Add(path.empty() ? std::string(kWholeFile) : path,
          absl::StrCat("is ", Shown(node), ", not a map of fields",
                       "; write its fields one a line, indented"));
      return;
    }
    if (part_ && node.size() == 0) {
      Add(path,
          "is a map without fields, which changes nothing; name a field, or write null to "
          "take out what the file says");
    }
    std::set<std::string> seen;
    for (const auto& entry : node) {
      const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : Shown(entry.first);
      const std::string field_path = path.empty() ? name : absl::StrCat(path, ".", name);
      const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
      if (field == nullptr) {
        AddUnknown(*message.GetDescriptor(), field_path, name);
      } else if (!IsOfFile(*field)) {
        Add(field_path, "is filled in from what --set gives; remove it");
      } else if (!seen.insert(name).second) {
        Add(field_path, absl::StrCat("is given twice (line ", entry.first.Mark().line + 1,
                                     "); keep one of them"));
      } else {
        ReadField(entry.second, field_path, *field, message);
      }
    }
  }

 private:
  void Add(std::string field, std::string message) {
    faults_.push_back({std::move(field), std::move(message)});
  }

  void AddUnknown(const Descriptor& message, const std::string& path, const std::string& name) {
    const std::string elsewhere = PathOf(*v1::JobSpec::descriptor(), name, "");
    const std::string nearest = NearestField(message, name);
    Add(path, elsewhere.empty()
                  ? absl::StrCat("is not a field; did you mean ", nearest, "?")
                  : absl::StrCat("is not a field here; did you mean ", elsewhere, "?"));
  }

  void ReadField(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                 Message& message) {
    const auto& reflection = *message.GetReflection();
    if (field.is_repeated() || node.IsNull()) reflection.ClearField(&message, &field);
    if (node.IsNull()) return;
    if (field.is_repeated()) {
      ReadList(node, path, field, message);
    } else if (field.message_type() != nullptr) {
      ReadMessage(node, path, *reflection.MutableMessage(&message, &field));
    } else if (!node.IsScalar()) {
      Add(path, absl::StrCat("is ", Shown(node), "; write one value"));
    } else {
      ReadScalar(node, path, field, message);
    }
  }

  // The only lists of a job are lists of messages.
  void ReadList(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                Message& message) {
    if (!node.IsSequence()) {
      Add(path, absl::StrCat("is ", Shown(node), ", not a list; write [{...}]"));
      return;
    }
    for (size_t i = 0; i < node.size(); ++i) {
      ReadMessage(node[i], absl::StrCat(path, "[", i, "]"),
                  *message.GetReflection()->AddMessage(&message, &field));
    }
  }

  void ReadScalar(const YAML::Node& node, const std::string& path, const FieldDescriptor& field,
                  Message& message) {
    const auto& reflection = *message.GetReflection();
    const std::string& text = node.Scalar();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      reflection.SetString(&message, &field, text);
      return;
    }
    if (node.Tag() == kQuotedTag) {
      Add(path, absl::StrCat("is the text ", Quoted(text), "; remove the quotes"));
      return;
    }
    if (!SetNumber(text, field, message)) {
      Add(path, absl::StrCat("is ", Quoted(text), ", not ", Expected(field)));
    }
  }

  static const char* Expected(const FieldDescriptor& field) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
        return "a whole number of at most 19 digits; write it without units, point or exponent";
      case FieldDescriptor::CPPTYPE_UINT64:
        return "a whole number from 0 to 18446744073709551615; write it without units";
      case FieldDescriptor::CPPTYPE_BOOL: return "true or false; write one of them";
      default: return "a number; write it like 0.1 or 6.0e-4";
    }
  }

  static bool SetNumber(const std::string& text, const FieldDescriptor& field, Message& message) {
    const auto& reflection = *message.GetReflection();
    if (text.empty() || absl::ascii_isspace(static_cast<unsigned char>(text.front()))) return false;
    int64_t whole = 0;
    uint64_t natural = 0;
    double real = 0;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
        if (!absl::SimpleAtoi(text, &whole)) return false;
        reflection.SetInt64(&message, &field, whole);
        return true;
      case FieldDescriptor::CPPTYPE_UINT64:
        if (!absl::SimpleAtoi(text, &natural)) return false;
        reflection.SetUInt64(&message, &field, natural);
        return true;
      case FieldDescriptor::CPPTYPE_BOOL:
        if (text != "true" && text != "false") return false;
        reflection.SetBool(&message, &field, text == "true");
        return true;
      default:
        if (!absl::SimpleAtod(text, &real)) return false;
        reflection.SetDouble(&message, &field, real);
        return true;
    }
  }

  std::vector<Fault>& faults_;
  const bool part_;
};

// One YAML document; what is wrong with the text itself becomes a fault of `field`.
YAML::Node LoadDocument(absl::string_view text, const std::string& field,
                        std::vector<Fault>& faults) {
  if (text.size() > kMaxFileBytes) {
    faults.push_back({field, absl::StrCat("has ", text.size(), " bytes, and at most ",
                                          kMaxFileBytes, " are read; is it a job file?")});
    return {};
  }
  if (!IsUtf8(text) || absl::StrContains(text, '\0')) {
    faults.push_back({field, "is not UTF-8 text; save it as UTF-8"});
    return {};
  }
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.size() <= 1) return documents.empty() ? YAML::Node() : documents.front();
    faults.push_back(
        {field, absl::StrCat("holds ", documents.size(), " YAML documents; write one job a file")});
  } catch (const YAML::Exception& error) {
    faults.push_back(
        {field, absl::StrCat("is not YAML: line ", error.mark.line + 1, ", column ",
                             error.mark.column + 1, ": ", error.msg, "; correct the text there")});
  }
  return {};
}

// Notes the fields that `node`, laid over the field `path`, gives: "a.b" and "a.c" for a map at a.
void NoteFields(const YAML::Node& node, const std::string& path, v1::JobSpec& job) {
  if (node.IsMap()) {
    for (const auto& entry : node) {
      NoteFields(entry.second, absl::StrCat(path, ".", entry.first.Scalar()), job);
    }
    return;
  }
  auto& noted = *job.mutable_set_fields();
  if (std::find(noted.begin(), noted.end(), path) == noted.end()) *noted.Add() = path;
}

// Lays one "a.b=c" over `job`. What the file said there no longer counts, its faults neither.
void Override(const std::string& text, v1::JobSpec& job, std::vector<Fault>& faults) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  const std::vector<std::string> names = absl::StrSplit(parts.first, '.');
  const bool empty_name = std::find(names.begin(), names.end(), "") != names.end();
  if (!absl::StrContains(text, '=') || empty_name) {
    faults.push_back({"--set", absl::StrCat(Quoted(text),
                                            " is not FIELD=VALUE; write for example "
                                            "training.steps=50")});
    return;
  }
  faults.erase(
      std::remove_if(faults.begin(), faults.end(),
                     [&](const Fault& fault) { return IsWithin(fault.field, parts.first); }),
      faults.end());
  const size_t faults_before = faults.size();
  const YAML::Node given = LoadDocument(parts.second, std::string(parts.first), faults);
  YAML::Node node = given;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    YAML::Node outer(YAML::NodeType::Map);
    outer.force_insert(*name, node);
    node.reset(outer);  // assignment would change the node within `outer`
  }
  Reader(faults, /*part=*/true).ReadMessage(node, "", job);
  if (faults.size() == faults_before) NoteFields(given, std::string(parts.first), job);
}

}  // namespace

v1::JobSpec ParseJobFile(absl::string_view yaml, const std::vector<std::string>& overrides,
                         std::vector<Fault>& faults) {
  v1::JobSpec job;
  std::vector<Fault> found;
  Reader(found).ReadMessage(LoadDocument(yaml, std::string(kWholeFile), found), "", job);
  for (const std::string& text : overrides) Override(text, job, found);
  faults.insert(faults.end(), found.begin(), found.end());
  return job;
}

}  // namespace esteira

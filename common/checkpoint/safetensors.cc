#include "common/checkpoint/safetensors.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/json_fields.h"

namespace esteira {
namespace {

using nlohmann::json;

constexpr char kMetadata[] = "__metadata__";
constexpr size_t kAlignment = 8;

struct TypeName {
  ElementType type;
  const char* name;
};
constexpr TypeName kTypeNames[] = {{ElementType::kFp32, "F32"},
                                   {ElementType::kBf16, "BF16"},
                                   {ElementType::kInt32, "I32"},
                                   {ElementType::kInt64, "I64"},
                                   {ElementType::kByte, "U8"}};

const char* NameOf(ElementType type) {
  for (const TypeName& known : kTypeNames) {
    if (known.type == type) return known.name;
  }
  return "";
}

absl::StatusOr<ElementType> ParseType(const std::string& name) {
  for (const TypeName& known : kTypeNames) {
    if (name == known.name) return known.type;
  }
  return absl::DataLossError(absl::StrCat("type \"", name, "\" is not known"));
}

absl::StatusOr<std::vector<int64_t>> ParseSizes(const json& entry, const char* field) {
  const auto found = entry.find(field);
  if (found == entry.end() || !found->is_array()) {
    return absl::DataLossError(absl::StrCat("field \"", field, "\" is not a list"));
  }
  std::vector<int64_t> sizes;
  for (const json& size : *found) {
    if (!size.is_number_unsigned() ||
        size.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return absl::DataLossError(
          absl::StrCat("field \"", field, "\" holds something other than sizes"));
    }
    sizes.push_back(size.get<int64_t>());
  }
  return sizes;
}

absl::StatusOr<int64_t> BytesOfShape(ElementType type, const std::vector<int64_t>& shape) {
  int64_t bytes = BytesOf(type);
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes))
      return absl::DataLossError("its shape overflows");
  }
  return bytes;
}

absl::StatusOr<TensorEntry> ParseTensor(const std::string& name, const json& entry) {
  if (!entry.is_object()) return absl::DataLossError("its entry is not an object");
  TensorEntry tensor;
  tensor.name = name;
  ASSIGN_OR_RETURN(const std::string type, StringField(entry, "dtype"));
  ASSIGN_OR_RETURN(tensor.type, ParseType(type));
  ASSIGN_OR_RETURN(tensor.shape, ParseSizes(entry, "shape"));
  ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, ParseSizes(entry, "data_offsets"));
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    return absl::DataLossError("its offsets are no range");
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  ASSIGN_OR_RETURN(const int64_t bytes, BytesOfShape(tensor.type, tensor.shape));
  if (bytes != tensor.end - tensor.begin) {
    return absl::DataLossError(
        absl::StrCat("its shape takes ", bytes, " bytes, its offsets ", tensor.end - tensor.begin));
  }
  return tensor;
}

// Tensors, by begin, must follow each other and end where the file ends.
absl::Status CheckCover(const std::vector<TensorEntry>& tensors, int64_t data_bytes) {
  int64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin != end) {
      return absl::DataLossError(absl::StrCat("tensor ", tensor.name, " begins at byte ",
                                              tensor.begin, ", the one before it ends at ", end));
    }
    end = tensor.end;
  }
  if (end != data_bytes) {
    return absl::DataLossError(
        absl::StrCat("the tensors take ", end, " bytes, the file has ", data_bytes, " for them"));
  }
  return absl::OkStatus();
}

}  // namespace

void PlaceTensors(std::vector<TensorEntry>& tensors) {
  int64_t offset = 0;
  for (TensorEntry& tensor : tensors) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    tensor.begin = offset;
    offset += elements * BytesOf(tensor.type);
    tensor.end = offset;
  }
}

std::string SafetensorsHeader(const std::vector<TensorEntry>& placed) {
  json object = {{kMetadata, {{"format", "pt"}}}};
  for (const TensorEntry& tensor : placed) {
    object[tensor.name] = {{"dtype", NameOf(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = object.dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  std::string prefix;
  for (size_t byte = 0; byte < kSafetensorsPrefixBytes; ++byte) {
    prefix += static_cast<char>(text.size() >> (8 * byte) & 0xff);
  }
  return prefix + text;
}

absl::StatusOr<int64_t> SafetensorsHeaderBytes(absl::string_view prefix, int64_t file_bytes) {
  if (static_cast<int64_t>(prefix.size()) < kSafetensorsPrefixBytes) {
    return absl::DataLossError("the file is too short for a header");
  }
  uint64_t size = 0;
  for (size_t byte = 0; byte < kSafetensorsPrefixBytes; ++byte) {
    size |= uint64_t{static_cast<unsigned char>(prefix[byte])} << (8 * byte);
  }
  const auto limit = static_cast<uint64_t>(
      std::min(kMaxSafetensorsHeaderBytes, file_bytes - kSafetensorsPrefixBytes));
  if (size > limit) {
    return absl::DataLossError(absl::StrCat(
        "a header of ", size, " bytes does not fit into a file of ", file_bytes, " bytes"));
  }
  return static_cast<int64_t>(size);
}

absl::StatusOr<SafetensorsFile> ParseSafetensorsHeader(absl::string_view header,
                                                       int64_t file_bytes) {
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(header, "the header"));
  SafetensorsFile file;
  file.data_offset = kSafetensorsPrefixBytes + static_cast<int64_t>(header.size());
  for (const auto& [name, entry] : object.items()) {
    if (name == kMetadata) continue;
    absl::StatusOr<TensorEntry> tensor = ParseTensor(name, entry);
    if (!tensor.ok()) {
      return absl::DataLossError(absl::StrCat("tensor ", name, ": ", tensor.status().message()));
    }
    file.tensors.push_back(*std::move(tensor));
  }
  std::sort(file.tensors.begin(), file.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  RETURN_IF_ERROR(CheckCover(file.tensors, file_bytes - file.data_offset));
  return file;
}

}  // namespace esteira

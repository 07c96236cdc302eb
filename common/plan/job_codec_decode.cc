#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/plan/job_codec.h"
#include "common/plan/job_codec_faults.h"
#include "common/plan/plan_codec.h"
#include "esteira/v1/job.pb.h"

namespace esteira {
namespace {

// Sizes above these are mistakes, and below them no product of sizes overflows 64 bits.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxSequence = int64_t{1} << 20;
constexpr int64_t kMaxBatch = int64_t{1} << 24;
constexpr int64_t kMaxSteps = int64_t{1} << 36;
constexpr int64_t kMaxLookahead = 64;
constexpr double kMaxParameters = 17592186044416.0;     // 2^44
constexpr double kMaxTensorElements = 1099511627776.0;  // 2^40
constexpr int64_t kNumBytes = 256;                      // of the tokenizer `bytes`
constexpr size_t kMaxNameLength = 63;
// A lighter source would never be read: the sampler counts weights to 32 bits.
constexpr double kLeastShare = 1e-9;
constexpr double kLargestFloat = std::numeric_limits<float>::max();
constexpr double kSmallestFloat = std::numeric_limits<float>::min();

// What a choice may be. `reserved` names exist, but not in this build.
struct Choice {
  std::vector<absl::string_view> built_in;
  std::vector<absl::string_view> reserved;
};

// Whether `path`, "training.steps", leads to a field below `message`.
bool HasField(const google::protobuf::Descriptor& message, const std::string& path) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(path, absl::MaxSplits('.', 1));
  const google::protobuf::FieldDescriptor* field = message.FindFieldByName(parts.first);
  if (field == nullptr) return false;
  if (parts.second.empty()) return !absl::EndsWith(path, ".");
  return field->message_type() != nullptr && !field->is_repeated() &&
         HasField(*field->message_type(), parts.second);
}

// Reads the parts of a job one after the other and notes every fault.
class Decoder {
 public:
  Decoder(const v1::JobSpec& proto, std::vector<Fault>& faults) : proto_(proto), faults_(faults) {}

  JobSpec Run() {
    Name();
    Model();
    Data();
    Training();
    Optimizer();
    Schedule();
    Evaluation();
    Parallelism();
    Checkpoint();
    Check();
    SetFields();
    return std::move(job_);
  }

 private:
  // A value that could not be read was left out: that it is missing then is no news.
  void Add(absl::string_view field, std::string message) {
    const bool known = std::any_of(faults_.begin(), faults_.end(), [&](const Fault& fault) {
      return fault.field == kWholeFile || IsWithin(field, fault.field);
    });
    if (known) return;
    faults_.push_back({std::string(field), std::move(message)});
  }

  // A whole number that must be there.
  int64_t Size(absl::string_view field, int64_t value, int64_t max) {
    if (value == 0) {
      Add(field, absl::StrCat("is missing or 0; give a number from 1 to ", max));
      return 0;
    }
    return Whole(field, value, 1, max);
  }

  int64_t Whole(absl::string_view field, int64_t value, int64_t min, int64_t max) {
    if (value >= min && value <= max) return value;
    Add(field, absl::StrCat("is ", value, "; give a number from ", min, " to ", max));
    return min;
  }

  // A number in [min, max]; `open_min` leaves min itself out, `open_max` max.
  double Real(absl::string_view field, double value, double min, double max, bool open_min = false,
              bool open_max = false) {
    const bool above = open_min ? value > min : value >= min;
    const bool below = open_max ? value < max : value <= max;
    if (above && below) return value;  // neither holds for NaN
    Add(field, absl::StrCat("is ", value, "; give a number ", open_min ? "above " : "from ", min,
                            open_max ? " and below " : " to ", max));
    return min;
  }

  // `value`, or `fallback` when it is left out or not built in.
  std::string Choose(absl::string_view field, const std::string& value, const Choice& choice,
                     absl::string_view fallback) {
    if (value.empty()) return std::string(fallback);
    const auto has = [&](const std::vector<absl::string_view>& names) {
      return std::find(names.begin(), names.end(), value) != names.end();
    };
    if (has(choice.built_in)) return value;
    Add(field, absl::StrCat("\"", absl::CHexEscape(value), "\" ",
                            has(choice.reserved) ? "is not built in" : "does not exist", "; use ",
                            absl::StrJoin(choice.built_in, " or ")));
    return std::string(fallback);
  }

  void Name();
  void Model();
  void ModelWidths();
  void ModelRatios();
  void Data();
  std::vector<DataSource> Sources(const std::string& field,
                                  const google::protobuf::RepeatedPtrField<v1::DataSource>& list);
  void Path(const std::string& field, const std::string& path);
  void NoNul(const std::string& field, const std::string& path);
  void Training();
  void BatchMemory(int64_t micro_batch_size);
  void Optimizer();
  void Schedule();
  void Evaluation();
  void Parallelism();
  void GradientTrafficOfReplicas();
  void PipelineSchedule();
  std::optional<int> Window(absl::string_view field, const std::string& value);
  void Checkpoint();
  void Check();
  void SetFields();

  const v1::JobSpec& proto_;
  std::vector<Fault>& faults_;
  JobSpec job_;
};

void Decoder::Name() {
  job_.name = proto_.name();
  if (job_.name.empty()) {
    Add("name", "is missing; give the job a name, such as gpt2-small");
    return;
  }
  const auto allowed = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  };
  const bool starts_well = absl::ascii_isalnum(static_cast<unsigned char>(job_.name.front()));
  if (!starts_well || job_.name.size() > kMaxNameLength ||
      !std::all_of(job_.name.begin(), job_.name.end(), allowed)) {
    Add("name",
        absl::StrCat("\"", absl::CHexEscape(job_.name.substr(0, kMaxNameLength)),
                     "\" cannot be a folder's name; use at most ", kMaxNameLength,
                     " letters, digits, '.', '_' or '-', and begin with a letter or digit"));
  }
}

void Decoder::Model() {
  const v1::ModelSpec& model = proto_.model();
  if (!model.from().empty()) {
    Add("model.from", absl::StrCat("\"", absl::CHexEscape(model.from()),
                                   "\": reading a Hugging Face folder is not built in; write the "
                                   "sizes of its config.json into model"));
    return;
  }
  if (model.architecture().empty()) {
    Add("model.architecture", "is missing; use gpt2 or llama");
  } else {
    const Choice choice{{"gpt2", "llama"}, {"mistral", "qwen2", "qwen3", "gemma", "phi3"}};
    const std::string name = Choose("model.architecture", model.architecture(), choice, "gpt2");
    job_.model.architecture = name == "gpt2" ? Architecture::kGpt2 : Architecture::kLlama;
  }
  ModelWidths();
  const bool known = job_.model.hidden_size > 0 && job_.model.num_heads > 0 &&
                     job_.model.num_kv_heads > 0 && job_.model.num_layers > 0;
  if (known) ModelRatios();
}

void Decoder::ModelWidths() {
  const v1::ModelSpec& model = proto_.model();
  const bool gpt2 = job_.model.architecture == Architecture::kGpt2;
  ModelSpec& spec = job_.model;
  spec.num_layers = Size("model.num_layers", model.num_layers(), kMaxLayers);
  spec.hidden_size = Size("model.hidden_size", model.hidden_size(), kMaxWidth);
  spec.num_heads = Size("model.num_heads", model.num_heads(), kMaxWidth);
  spec.num_kv_heads = spec.num_heads;
  if (model.has_num_kv_heads()) {
    spec.num_kv_heads = Size("model.num_kv_heads", model.num_kv_heads(), kMaxWidth);
  }
  spec.intermediate_size = std::min(4 * spec.hidden_size, kMaxWidth);
  if (model.has_intermediate_size()) {
    spec.intermediate_size = Size("model.intermediate_size", model.intermediate_size(), kMaxWidth);
  }
  spec.vocab_size = Size("model.vocab_size", model.vocab_size(), kMaxVocabulary);
  spec.max_sequence_length =
      Size("model.max_sequence_length", model.max_sequence_length(), kMaxSequence);
  spec.tie_embeddings = model.has_tie_embeddings() ? model.tie_embeddings() : gpt2;
  if (model.has_norm_epsilon()) {
    spec.norm_epsilon = Real("model.norm_epsilon", model.norm_epsilon(), kSmallestFloat, 1);
  }
  if (!model.has_rope_theta()) return;
  spec.rope_theta = Real("model.rope_theta", model.rope_theta(), 1, 1e12);
  if (gpt2) Add("model.rope_theta", "is given, but gpt2 has no rotary positions; remove it");
}

// What the sizes of a model must have to do with each other.
void Decoder::ModelRatios() {
  const ModelSpec& model = job_.model;
  if (model.hidden_size % model.num_heads != 0) {
    Add("model.num_heads",
        absl::StrCat("is ", model.num_heads, ", which does not divide hidden_size ",
                     model.hidden_size, "; use a divisor of it"));
  } else if (model.architecture == Architecture::kLlama && model.head_size() % 2 != 0) {
    Add("model.num_heads",
        absl::StrCat("is ", model.num_heads, ", so that a head has ", model.head_size(),
                     " elements; rotary positions need an even number of them"));
  }
  if (model.num_heads % model.num_kv_heads != 0) {
    Add("model.num_kv_heads",
        absl::StrCat("is ", model.num_kv_heads, ", which does not divide num_heads ",
                     model.num_heads, "; use a divisor of it"));
  } else if (model.architecture == Architecture::kGpt2 && model.num_kv_heads != model.num_heads) {
    Add("model.num_kv_heads",
        absl::StrCat("is ", model.num_kv_heads, ", but gpt2 has as many as num_heads (",
                     model.num_heads, "); remove it"));
  }
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const double block = 4 * number(model.hidden_size) * number(model.hidden_size) +
                       3 * number(model.hidden_size) * number(model.intermediate_size);
  const double parameters =
      number(model.num_layers) * block + 2 * number(model.vocab_size) * number(model.hidden_size);
  if (parameters > kMaxParameters) {
    Add("model", absl::StrCat("has about ", parameters, " parameters; at most ", kMaxParameters,
                              " can be addressed: use smaller sizes"));
  }
}

void Decoder::Data() {
  const v1::DataSpec& data = proto_.data();
  job_.train = Sources("data.train", data.train());
  job_.validation = Sources("data.validation", data.validation());
  if (job_.train.empty()) Add("data.train", "is empty; give at least one source: [{path: ...}]");
  job_.tokenizer = data.tokenizer().empty() ? "bytes" : data.tokenizer();
  if (job_.tokenizer != "bytes") {
    Add("data.tokenizer", absl::StrCat("\"", absl::CHexEscape(job_.tokenizer),
                                       "\": tokenizer files are not built in; use bytes, or give "
                                       "tokens as .bin files"));
  }
  const auto is_text = [](const DataSource& source) {
    return !absl::EndsWith(source.path, ".bin");
  };
  const bool has_text = std::any_of(job_.train.begin(), job_.train.end(), is_text) ||
                        std::any_of(job_.validation.begin(), job_.validation.end(), is_text);
  const int64_t vocabulary = job_.model.vocab_size;
  if (has_text && vocabulary > 0 && vocabulary < kNumBytes) {
    Add("model.vocab_size", absl::StrCat("is ", vocabulary, ", but the tokenizer bytes has ",
                                         kNumBytes, " tokens; use at least ", kNumBytes));
  }
  job_.sequence_length = Size("data.sequence_length", data.sequence_length(), kMaxSequence);
  const int64_t longest = job_.model.max_sequence_length;
  if (longest > 0 && job_.sequence_length > longest) {
    Add("data.sequence_length",
        absl::StrCat("is ", job_.sequence_length, ", more than model.max_sequence_length ", longest,
                     "; use at most ", longest));
  }
}

std::vector<DataSource> Decoder::Sources(
    const std::string& field, const google::protobuf::RepeatedPtrField<v1::DataSource>& list) {
  std::vector<DataSource> sources;
  double total = 0;
  for (const v1::DataSource& proto : list) {
    const std::string place = absl::StrCat(field, "[", sources.size(), "]");
    DataSource source;
    source.path = proto.path();
    Path(place + ".path", source.path);
    if (proto.has_weight()) {
      source.weight = Real(place + ".weight", proto.weight(), 0, 1e12, /*open_min=*/true);
    }
    total += source.weight;
    sources.push_back(std::move(source));
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].weight <= 0 || sources[i].weight >= kLeastShare * total) continue;
    Add(absl::StrCat(field, "[", i, "].weight"),
        absl::StrCat("is ", sources[i].weight, ", less than ", kLeastShare, " of all (", total,
                     "); raise it or remove the source"));
  }
  return sources;
}

void Decoder::Path(const std::string& field, const std::string& path) {
  if (path.empty()) Add(field, "is missing; give the path of a file");
  NoNul(field, path);
  if (absl::EndsWith(path, ".idx")) {
    Add(field, absl::StrCat("\"", absl::CHexEscape(path),
                            "\": .idx files are not built in; use text, tokens in a .bin file, or "
                            "samples in a .jsonl file"));
  }
}

// The system would end the path there and take another file.
void Decoder::NoNul(const std::string& field, const std::string& path) {
  if (!absl::StrContains(path, '\0')) return;
  Add(field, absl::StrCat("\"", absl::CHexEscape(path), "\" has a NUL byte; remove it"));
}

void Decoder::Training() {
  const v1::TrainingSpec& training = proto_.training();
  job_.seed = training.seed();
  job_.steps = Size("training.steps", training.steps(), kMaxSteps);
  job_.global_batch_size =
      Size("training.global_batch_size", training.global_batch_size(), kMaxBatch);
  const int64_t micro =
      Whole("training.micro_batch_size", training.micro_batch_size(), 0, kMaxBatch);
  if (job_.global_batch_size > 0 && micro > job_.global_batch_size) {
    Add("training.micro_batch_size", absl::StrCat("is ", micro, ", more than global_batch_size ",
                                                  job_.global_batch_size, "; use at most that"));
  }
  if (micro > 0) job_.layout.micro_batch_size = micro;
  BatchMemory(micro);
  const Choice precisions{{"bf16", "fp32"}, {"fp16", "fp8"}};
  const std::string precision =
      Choose("training.precision", training.precision(), precisions, "bf16");
  job_.precision = precision == "fp32" ? Precision::kFp32 : Precision::kBf16;
  const std::string numerics =
      Choose("training.numerics", training.numerics(), {{"fast", "exact"}, {}}, "fast");
  job_.numerics = numerics == "exact" ? Numerics::kExact : Numerics::kFast;
  if (training.has_dropout()) {
    job_.dropout = Real("training.dropout", training.dropout(), 0, 1, /*open_min=*/false,
                        /*open_max=*/true);
  }
  if (training.has_gradient_clip_norm()) {
    job_.gradient_clip_norm =
        Real("training.gradient_clip_norm", training.gradient_clip_norm(), 0, kLargestFloat);
  }
  job_.layout.recompute =
      Choose("training.recompute", training.recompute(), {{"none", "full", "auto"}, {}}, "none");
}

// The largest tensor of a micro-batch must have a size that fits.
void Decoder::BatchMemory(int64_t micro_batch_size) {
  const int64_t widest =
      std::max({job_.model.vocab_size, 3 * job_.model.hidden_size, job_.model.intermediate_size});
  const double elements = static_cast<double>(std::max<int64_t>(micro_batch_size, 1)) *
                          static_cast<double>(job_.sequence_length) * static_cast<double>(widest);
  if (elements > kMaxTensorElements) {
    Add("training.micro_batch_size",
        absl::StrCat("gives a tensor of ", elements, " elements (micro-batch x sequence x ", widest,
                     "); at most ", kMaxTensorElements, " can be addressed: use a smaller one"));
  }
}

void Decoder::Optimizer() {
  const v1::AdamWSpec& adamw = proto_.training().optimizer().adamw();
  const std::string field = "training.optimizer.adamw.";
  AdamWOptions& options = job_.adamw;
  if (adamw.has_learning_rate()) {
    options.learning_rate = Real(field + "learning_rate", adamw.learning_rate(), 0, kLargestFloat);
  }
  if (adamw.has_beta1()) options.beta1 = Real(field + "beta1", adamw.beta1(), 0, 1, false, true);
  if (adamw.has_beta2()) options.beta2 = Real(field + "beta2", adamw.beta2(), 0, 1, false, true);
  if (adamw.has_epsilon()) {
    options.epsilon = Real(field + "epsilon", adamw.epsilon(), kSmallestFloat, kLargestFloat);
  }
  if (adamw.has_weight_decay()) {
    options.weight_decay = Real(field + "weight_decay", adamw.weight_decay(), 0, kLargestFloat);
  }
}

void Decoder::Schedule() {
  const v1::ScheduleSpec& schedule = proto_.training().schedule();
  job_.schedule.warmup_steps =
      Whole("training.schedule.warmup_steps", schedule.warmup_steps(), 0, kMaxSteps);
  const Choice decays{{"cosine", "linear", "constant", "wsd"}, {}};
  const std::string decay = Choose("training.schedule.decay", schedule.decay(), decays, "cosine");
  job_.schedule.decay = decay == "cosine"     ? Decay::kCosine
                        : decay == "linear"   ? Decay::kLinear
                        : decay == "constant" ? Decay::kConstant
                                              : Decay::kWsd;
  if (schedule.has_final_ratio()) {
    job_.schedule.final_ratio = Real("training.schedule.final_ratio", schedule.final_ratio(), 0, 1);
  }
  const bool wsd = job_.schedule.decay == Decay::kWsd;
  if (wsd) job_.schedule.decay_steps = std::max<int64_t>(job_.steps / 10, 1);
  if (!schedule.has_decay_steps()) return;
  if (!wsd) {
    Add("training.schedule.decay_steps",
        absl::StrCat("is given, but decay ", decay, " has no use for it; remove it or use wsd"));
    return;
  }
  job_.schedule.decay_steps = Whole("training.schedule.decay_steps", schedule.decay_steps(), 0,
                                    std::max<int64_t>(job_.steps, 1));
}

void Decoder::Evaluation() {
  const v1::TrainingSpec& training = proto_.training();
  job_.validate_every_steps =
      Whole("training.validate_every_steps", training.validate_every_steps(), 0, kMaxSteps);
  if (job_.validate_every_steps > 0 && job_.validation.empty()) {
    Add("training.validate_every_steps",
        absl::StrCat("is ", job_.validate_every_steps,
                     ", but data.validation is empty; give a source there or leave this out"));
  }
  if (training.has_validation_batches()) {
    job_.validation_batches =
        Size("training.validation_batches", training.validation_batches(), kMaxBatch);
  }
  const std::string on_non_finite = Choose("training.on_non_finite", training.on_non_finite(),
                                           {{"skip", "stop", "roll_back"}, {}}, "skip");
  job_.on_non_finite = on_non_finite == "skip"   ? OnNonFinite::kSkip
                       : on_non_finite == "stop" ? OnNonFinite::kStop
                                                 : OnNonFinite::kRollBack;
  if (training.has_spike_factor() && training.spike_factor() != 0) {
    job_.spike_factor = Real("training.spike_factor", training.spike_factor(), 1, kLargestFloat,
                             /*open_min=*/true);
  }
  job_.parameter_hash_every_steps = Whole("training.parameter_hash_every_steps",
                                          training.parameter_hash_every_steps(), 0, kMaxSteps);
  job_.write_sample_ids = training.write_sample_ids();
}

void Decoder::Parallelism() {
  const v1::ParallelismSpec& parallelism = proto_.parallelism();
  LayoutRequest& layout = job_.layout;
  if (parallelism.has_pipeline_stages()) {
    layout.stages = static_cast<int>(
        Whole("parallelism.pipeline_stages", parallelism.pipeline_stages(), 1, kMaxRanks));
  }
  if (parallelism.has_chunks_per_stage()) {
    layout.chunks_per_stage = static_cast<int>(
        Whole("parallelism.chunks_per_stage", parallelism.chunks_per_stage(), 1, kMaxRanks));
  }
  if (parallelism.has_replicas()) {
    layout.replicas =
        static_cast<int>(Whole("parallelism.replicas", parallelism.replicas(), 1, kMaxRanks));
  }
  if (parallelism.has_zero()) {
    layout.zero = static_cast<int>(Whole("parallelism.zero", parallelism.zero(), 0, 3));
  }
  PipelineSchedule();
  layout.reduce_every = Window("parallelism.reduce_every", parallelism.reduce_every());
  layout.gather_for = Window("parallelism.gather_for", parallelism.gather_for());
  if (parallelism.has_lookahead()) {
    layout.lookahead =
        static_cast<int>(Whole("parallelism.lookahead", parallelism.lookahead(), 0, kMaxLookahead));
  }
  GradientTrafficOfReplicas();
}

void Decoder::GradientTrafficOfReplicas() {
  constexpr char kField[] = "parallelism.gradient_traffic";
  const std::string traffic =
      Choose(kField, proto_.parallelism().gradient_traffic(), {{"full", "bf16"}, {}}, "full");
  if (traffic != "bf16") return;
  job_.gradient_traffic = GradientTraffic::kBf16;
  if (job_.numerics == Numerics::kExact) {
    Add(kField,
        "is bf16, which rounds what training.numerics exact promises to add up exactly; use full, "
        "or training.numerics fast");
  }
}

void Decoder::PipelineSchedule() {
  const v1::ParallelismSpec& parallelism = proto_.parallelism();
  const std::string& name = parallelism.pipeline_schedule();
  constexpr char kField[] = "parallelism.pipeline_schedule";
  const std::string& csv = parallelism.pipeline_schedule_csv();
  if (absl::StartsWith(name, "csv:")) {
    if (csv.empty()) {
      Add(kField,
          "names a file whose text is not in parallelism.pipeline_schedule_csv; the file is "
          "empty, or was not read by the client");
    }
    job_.layout.schedule = name;
    job_.layout.schedule_csv = csv;
    return;
  }
  if (!csv.empty()) {
    Add("parallelism.pipeline_schedule_csv",
        "is given, but pipeline_schedule is not csv:PATH; leave one of them out");
  }
  const std::string schedule = Choose(kField, name,
                                      {{"1f1b", "gpipe", "interleaved", "zb_h1", "zb_h2", "zb_v",
                                        "v_half", "v_min", "dualpipe_v", "auto"},
                                       {}},
                                      "");
  if (!schedule.empty()) job_.layout.schedule = schedule;
}

std::optional<int> Decoder::Window(absl::string_view field, const std::string& value) {
  if (value.empty()) return std::nullopt;
  if (value == "all") return kAll;
  int window = 0;
  if (absl::SimpleAtoi(value, &window) && window >= 1) return window;
  Add(field, absl::StrCat("is \"", absl::CHexEscape(value),
                          "\"; give a number of micro-batches from 1, or all"));
  return std::nullopt;
}

void Decoder::Checkpoint() {
  const v1::CheckpointSpec& checkpoint = proto_.checkpoint();
  job_.checkpoint_directory = checkpoint.directory();
  job_.checkpoint_every_steps =
      Whole("checkpoint.every_steps", checkpoint.every_steps(), 0, kMaxSteps);
  job_.checkpoints_to_keep = Whole("checkpoint.keep", checkpoint.keep(), 0, kMaxSteps);
  NoNul("checkpoint.directory", checkpoint.directory());
  job_.resume_if_found =
      Choose("checkpoint.resume", checkpoint.resume(), {{"auto", "never"}, {}}, "never") == "auto";
  const bool asks = checkpoint.every_steps() > 0 || checkpoint.keep() > 0 || job_.resume_if_found;
  if (asks && checkpoint.directory().empty()) {
    Add("checkpoint.directory",
        "is missing, but checkpoint.every_steps, keep or resume: auto is given; name a folder");
  }
  const bool can_go_back = checkpoint.every_steps() > 0 && job_.resume_if_found;
  if (job_.on_non_finite == OnNonFinite::kRollBack && !can_go_back) {
    Add("training.on_non_finite",
        "is roll_back, but there is nothing to go back to; give checkpoint.directory, "
        "checkpoint.every_steps and checkpoint.resume: auto, or use skip or stop");
  }
}

void Decoder::Check() {
  const std::string check = Choose("check", proto_.check(), {{"auto", "off", "full"}, {}}, "auto");
  job_.check = check == "auto"  ? LaunchCheck::kAuto
               : check == "off" ? LaunchCheck::kOff
                                : LaunchCheck::kFull;
}

void Decoder::SetFields() {
  job_.set_fields = {proto_.set_fields().begin(), proto_.set_fields().end()};
  for (const std::string& path : job_.set_fields) {
    if (HasField(*v1::JobSpec::descriptor(), path)) continue;
    Add("set_fields", absl::StrCat("\"", absl::CHexEscape(path),
                                   "\" is not a field of a job; give paths such as "
                                   "training.optimizer.adamw.learning_rate"));
  }
}

}  // namespace

JobSpec DecodeJob(const v1::JobSpec& proto, std::vector<Fault>& faults) {
  return Decoder(proto, faults).Run();
}

}  // namespace esteira

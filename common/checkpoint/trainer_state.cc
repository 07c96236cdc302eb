#include "common/checkpoint/trainer_state.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/json_fields.h"

namespace esteira {
namespace {

using nlohmann::json;

struct DecayName {
  Decay decay;
  const char* name;
};
constexpr DecayName kDecayNames[] = {{Decay::kCosine, "cosine"},
                                     {Decay::kLinear, "linear"},
                                     {Decay::kConstant, "constant"},
                                     {Decay::kWsd, "wsd"}};

const char* NameOf(Decay decay) {
  for (const DecayName& known : kDecayNames) {
    if (known.decay == decay) return known.name;
  }
  return "";
}

absl::StatusOr<json> ObjectField(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_object()) {
    return absl::DataLossError(absl::StrCat("field \"", name, "\" is not an object"));
  }
  return *found;
}

absl::StatusOr<AdamWOptions> ParseAdamW(const json& object) {
  AdamWOptions adamw;
  ASSIGN_OR_RETURN(adamw.learning_rate, NumberField(object, "learning_rate"));
  ASSIGN_OR_RETURN(adamw.beta1, NumberField(object, "beta1"));
  ASSIGN_OR_RETURN(adamw.beta2, NumberField(object, "beta2"));
  ASSIGN_OR_RETURN(adamw.epsilon, NumberField(object, "epsilon"));
  ASSIGN_OR_RETURN(adamw.weight_decay, NumberField(object, "weight_decay"));
  return adamw;
}

absl::StatusOr<LearningRateSchedule> ParseSchedule(const json& object) {
  LearningRateSchedule schedule;
  ASSIGN_OR_RETURN(schedule.warmup_steps, IntField(object, "warmup_steps"));
  ASSIGN_OR_RETURN(const std::string decay, StringField(object, "decay"));
  ASSIGN_OR_RETURN(schedule.final_ratio, NumberField(object, "final_ratio"));
  ASSIGN_OR_RETURN(schedule.decay_steps, IntField(object, "decay_steps"));
  for (const DecayName& known : kDecayNames) {
    if (decay != known.name) continue;
    schedule.decay = known.decay;
    return schedule;
  }
  return absl::DataLossError(absl::StrCat("decay \"", decay, "\" is not known"));
}

absl::StatusOr<std::vector<DataIdentity>> ParseTrain(const json& object) {
  const auto found = object.find("train");
  if (found == object.end() || !found->is_array()) {
    return absl::DataLossError("field \"train\" is not a list");
  }
  std::vector<DataIdentity> train;
  for (const json& entry : *found) {
    if (!entry.is_object()) return absl::DataLossError("field \"train\" holds no objects");
    DataIdentity identity;
    ASSIGN_OR_RETURN(identity.path, StringField(entry, "path"));
    ASSIGN_OR_RETURN(identity.weight, NumberField(entry, "weight"));
    ASSIGN_OR_RETURN(identity.bytes, IntField(entry, "bytes"));
    ASSIGN_OR_RETURN(identity.sha256, StringField(entry, "sample_sha256"));
    train.push_back(std::move(identity));
  }
  return train;
}

absl::StatusOr<TrainerState> ParseFields(absl::string_view text) {
  ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, "it"));
  TrainerState state;
  ASSIGN_OR_RETURN(state.step, IntField(object, "step"));
  ASSIGN_OR_RETURN(state.updates, IntField(object, "optimizer_updates"));
  ASSIGN_OR_RETURN(state.next_sample, IntField(object, "next_sample"));
  ASSIGN_OR_RETURN(state.seed, UnsignedField(object, "seed"));
  ASSIGN_OR_RETURN(state.schedule_steps, IntField(object, "steps"));
  ASSIGN_OR_RETURN(state.global_batch_size, IntField(object, "global_batch_size"));
  ASSIGN_OR_RETURN(state.sequence_length, IntField(object, "sequence_length"));
  ASSIGN_OR_RETURN(state.micro_batch_size, IntField(object, "micro_batch_size"));
  ASSIGN_OR_RETURN(state.numerics, StringField(object, "numerics"));
  ASSIGN_OR_RETURN(state.gradient_traffic, StringField(object, "gradient_traffic"));
  ASSIGN_OR_RETURN(state.dropout, NumberField(object, "dropout"));
  ASSIGN_OR_RETURN(state.gradient_clip_norm, NumberField(object, "gradient_clip_norm"));
  ASSIGN_OR_RETURN(const json adamw, ObjectField(object, "adamw"));
  ASSIGN_OR_RETURN(state.adamw, ParseAdamW(adamw));
  ASSIGN_OR_RETURN(const json schedule, ObjectField(object, "schedule"));
  ASSIGN_OR_RETURN(state.schedule, ParseSchedule(schedule));
  ASSIGN_OR_RETURN(state.tokenizer, StringField(object, "tokenizer"));
  ASSIGN_OR_RETURN(state.train, ParseTrain(object));
  return state;
}

}  // namespace

TrainerState MakeTrainerState(const JobSpec& job, int64_t micro_batch_size,
                              std::vector<DataIdentity> train, int64_t step, int64_t updates) {
  TrainerState state;
  state.step = step;
  state.updates = updates;
  state.next_sample = step * job.global_batch_size;
  state.seed = job.seed;
  state.schedule_steps = job.schedule_steps.value_or(job.steps);
  state.global_batch_size = job.global_batch_size;
  state.sequence_length = job.sequence_length;
  state.micro_batch_size = micro_batch_size;
  state.numerics = NumericsName(job.numerics);
  state.gradient_traffic = GradientTrafficName(job.gradient_traffic);
  state.dropout = job.dropout;
  state.gradient_clip_norm = job.gradient_clip_norm;
  state.adamw = job.adamw;
  state.schedule = job.schedule;
  state.tokenizer = job.tokenizer;
  state.train = std::move(train);
  return state;
}

std::string PrintTrainerState(const TrainerState& state) {
  const json adamw = {{"learning_rate", state.adamw.learning_rate},
                      {"beta1", state.adamw.beta1},
                      {"beta2", state.adamw.beta2},
                      {"epsilon", state.adamw.epsilon},
                      {"weight_decay", state.adamw.weight_decay}};
  const json schedule = {{"warmup_steps", state.schedule.warmup_steps},
                         {"decay", NameOf(state.schedule.decay)},
                         {"final_ratio", state.schedule.final_ratio},
                         {"decay_steps", state.schedule.decay_steps}};
  json train = json::array();
  for (const DataIdentity& data : state.train) {
    train.push_back({{"path", data.path},
                     {"weight", data.weight},
                     {"bytes", data.bytes},
                     {"sample_sha256", data.sha256}});
  }
  return PrintJson({{"step", state.step},
                    {"optimizer_updates", state.updates},
                    {"next_sample", state.next_sample},
                    {"seed", state.seed},
                    {"steps", state.schedule_steps},
                    {"global_batch_size", state.global_batch_size},
                    {"sequence_length", state.sequence_length},
                    {"micro_batch_size", state.micro_batch_size},
                    {"numerics", state.numerics},
                    {"gradient_traffic", state.gradient_traffic},
                    {"dropout", state.dropout},
                    {"gradient_clip_norm", state.gradient_clip_norm},
                    {"adamw", adamw},
                    {"schedule", schedule},
                    {"tokenizer", state.tokenizer},
                    {"train", train}});
}

absl::StatusOr<TrainerState> ParseTrainerState(absl::string_view text) {
  absl::StatusOr<TrainerState> state = ParseFields(text);
  if (!state.ok()) {
    return absl::DataLossError(absl::StrCat(kTrainerStateName, ": ", state.status().message()));
  }
  return state;
}

}  // namespace esteira

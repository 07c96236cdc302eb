#include "common/plan/plan_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/gzip_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "esteira/v1/plan.pb.h"

namespace esteira {
namespace {

void EncodeInstruction(const Instruction& instruction, v1::InstructionProto& proto) {
  proto.set_op(static_cast<int32_t>(instruction.op));
  proto.set_unit(instruction.unit + 1);
  proto.set_micro_batch(instruction.micro_batch + 1);
  proto.set_peer(instruction.peer + 1);
  proto.set_x(instruction.x + 1);
  proto.set_y(instruction.y + 1);
  proto.set_dx(instruction.dx + 1);
  proto.set_dy(instruction.dy + 1);
  proto.set_saved(instruction.saved + 1);
  proto.set_slot(instruction.slot + 1);
  proto.set_joined(instruction.joined);
}

void EncodeProgram(const Program& program, v1::ProgramProto& proto) {
  proto.set_stage(program.stage);
  for (int unit : program.units) proto.add_units(unit);
  for (const Instruction& instruction : program.instructions) {
    EncodeInstruction(instruction, *proto.add_instructions());
  }
  for (const std::vector<SlotClass>& classes : program.slots) {
    v1::SlotsProto& of_kind = *proto.add_slots();
    for (const SlotClass& slots : classes) {
      v1::SlotClassProto& out = *of_kind.add_classes();
      out.set_bytes(slots.bytes);
      out.set_count(slots.count);
    }
  }
}

void EncodeModel(const ModelSpec& model, v1::ResolvedModelProto& proto) {
  proto.set_architecture(ArchitectureName(model.architecture));
  proto.set_num_layers(model.num_layers);
  proto.set_hidden_size(model.hidden_size);
  proto.set_num_heads(model.num_heads);
  proto.set_num_kv_heads(model.num_kv_heads);
  proto.set_intermediate_size(model.intermediate_size);
  proto.set_vocab_size(model.vocab_size);
  proto.set_max_sequence_length(model.max_sequence_length);
  proto.set_tie_embeddings(model.tie_embeddings);
  proto.set_norm_epsilon(model.norm_epsilon);
  proto.set_rope_theta(model.rope_theta);
}

// A program says the same of one micro-batch after the other. As differences from the instruction
// before, most of it repeats to the byte. Unsigned: damaged bytes may hold anything.
int32_t Plus(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
int32_t Minus(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
}
void ToDifferences(v1::ProgramProto& program) {
  for (int i = program.instructions_size() - 1; i > 0; --i) {
    v1::InstructionProto& here = *program.mutable_instructions(i);
    const v1::InstructionProto& before = program.instructions(i - 1);
    here.set_unit(Minus(here.unit(), before.unit()));
    here.set_micro_batch(Minus(here.micro_batch(), before.micro_batch()));
  }
}
void FromDifferences(v1::ProgramProto& program) {
  for (int i = 1; i < program.instructions_size(); ++i) {
    v1::InstructionProto& here = *program.mutable_instructions(i);
    const v1::InstructionProto& before = program.instructions(i - 1);
    here.set_unit(Plus(here.unit(), before.unit()));
    here.set_micro_batch(Plus(here.micro_batch(), before.micro_batch()));
  }
}

absl::Status OutOfRange(absl::string_view field, int64_t value, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("plan: ", field, " is ", value, ", expected ", expected));
}

absl::Status CheckAtLeast(absl::string_view field, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return OutOfRange(field, value, absl::StrCat("at least ", least));
}

absl::StatusOr<Instruction> DecodeInstruction(const v1::InstructionProto& proto) {
  Instruction instruction;
  if (proto.op() < 0 || proto.op() >= kNumOps) {
    return OutOfRange("instruction.op", proto.op(), absl::StrCat("0 to ", kNumOps - 1));
  }
  instruction.op = static_cast<Op>(proto.op());
  struct Field {
    const char* name;
    int32_t stored;
    int32_t& value;
  };
  const Field fields[] = {
      {"instruction.unit", proto.unit(), instruction.unit},
      {"instruction.micro_batch", proto.micro_batch(), instruction.micro_batch},
      {"instruction.peer", proto.peer(), instruction.peer},
      {"instruction.x", proto.x(), instruction.x},
      {"instruction.y", proto.y(), instruction.y},
      {"instruction.dx", proto.dx(), instruction.dx},
      {"instruction.dy", proto.dy(), instruction.dy},
      {"instruction.saved", proto.saved(), instruction.saved},
      {"instruction.slot", proto.slot(), instruction.slot},
  };
  for (const Field& field : fields) {
    RETURN_IF_ERROR(CheckAtLeast(field.name, field.stored, 0));
    field.value = field.stored - 1;
  }
  instruction.joined = proto.joined();
  return instruction;
}

absl::StatusOr<Program> DecodeProgram(const v1::ProgramProto& proto) {
  Program program;
  RETURN_IF_ERROR(CheckAtLeast("program.stage", proto.stage(), 0));
  program.stage = proto.stage();
  for (int32_t unit : proto.units()) {
    RETURN_IF_ERROR(CheckAtLeast("program.units", unit, 0));
    program.units.push_back(unit);
  }
  program.instructions.reserve(static_cast<size_t>(proto.instructions_size()));
  for (const v1::InstructionProto& instruction : proto.instructions()) {
    ASSIGN_OR_RETURN(program.instructions.emplace_back(), DecodeInstruction(instruction));
  }
  if (proto.slots_size() != kNumSlotKinds) {
    return OutOfRange("number of program.slots", proto.slots_size(), absl::StrCat(kNumSlotKinds));
  }
  for (int kind = 0; kind < kNumSlotKinds; ++kind) {
    for (const v1::SlotClassProto& slots : proto.slots(kind).classes()) {
      RETURN_IF_ERROR(CheckAtLeast("slots.bytes", slots.bytes(), 0));
      RETURN_IF_ERROR(CheckAtLeast("slots.count", slots.count(), 0));
      program.slots[static_cast<size_t>(kind)].push_back({slots.bytes(), slots.count()});
    }
  }
  return program;
}

absl::StatusOr<ModelSpec> DecodeModel(const v1::ResolvedModelProto& proto) {
  ModelSpec model;
  ASSIGN_OR_RETURN(model.architecture, ParseArchitecture(proto.architecture()));
  const std::pair<const char*, int64_t> sizes[] = {
      {"model.num_layers", proto.num_layers()},
      {"model.hidden_size", proto.hidden_size()},
      {"model.num_heads", proto.num_heads()},
      {"model.num_kv_heads", proto.num_kv_heads()},
      {"model.intermediate_size", proto.intermediate_size()},
      {"model.vocab_size", proto.vocab_size()},
      {"model.max_sequence_length", proto.max_sequence_length()},
  };
  for (const auto& [name, size] : sizes) RETURN_IF_ERROR(CheckAtLeast(name, size, 1));
  if (!(proto.norm_epsilon() > 0) || !(proto.rope_theta() > 0)) {
    return absl::InvalidArgumentError("plan: model.norm_epsilon and rope_theta must be positive");
  }
  model.num_layers = proto.num_layers();
  model.hidden_size = proto.hidden_size();
  model.num_heads = proto.num_heads();
  model.num_kv_heads = proto.num_kv_heads();
  model.intermediate_size = proto.intermediate_size();
  model.vocab_size = proto.vocab_size();
  model.max_sequence_length = proto.max_sequence_length();
  model.tie_embeddings = proto.tie_embeddings();
  model.norm_epsilon = proto.norm_epsilon();
  model.rope_theta = proto.rope_theta();
  return model;
}

absl::Status CheckLayout(const v1::LayoutProto& proto) {
  const std::pair<const char*, int64_t> counts[] = {
      {"layout.stages", proto.stages()},
      {"layout.chunks_per_stage", proto.chunks_per_stage()},
      {"layout.replicas", proto.replicas()},
      {"layout.global_batch_size", proto.global_batch_size()},
      {"layout.micro_batch_size", proto.micro_batch_size()},
      {"layout.sequence_length", proto.sequence_length()},
  };
  for (const auto& [name, count] : counts) RETURN_IF_ERROR(CheckAtLeast(name, count, 1));
  if (proto.zero() < 0 || proto.zero() > 3)
    return OutOfRange("layout.zero", proto.zero(), "0 to 3");
  for (const v1::StagePolicyProto& policy : proto.policies()) {
    RETURN_IF_ERROR(CheckAtLeast("layout.reduce_every", policy.reduce_every(), kAll));
    RETURN_IF_ERROR(CheckAtLeast("layout.gather_for", policy.gather_for(), kAll));
    RETURN_IF_ERROR(CheckAtLeast("layout.lookahead", policy.lookahead(), 0));
  }
  return absl::OkStatus();
}

}  // namespace

void EncodeLayout(const Layout& layout, v1::LayoutProto& proto) {
  proto.set_stages(layout.stages);
  proto.set_chunks_per_stage(layout.chunks_per_stage);
  proto.set_replicas(layout.replicas);
  proto.set_zero(layout.zero);
  proto.set_schedule(layout.schedule);
  for (const StagePolicy& policy : layout.policies) {
    v1::StagePolicyProto& encoded = *proto.add_policies();
    encoded.set_reduce_every(policy.reduce_every);
    encoded.set_gather_for(policy.gather_for);
    encoded.set_recompute(policy.recompute);
    encoded.set_lookahead(policy.lookahead);
  }
  for (int boundary : layout.boundaries) proto.add_boundaries(boundary);
  proto.set_global_batch_size(layout.global_batch_size);
  proto.set_micro_batch_size(layout.micro_batch_size);
  proto.set_sequence_length(layout.sequence_length);
  proto.set_exact_numerics(layout.numerics == Numerics::kExact);
  proto.set_bf16_gradient_traffic(layout.gradient_traffic == GradientTraffic::kBf16);
}

Layout DecodeLayout(const v1::LayoutProto& proto) {
  Layout layout;
  layout.stages = proto.stages();
  layout.chunks_per_stage = proto.chunks_per_stage();
  layout.replicas = proto.replicas();
  layout.zero = proto.zero();
  layout.schedule = proto.schedule();
  layout.policies.clear();
  for (const v1::StagePolicyProto& policy : proto.policies()) {
    layout.policies.push_back(
        {policy.reduce_every(), policy.gather_for(), policy.recompute(), policy.lookahead()});
  }
  layout.boundaries.assign(proto.boundaries().begin(), proto.boundaries().end());
  layout.global_batch_size = proto.global_batch_size();
  layout.micro_batch_size = proto.micro_batch_size();
  layout.sequence_length = proto.sequence_length();
  layout.numerics = proto.exact_numerics() ? Numerics::kExact : Numerics::kFast;
  layout.gradient_traffic =
      proto.bf16_gradient_traffic() ? GradientTraffic::kBf16 : GradientTraffic::kFull;
  return layout;
}

void EncodeMemory(const MemoryUse& memory, v1::MemoryProto& proto) {
  proto.set_parameters_bytes(memory.parameters);
  proto.set_gradients_bytes(memory.gradients);
  proto.set_optimizer_bytes(memory.optimizer);
  proto.set_slots_bytes(memory.slots);
  proto.set_workspace_bytes(memory.workspace);
}

MemoryUse DecodeMemory(const v1::MemoryProto& proto) {
  return {.parameters = proto.parameters_bytes(),
          .gradients = proto.gradients_bytes(),
          .optimizer = proto.optimizer_bytes(),
          .slots = proto.slots_bytes(),
          .workspace = proto.workspace_bytes()};
}

void EncodePrediction(const Prediction& prediction, v1::PredictionProto& proto) {
  proto.set_step_seconds(prediction.step_seconds);
  proto.set_bubble_ratio(prediction.bubble_ratio);
  proto.set_exposed_communication_ratio(prediction.exposed_communication_ratio);
  for (const double seconds : prediction.op_seconds) proto.add_op_seconds(seconds);
  for (const MemoryUse& memory : prediction.memory) EncodeMemory(memory, *proto.add_memory());
}

Prediction DecodePrediction(const v1::PredictionProto& proto) {
  Prediction prediction;
  prediction.step_seconds = proto.step_seconds();
  prediction.bubble_ratio = proto.bubble_ratio();
  prediction.exposed_communication_ratio = proto.exposed_communication_ratio();
  const int ops = std::min(kNumOps, proto.op_seconds_size());
  std::copy_n(proto.op_seconds().begin(), ops, prediction.op_seconds.begin());
  for (const v1::MemoryProto& memory : proto.memory()) {
    prediction.memory.push_back(DecodeMemory(memory));
  }
  return prediction;
}

v1::PlanProto EncodePlan(const Plan& plan) {
  v1::PlanProto proto;
  EncodeModel(plan.model, *proto.mutable_model());
  EncodeLayout(plan.layout, *proto.mutable_layout());
  proto.set_precision(PrecisionName(plan.precision));
  for (const int worker : plan.worker_of_rank) proto.add_worker_of_rank(worker);
  for (const Program& program : plan.train) EncodeProgram(program, *proto.add_train());
  for (const Program& program : plan.evaluate) EncodeProgram(program, *proto.add_evaluate());
  EncodePrediction(plan.prediction, *proto.mutable_prediction());
  proto.set_digest(PlanDigest(plan));
  return proto;
}

absl::StatusOr<Plan> DecodePlan(const v1::PlanProto& proto) {
  Plan plan;
  ASSIGN_OR_RETURN(plan.model, DecodeModel(proto.model()));
  RETURN_IF_ERROR(CheckLayout(proto.layout()));
  plan.layout = DecodeLayout(proto.layout());
  ASSIGN_OR_RETURN(plan.precision, ParsePrecision(proto.precision()));
  plan.worker_of_rank.assign(proto.worker_of_rank().begin(), proto.worker_of_rank().end());
  for (const v1::ProgramProto& program : proto.train()) {
    ASSIGN_OR_RETURN(plan.train.emplace_back(), DecodeProgram(program));
  }
  for (const v1::ProgramProto& program : proto.evaluate()) {
    ASSIGN_OR_RETURN(plan.evaluate.emplace_back(), DecodeProgram(program));
  }
  plan.prediction = DecodePrediction(proto.prediction());
  if (proto.digest() != PlanDigest(plan)) {
    return absl::InvalidArgumentError(
        "plan: the digest does not match; sender and receiver must be of one version");
  }
  return plan;
}

std::string PackPlan(const v1::PlanProto& plan) {
  v1::PlanProto proto = plan;
  for (auto* programs : {proto.mutable_train(), proto.mutable_evaluate()}) {
    for (v1::ProgramProto& program : *programs) ToDifferences(program);
  }
  std::string bytes;
  google::protobuf::io::StringOutputStream out(&bytes);
  google::protobuf::io::GzipOutputStream packed(&out);
  CHECK(proto.SerializeToZeroCopyStream(&packed) && packed.Close());  // memory is all it takes
  return bytes;
}

absl::StatusOr<v1::PlanProto> UnpackPlan(const std::string& bytes) {
  google::protobuf::io::ArrayInputStream in(bytes.data(), static_cast<int>(bytes.size()));
  google::protobuf::io::GzipInputStream unpacked(&in);
  google::protobuf::io::CodedInputStream limited(&unpacked);
  limited.SetTotalBytesLimit(kMaxUnpackedPlanBytes);
  v1::PlanProto proto;
  if (!proto.ParseFromCodedStream(&limited) || !limited.ConsumedEntireMessage()) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan: its ", bytes.size(), " bytes are damaged, or unpack to more than ",
                     kMaxUnpackedPlanBytes, "; sender and receiver must be of one version"));
  }
  for (auto* programs : {proto.mutable_train(), proto.mutable_evaluate()}) {
    for (v1::ProgramProto& program : *programs) FromDifferences(program);
  }
  return proto;
}

}  // namespace esteira

#include "worker/engine/handlers.h"

#include <algorithm>
#include <utility>

#include "worker/optimizer/learning_rate.h"

namespace esteira {
namespace {

std::span<std::byte> Bytes(const Tensor& tensor) {
  return {tensor.data, static_cast<size_t>(tensor.bytes())};
}

Range Intersection(const Range& a, const Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

template <typename T>
std::span<T> Elements(const Tensor& tensor) {
  return {tensor.as<T>(), static_cast<size_t>(tensor.elements())};
}

// The gradient of one micro-batch of one unit may be as large as this, so that the sum of all
// micro-batches of the step, and of both ends of a tied table, cannot wrap in any order. A function
// of what no layout changes.
float LargestContribution(const Layout& layout) {
  constexpr int64_t kEnds = 2;
  const int64_t micro_batches =
      (layout.global_batch_size + layout.micro_batch_size - 1) / layout.micro_batch_size;
  return kLargestFixedPoint / static_cast<float>(kEnds * micro_batches);
}

// Any memory of a multiple of four bytes, as what Zero takes.
template <typename T>
Tensor Words(std::span<T> values) {
  return {reinterpret_cast<std::byte*>(values.data()), ElementType::kFp32,
          static_cast<int64_t>(values.size_bytes() / sizeof(float)), 1};
}

// Sums to which several windows are added start a step at zero; a window that is the sums
// themselves is begun by CLEAR.
std::vector<int> UnitsWithWindows(const Program& program) {
  std::vector<int> units;
  for (const Instruction& i : program.instructions) {
    if (i.op == Op::kReduce && i.slot >= 0) units.push_back(i.unit);
  }
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  return units;
}

}  // namespace

Handlers::Handlers(const Machinery& machinery)
    : machinery_(machinery),
      compute_(machinery.units.size()),
      type_(ComputeType(machinery.plan.precision)),
      sum_type_(SumType(machinery.plan.layout.numerics)),
      exact_(machinery.plan.layout.numerics == Numerics::kExact),
      rounded_(machinery.plan.layout.gradient_traffic == GradientTraffic::kBf16 &&
               machinery.plan.layout.replicas > 1),
      gathered_(machinery.units.size()),
      windows_(machinery.units.size()),
      agreed_(machinery.device.NewEvent()) {
  const Plan& plan = machinery_.plan;
  const int stage = plan.layout.StageOfRank(machinery_.options.rank);
  for (int unit : plan.train[static_cast<size_t>(stage)].units) {
    if (unit >= NumComputeUnits(plan.model)) continue;
    compute_[static_cast<size_t>(unit)] =
        machinery_.options.make_unit(plan.model, Spec(unit), plan.precision);
  }
}

void Handlers::Begin(const Program& program, const RunSettings& settings) {
  program_ = &program;
  settings_ = settings;
  ledger_.emplace(program);
  op_bytes_.fill(0);
  total_ = Contribution();
  agreement_ = Agreement();
  unit_squares_.assign(machinery_.units.size(), 0);
  const RankMemory& memory = machinery_.memory;
  Stream& compute = machinery_.queues[Queue::kCompute];
  machinery_.kernels.Zero(Words(memory.losses()), compute);
  machinery_.kernels.Zero(Words(memory.flags()), compute);
  machinery_.kernels.Zero(Words(memory.refusals()), compute);
  if (exact_ && !settings.evaluate) {
    machinery_.kernels.Zero(Words(memory.gradient()), compute);
  }
  Stream& shard = machinery_.queues[Queue::kShard];
  for (int unit : UnitsWithWindows(program)) {
    machinery_.kernels.Zero(memory.unit(unit)->sums.All(), shard);
  }
}

void Handlers::Issue(size_t index) {
  const Instruction& i = program_->instructions[index];
  ledger_->Enter(i, settings_.evaluate);
  using Direction = Transfer::Direction;
  const auto x = [&] { return Activations(SlotKind::kActivation, i.x, i.micro_batch); };
  const auto y = [&] { return Activations(SlotKind::kActivation, i.y, i.micro_batch); };
  const auto dx = [&] { return Activations(SlotKind::kGradient, i.dx, i.micro_batch); };
  const auto dy = [&] { return Activations(SlotKind::kGradient, i.dy, i.micro_batch); };
  switch (i.op) {
    case Op::kForward: return Forward(i, index);
    case Op::kBackward: return Backward(i, index);
    case Op::kBackwardInput: return BackwardInput(i, index);
    case Op::kBackwardWeight: return BackwardWeight(i, index);
    case Op::kRecompute: return Recompute(i);
    case Op::kSendAct: return Move(i, Direction::kSend, y(), Op::kSendAct, i.unit);
    case Op::kRecvAct: return Move(i, Direction::kReceive, x(), Op::kSendAct, i.unit - 1);
    case Op::kSendGrad: return Move(i, Direction::kSend, dx(), Op::kSendGrad, i.unit - 1);
    case Op::kRecvGrad: return Move(i, Direction::kReceive, dy(), Op::kSendGrad, i.unit);
    case Op::kGather: return Gather(i);
    case Op::kRelease: return Release(i);
    case Op::kClear: return Clear(i);
    case Op::kReduce: return Reduce(i);
    case Op::kTieGradient: return TieGradient(i);
    case Op::kNorm: return Norm();
    case Op::kStep: return Step(i);
    case Op::kTieParameter: return TieParameter(i);
  }
}

// --- compute ---

MicroBatch Handlers::Samples(int32_t micro_batch) const {
  const Layout& layout = machinery_.plan.layout;
  return layout.MicroBatchOf(layout.ReplicaOfRank(machinery_.options.rank), micro_batch);
}

int Handlers::Peer(int stage) const {
  const Layout& layout = machinery_.plan.layout;
  return layout.RankOf(stage, layout.ReplicaOfRank(machinery_.options.rank));
}

Tensor Handlers::Activations(SlotKind kind, int32_t slot, int32_t micro_batch) const {
  if (slot < 0) return {};
  return {machinery_.memory.Slot(kind, slot), type_,
          Samples(micro_batch).num_samples * machinery_.plan.layout.sequence_length,
          machinery_.plan.model.hidden_size};
}

std::byte* Handlers::Parameters(int unit) const {
  const UnitMemory* memory = machinery_.memory.unit(unit);
  if (memory == nullptr) return nullptr;
  // A head end beside its owner has no parameters of its own.
  if (memory->parameters.data() == nullptr) return Parameters(Spec(unit).owner);
  std::byte* gathered = gathered_[static_cast<size_t>(unit)];
  return gathered != nullptr ? gathered : memory->parameters.data();
}

UnitArguments Handlers::Arguments(const Instruction& i) const {
  const RankMemory& memory = machinery_.memory;
  const Layout& layout = machinery_.plan.layout;
  UnitArguments arguments;
  const MicroBatch samples = Samples(i.micro_batch);
  arguments.batch = samples.num_samples;
  arguments.sequence = layout.sequence_length;
  arguments.evaluate = settings_.evaluate;
  float* scratch = memory.gradient().data();
  for (int used : Spec(i.unit).uses) {
    const bool tied = used != i.unit;
    (tied ? arguments.tied_parameters : arguments.parameters) = Parameters(used);
    const Window& window = windows_[static_cast<size_t>(used)];
    float*& gradients = tied ? arguments.tied_gradients : arguments.gradients;
    gradients = exact_ ? scratch : window.sums.as<float>();
    (tied ? arguments.tied_gradient_sum : arguments.gradient_sum) = window.next;
    const UnitMemory* unit = memory.unit(used);
    if (unit != nullptr) scratch += unit->whole.size();
  }
  const int64_t rows = arguments.batch * arguments.sequence;
  const auto ids = [rows](std::span<int32_t> values) {
    return Tensor{reinterpret_cast<std::byte*>(values.data()), ElementType::kInt32, rows, 1};
  };
  if (Spec(i.unit).kind == UnitKind::kEmbedding) {
    arguments.tokens = ids(memory.Tokens(i.micro_batch));
  }
  if (Spec(i.unit).kind == UnitKind::kHead) {
    arguments.targets = ids(memory.Targets(i.micro_batch));
    arguments.loss = &memory.losses()[static_cast<size_t>(i.micro_batch)];
  }
  arguments.dropout = settings_.dropout;
  arguments.dropout.site = DropoutSite(i.unit);
  arguments.dropout.first_sample += samples.first_sample;
  arguments.x = Activations(SlotKind::kActivation, i.x, i.micro_batch);
  arguments.y = Activations(SlotKind::kActivation, i.y, i.micro_batch);
  arguments.dy = Activations(SlotKind::kGradient, i.dy, i.micro_batch);
  arguments.dx = Activations(SlotKind::kGradient, i.dx, i.micro_batch);
  if (i.saved >= 0) arguments.saved = memory.Slot(SlotKind::kSaved, i.saved);
  arguments.workspace = memory.workspace();
  return arguments;
}

void Handlers::CheckFinite(Tensor tensor, size_t index) {
  if (!machinery_.options.check_finite_each_op || settings_.evaluate) return;
  if (tensor.data == nullptr) return;
  machinery_.kernels.FindNonFinite(tensor, &machinery_.memory.flags()[index],
                                   machinery_.queues[Queue::kCompute]);
}

void Handlers::Forward(const Instruction& i, size_t index) {
  const UnitArguments arguments = Arguments(i);
  compute_[static_cast<size_t>(i.unit)]->Forward(arguments, machinery_.kernels, StreamOf(i.op));
  CheckFinite(arguments.y, index);
}

void Handlers::Backward(const Instruction& i, size_t index) {
  BackwardInput(i, index);
  BackwardWeight(i, index);
}

void Handlers::BackwardInput(const Instruction& i, size_t index) {
  const UnitArguments arguments = Arguments(i);
  compute_[static_cast<size_t>(i.unit)]->BackwardInput(arguments, machinery_.kernels,
                                                       StreamOf(i.op));
  CheckFinite(arguments.dx, index);
}

void Handlers::BackwardWeight(const Instruction& i, size_t index) {
  const UnitArguments arguments = Arguments(i);
  compute_[static_cast<size_t>(i.unit)]->BackwardWeight(arguments, machinery_.kernels,
                                                        StreamOf(i.op));
  if (arguments.batch == 0) return;
  for (int used : Spec(i.unit).uses) {
    windows_[static_cast<size_t>(used)].next = GradientSum::kContinues;
  }
  if (exact_) AddToWindows(i, arguments, index);
}

void Handlers::AddToWindows(const Instruction& i, const UnitArguments& arguments, size_t index) {
  const float largest = LargestContribution(machinery_.plan.layout);
  int32_t* refused = &machinery_.memory.refusals()[index];
  for (int used : Spec(i.unit).uses) {
    const Tensor window = windows_[static_cast<size_t>(used)].sums;
    if (window.data == nullptr) continue;  // no parameters
    float* gradients = used != i.unit ? arguments.tied_gradients : arguments.gradients;
    const Tensor part = {reinterpret_cast<std::byte*>(gradients), ElementType::kFp32, window.rows,
                         1};
    machinery_.kernels.AddFixedPoint(part, largest, window, refused, StreamOf(i.op));
  }
}

void Handlers::Recompute(const Instruction& i) {
  UnitArguments arguments = Arguments(i);
  arguments.y = {};
  arguments.loss = nullptr;
  compute_[static_cast<size_t>(i.unit)]->Forward(arguments, machinery_.kernels, StreamOf(i.op));
}

// --- point to point ---

// `boundary`: the unit before the cut that the message crosses.
void Handlers::Move(const Instruction& i, Transfer::Direction direction, Tensor tensor, Op kind,
                    int boundary) {
  BytesOfOp(i.op) += tensor.bytes();
  const Tag tag = {static_cast<uint32_t>(kind), static_cast<uint32_t>(boundary),
                   static_cast<uint32_t>(i.micro_batch)};
  Exchange(machinery_.transport, {{direction, Peer(i.peer), tag, Bytes(tensor)}},
           machinery_.options.operation_timeout, StreamOf(i.op));
}

// --- sharding ---

void Handlers::Gather(const Instruction& i) {
  const UnitMemory& unit = *machinery_.memory.unit(i.unit);
  Stream& stream = StreamOf(i.op);
  Tensor whole = {unit.parameters.data(), type_, unit.whole.size(), 1};
  if (i.slot >= 0) {
    whole.data = machinery_.memory.Slot(SlotKind::kParameters, i.slot);
    gathered_[static_cast<size_t>(i.unit)] = whole.data;
    const Tensor own = {whole.data + unit.own.begin * BytesOf(type_), type_, unit.own.size(), 1};
    machinery_.kernels.Convert(unit.parameters.All(), own, stream);
  }
  BytesOfOp(i.op) += (unit.whole.size() - unit.own.size()) * BytesOf(type_);
  gathers_.push_back(Bytes(whole));
  if (!i.joined) machinery_.stage.AllGatherEach(std::exchange(gathers_, {}), stream);
}

void Handlers::Release(const Instruction& i) { gathered_[static_cast<size_t>(i.unit)] = nullptr; }

void Handlers::Clear(const Instruction& i) {
  const UnitMemory& unit = *machinery_.memory.unit(i.unit);
  Tensor window = unit.sums.All();
  if (i.slot >= 0) {
    window = {machinery_.memory.Slot(SlotKind::kWindow, i.slot), sum_type_, unit.whole.size(), 1};
  }
  Window& open = windows_[static_cast<size_t>(i.unit)];
  if (exact_) {
    open = {window, GradientSum::kContinues};
    machinery_.kernels.Zero(window, StreamOf(i.op));
  } else {
    open = {window, GradientSum::kBegins};
    ClearGaps(Spec(i.unit), window, StreamOf(i.op));
  }
}

void Handlers::ClearGaps(const UnitSpec& unit, Tensor window, Stream& stream) {
  int64_t end = 0;  // of the parameter before
  const auto clear = [&](int64_t begin) {
    if (begin == end) return;
    machinery_.kernels.Zero({window.data + end * BytesOf(window.type), window.type, begin - end, 1},
                            stream);
  };
  for (const ParameterSpec& parameter : unit.parameters) {
    clear(parameter.offset);
    end = parameter.offset + parameter.elements;
  }
  clear(window.elements());
}

void Handlers::Reduce(const Instruction& i) {
  const UnitMemory& unit = *machinery_.memory.unit(i.unit);
  const int64_t others = unit.whole.size() - unit.own.size();
  BytesOfOp(i.op) += others * BytesOf(TrafficType(machinery_.plan.layout));
  if (unit.valid != unit.own) BytesOfOp(i.op) += others * BytesOf(sum_type_);
  const Window window = std::exchange(windows_[static_cast<size_t>(i.unit)], {});
  if (window.next == GradientSum::kBegins) {  // all its micro-batches are empty
    machinery_.kernels.Zero(window.sums, StreamOf(i.op));
  }
  reductions_.push_back({&unit, window.sums, /*in_place=*/i.slot < 0});
  if (i.joined) return;
  const std::vector<Reduction> group = std::exchange(reductions_, {});
  Stream& stream = StreamOf(i.op);
  if (exact_) {
    ScatterSums<int64_t>(group, stream);
  } else if (rounded_) {
    ScatterSumsOfBf16(group, stream);
  } else {
    ScatterSums<float>(group, stream);
  }
  SpreadSums(group, stream);
}

template <typename Element>
void Handlers::ScatterSums(const std::vector<Reduction>& group, Stream& stream) {
  std::vector<std::span<Element>> windows;
  windows.reserve(group.size());
  for (const Reduction& reduction : group) windows.push_back(Elements<Element>(reduction.window));
  machinery_.stage.ReduceScatterEach(std::move(windows), machinery_.memory.reduce_scratch(),
                                     stream);
}

// The scratch holds the rounded windows of the group, then what the reduction needs.
void Handlers::ScatterSumsOfBf16(const std::vector<Reduction>& group, Stream& stream) {
  std::span<std::byte> scratch = machinery_.memory.reduce_scratch();
  std::vector<Bf16Reduction> reductions;
  for (const Reduction& reduction : group) {
    const Tensor rounded = {scratch.data(), ElementType::kBf16, reduction.window.elements(), 1};
    machinery_.kernels.Convert(reduction.window, rounded, stream);
    scratch = scratch.subspan(static_cast<size_t>(rounded.bytes()));
    const Range& own = reduction.unit->own;
    reductions.push_back(
        {Elements<uint16_t>(rounded),
         Elements<float>(reduction.window)
             .subspan(static_cast<size_t>(own.begin), static_cast<size_t>(own.size()))});
  }
  machinery_.stage.ReduceScatterBf16Each(std::move(reductions), scratch, stream);
}

// To every replica that needs all of them, and into the sums of the step.
void Handlers::SpreadSums(const std::vector<Reduction>& group, Stream& stream) {
  std::vector<std::span<std::byte>> whole;
  for (const Reduction& reduction : group) {
    if (reduction.unit->valid != reduction.unit->own) whole.push_back(Bytes(reduction.window));
  }
  if (!whole.empty()) machinery_.stage.AllGatherEach(std::move(whole), stream);
  for (const Reduction& reduction : group) {
    if (reduction.in_place) continue;
    const Range& part = reduction.unit->valid;
    const Tensor valid = {reduction.window.data + part.begin * BytesOf(sum_type_), sum_type_,
                          part.size(), 1};
    machinery_.kernels.Accumulate(valid, reduction.unit->sums.Elements(part), stream);
  }
}

// --- tied tables ---

void Handlers::TieGradient(const Instruction& i) {
  const UnitMemory& end = *machinery_.memory.unit(i.unit);
  const int owner = Spec(i.unit).owner;
  Stream& stream = StreamOf(i.op);
  if (i.peer < 0) {
    machinery_.kernels.Accumulate(end.sums.Elements(end.valid),
                                  machinery_.memory.unit(owner)->sums.Elements(end.valid), stream);
    return;
  }
  BytesOfOp(i.op) += end.valid.size() * BytesOf(sum_type_);
  const auto direction = owner < 0 ? Transfer::Direction::kReceive : Transfer::Direction::kSend;
  uint32_t index = 0;
  for (int64_t begin = end.valid.begin; begin < end.valid.end; begin += kTiePieceElements) {
    const Range range = {begin, std::min(begin + kTiePieceElements, end.valid.end)};
    const Tensor sums = end.sums.Elements(range);
    Tensor piece = sums;
    if (owner < 0) piece.data = machinery_.memory.tie_piece();
    const Tag tag = {static_cast<uint32_t>(i.op), 0, index++};
    Exchange(machinery_.transport, {{direction, Peer(i.peer), tag, Bytes(piece)}},
             machinery_.options.operation_timeout, stream);
    if (owner < 0) machinery_.kernels.Accumulate(piece, sums, stream);
  }
}

void Handlers::TieParameter(const Instruction& i) {
  const Tensor parameters = machinery_.memory.unit(i.unit)->parameters.All();
  BytesOfOp(i.op) += parameters.bytes();
  const auto direction =
      Spec(i.unit).owner < 0 ? Transfer::Direction::kSend : Transfer::Direction::kReceive;
  Exchange(machinery_.transport,
           {{direction, Peer(i.peer), {static_cast<uint32_t>(i.op), 0, 0}, Bytes(parameters)}},
           machinery_.options.operation_timeout, StreamOf(i.op));
}

// --- end of the step ---

void Handlers::Norm() {
  Stream& stream = StreamOf(Op::kNorm);
  if (!settings_.evaluate) AddOwnSquares();
  const std::span<int64_t> words = machinery_.memory.norm_words();
  BytesOfOp(Op::kNorm) += static_cast<int64_t>((words.size() - kNormWords) * sizeof(int64_t));
  stream.Enqueue([this, words] {
    AddFindings();
    const auto own = words.subspan(static_cast<size_t>(machinery_.options.rank) * kNormWords);
    WriteContribution(total_, own.first<kNormWords>());
    return absl::OkStatus();
  });
  machinery_.all.AllGather(std::as_writable_bytes(words), stream);
  stream.Enqueue([this] {
    AddUpContributions();
    return absl::OkStatus();
  });
  stream.Record(*agreed_);
}

Tensor Handlers::Gradient(const UnitMemory& unit, const Range& part, Stream& stream) const {
  const Tensor sums = unit.sums.Elements(part);
  if (!exact_) return sums;
  const std::span<float> room = machinery_.memory.gradient();
  const Tensor gradient = {reinterpret_cast<std::byte*>(room.data()), ElementType::kFp32,
                           part.size(), 1};
  machinery_.kernels.FromFixedPoint(sums, gradient, stream);
  return gradient;
}

void Handlers::AddOwnSquares() {
  Stream& stream = StreamOf(Op::kNorm);
  const std::span<double> blocks = machinery_.memory.blocks();
  for (int index : program_->units) {
    const UnitMemory* unit = machinery_.memory.unit(index);
    if (unit == nullptr || Spec(index).owner >= 0) continue;
    machinery_.kernels.SumSquaresByBlock(Gradient(*unit, unit->own, stream), blocks.data(), stream);
    const auto count = static_cast<size_t>(unit->own.size() / kBlockElements);
    stream.Enqueue([this, index, used = blocks.first(count)] {
      const Instruction reduced = {.op = Op::kReduce, .unit = index};
      unit_squares_[static_cast<size_t>(index)] =
          total_.AddSquares(used, PlaceOf(machinery_.plan, machinery_.options.rank, reduced));
      return absl::OkStatus();
    });
  }
}

// Losses of this rank's micro-batches, what CheckFinite found, and what fixed point refused.
void Handlers::AddFindings() {
  const RankMemory& memory = machinery_.memory;
  const std::span<LossSums> losses = memory.losses();
  for (size_t j = 0; j < losses.size(); ++j) {
    const Instruction head = {.op = Op::kForward,
                              .unit = NumComputeUnits(machinery_.plan.model) - 1,
                              .micro_batch = static_cast<int32_t>(j)};
    total_.AddLoss(losses[j], PlaceOf(machinery_.plan, machinery_.options.rank, head));
  }
  if (settings_.evaluate) return;
  const std::span<int32_t> flags = memory.flags();
  const std::span<int32_t> refusals = memory.refusals();
  for (size_t index = 0; index < flags.size(); ++index) {
    total_.refused += refusals[index];
    if (flags[index] == 0 && refusals[index] == 0) continue;
    total_.non_finite.Consider(
        PlaceOf(machinery_.plan, machinery_.options.rank, program_->instructions[index]));
  }
}

void Handlers::AddUpContributions() {
  const std::span<const int64_t> words = machinery_.memory.norm_words();
  total_ = Contribution();
  for (size_t at = 0; at < words.size(); at += kNormWords) {
    total_.Add(ReadContribution(words.subspan(at).first<kNormWords>()));
  }
  agreement_ = Agree(total_, settings_.largest_norm);
}

void Handlers::Step(const Instruction& i) {
  agreed_->Wait();
  if (!agreement_.update) return;
  AdamWStep step = settings_.adamw;
  step.gradient_scale = ClipFactor(agreement_.gradient_norm, settings_.clip_norm) /
                        static_cast<double>(agreement_.valid_tokens);
  const UnitMemory& unit = *machinery_.memory.unit(i.unit);
  for (const ParameterSpec& parameter : Spec(i.unit).parameters) {
    const Range part = Intersection(unit.master.range(),
                                    {parameter.offset, parameter.offset + parameter.elements});
    if (part.size() == 0) continue;
    step.weight_decay = parameter.decay ? settings_.weight_decay : 0;
    machinery_.kernels.AdamW(step, Gradient(unit, part, StreamOf(i.op)), unit.master.Elements(part),
                             unit.m.Elements(part), unit.v.Elements(part),
                             unit.parameters.Elements(part), StreamOf(i.op));
  }
}

}  // namespace esteira

// How many bytes a unit needs, as pure tables. The planner adds them up before launch; worker/model
// lays its buffers out by the same tables, so that the two cannot disagree.
#pragma once

#include <cstdint>
#include <vector>

#include "common/plan/instruction.h"
#include "common/plan/layout.h"
#include "common/plan/model_spec.h"

namespace esteira {

enum class ElementType : uint8_t { kFp32, kBf16, kInt32, kInt64, kByte };
int64_t BytesOf(ElementType type);
ElementType ComputeType(Precision precision);
ElementType SumType(Numerics numerics);  // of gradient sums and windows
// Of what each replica sends to be added up.
ElementType TrafficType(const Layout& layout);

// One named tensor inside a saved or workspace buffer; tensors follow each other, each aligned to
// 64 bytes.
struct TensorSlice {
  const char* name;
  ElementType type;
  int64_t elements;
  int64_t offset_bytes;
};

struct BufferLayout {
  std::vector<TensorSlice> slices;
  int64_t bytes = 0;
  const TensorSlice& Find(const char* name) const;  // CHECKs that it exists
};

// What one (unit, micro-batch) keeps from F (or R) to the end of its backward pass. `batch`
// sequences.
BufferLayout SavedLayout(const ModelSpec& model, const UnitSpec& unit, int64_t batch,
                         int64_t sequence, Precision precision);
// Scratch that lives within one instruction; one buffer a rank, of the largest unit.
BufferLayout WorkspaceLayout(const ModelSpec& model, const UnitSpec& unit, int64_t batch,
                             int64_t sequence, Precision precision);

// What a slot of `kind` must hold for `unit`: x, y, dx and dy are of one size for all units; of the
// other kinds each unit has its own, and 0 where it has nothing of the kind.
int64_t SlotBytes(const ModelSpec& model, const Layout& layout, Precision precision,
                  const UnitSpec& unit, SlotKind kind);

// Rows of logits that the head forms and scores at once. They never cross a sequence, so the loss
// of a sequence does not depend on its micro-batch, and a forward pass that keeps nothing needs
// room for these rows only.
int64_t HeadRowsAtOnce(int64_t sequence);

// Bytes of worker/kernels' LossSums, for a head that recomputes.
inline constexpr int64_t kLossSumsBytes = 16;

// fp32 scratch of the attention kernels: three [T, D] matrices for each of at most 16 (sequence,
// key-value head) pairs that are worked on at once.
int64_t AttentionWorkspaceElements(int64_t batch, int64_t sequence, int64_t num_kv_heads,
                                   int64_t head_size);

// Scratch of a reduction over `replicas` of a window of `padded_elements`; 0 for one replica.
int64_t ReduceScratchBytes(int64_t padded_elements, int replicas, Numerics numerics);

// Floating point operations of one compute op on `batch` sequences.
double ForwardFlops(const ModelSpec& model, const UnitSpec& unit, int64_t batch, int64_t sequence);
double BackwardInputFlops(const ModelSpec& model, const UnitSpec& unit, int64_t batch,
                          int64_t sequence);
double BackwardWeightFlops(const ModelSpec& model, const UnitSpec& unit, int64_t batch,
                           int64_t sequence);

}  // namespace esteira

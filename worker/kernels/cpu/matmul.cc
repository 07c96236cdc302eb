#include "worker/kernels/cpu/matmul.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "common/base/status_macros.h"
#include "oneapi/dnnl/dnnl_debug.h"
#include "worker/kernels/cpu/parallel.h"

namespace esteira {
namespace {

using dnnl::memory;

// Blocks of the widened product: 1 MiB of A, 2 MiB of B, 512 KiB of C.
constexpr int64_t kBlockM = 256;
constexpr int64_t kBlockN = 512;
constexpr int64_t kBlockK = 1024;

memory::data_type TypeOf(ElementType type) {
  return type == ElementType::kBf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

memory::desc MatrixOf(int64_t rows, int64_t columns, bool transposed, ElementType type) {
  return memory::desc({rows, columns}, TypeOf(type),
                      transposed ? memory::format_tag::ba : memory::format_tag::ab);
}

// oneDNN refuses what the CPU cannot do when the primitive is described.
bool HasBf16(const dnnl::engine& engine) {
  const auto matrix = MatrixOf(16, 16, false, ElementType::kBf16);
  try {
    const dnnl::matmul::primitive_desc described(dnnl::matmul::desc(matrix, matrix, matrix),
                                                 engine);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

std::string Describe(const MatmulShape& s) {
  return absl::StrCat("matrix product [", s.m, ",", s.k, "]", s.a_transposed ? "T" : "", " x [",
                      s.k, ",", s.n, "]", s.b_transposed ? "T" : "",
                      s.type == ElementType::kBf16 ? " of bf16" : " of fp32");
}

absl::Status StatusOfDnnl(const MatmulShape& shape, const char* what) {
  return absl::InternalError(absl::StrCat(Describe(shape), ": oneDNN: ", what));
}

// Copies the block [row, row + rows) x [column, column + columns) of a bf16 matrix, as fp32.
void Widen(const Loops& loops, const Bf16* from, int64_t stride, int64_t row, int64_t column,
           int64_t rows, int64_t columns, float* to) {
  for (int64_t r = 0; r < rows; ++r) {
    loops.bf16.to_fp32(from + (row + r) * stride + column, to + r * columns, columns);
  }
}

}  // namespace

Matmul::Matmul(const Loops& loops, int threads)
    : loops_(loops),
      threads_(threads),
      engine_(dnnl::engine::kind::cpu, 0),
      stream_(engine_),
      native_bf16_(HasBf16(engine_)) {
  if (loops.tiles != nullptr) tiles_.emplace(*loops.tiles, threads);
}

absl::Status Matmul::Run(MatmulShape shape, const MatmulOperands& operands) {
  if (shape.m == 0 || shape.n == 0) return absl::OkStatus();
  const bool in_tiles = shape.type == ElementType::kBf16 && tiles_.has_value();
  // A product that oneDNN assigns may leave a -0 where a sum from zero has 0.
  if (shape.from_zero && (!in_tiles || shape.k == 0)) {
    ParallelElements(threads_, shape.m * shape.n, [&](int64_t begin, int64_t n) {
      std::memset(reinterpret_cast<float*>(operands.c) + begin, 0,
                  static_cast<size_t>(n) * sizeof(float));
    });
    shape.from_zero = false;
  }
  if (shape.k == 0) return absl::OkStatus();
  std::lock_guard lock(mutex_);
  if (in_tiles) return tiles_->Run(shape, operands);
  if (shape.type == ElementType::kBf16 && !native_bf16_) return RunWidened(shape, operands);
  return Execute(shape, operands);
}

absl::StatusOr<Matmul::Primitive*> Matmul::PrimitiveFor(const MatmulShape& shape) {
  auto found = primitives_.find(shape);
  if (found == primitives_.end()) {
    try {
      found = primitives_.emplace(shape, Make(shape)).first;
    } catch (const dnnl::error& error) {
      return StatusOfDnnl(shape, error.what());
    }
  }
  Primitive& primitive = found->second;
  RETURN_IF_ERROR(scratchpad_.Reserve(primitive.scratchpad_bytes));
  return &primitive;
}

Matmul::Primitive Matmul::Make(const MatmulShape& s) const {
  const auto a = MatrixOf(s.m, s.k, s.a_transposed, s.type);
  const auto b = MatrixOf(s.k, s.n, s.b_transposed, s.type);
  const auto bias = MatrixOf(1, s.n, false, s.type);
  const auto c = MatrixOf(s.m, s.n, false, s.out_type);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul::desc description =
      s.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  const dnnl::matmul::primitive_desc primitive(description, attributes, engine_);
  const auto scratchpad = primitive.scratchpad_desc();
  return {.matmul = dnnl::matmul(primitive),
          .a = memory(a, engine_, nullptr),
          .b = memory(b, engine_, nullptr),
          .bias = memory(bias, engine_, nullptr),
          .c = memory(c, engine_, nullptr),
          .scratchpad = memory(scratchpad, engine_, nullptr),
          .scratchpad_bytes = static_cast<int64_t>(scratchpad.get_size())};
}

absl::Status Matmul::Execute(const MatmulShape& shape, const MatmulOperands& operands) {
  ASSIGN_OR_RETURN(Primitive * primitive, PrimitiveFor(shape));
  Primitive& p = *primitive;
  const std::array<dnnl_exec_arg_t, 5> arguments = {{{DNNL_ARG_SRC, p.a.get()},
                                                     {DNNL_ARG_WEIGHTS, p.b.get()},
                                                     {DNNL_ARG_DST, p.c.get()},
                                                     {DNNL_ARG_SCRATCHPAD, p.scratchpad.get()},
                                                     {DNNL_ARG_BIAS, p.bias.get()}}};
  try {
    p.a.set_data_handle(operands.a);
    p.b.set_data_handle(operands.b);
    p.c.set_data_handle(operands.c);
    p.bias.set_data_handle(operands.bias);
    p.scratchpad.set_data_handle(scratchpad_.data());
  } catch (const dnnl::error& error) {
    return StatusOfDnnl(shape, error.what());
  }
  // The C interface: the arguments lie on the stack.
  const int count = shape.bias ? 5 : 4;
  const dnnl_status_t status =
      dnnl_primitive_execute(p.matmul.get(), stream_.get(), count, arguments.data());
  if (status != dnnl_success) return StatusOfDnnl(shape, dnnl_status2str(status));
  return absl::OkStatus();
}

absl::Status Matmul::RunWidened(const MatmulShape& shape, const MatmulOperands& operands) {
  constexpr int64_t kElements = kBlockM * kBlockK + kBlockK * kBlockN + kBlockM * kBlockN + kBlockN;
  RETURN_IF_ERROR(widened_.Reserve(kElements * static_cast<int64_t>(sizeof(float))));
  for (int64_t n = 0; n < shape.n; n += kBlockN) {
    for (int64_t m = 0; m < shape.m; m += kBlockM) {
      RETURN_IF_ERROR(WidenedBlock(shape, operands, m, n));
    }
  }
  return absl::OkStatus();
}

absl::Status Matmul::WidenedBlock(const MatmulShape& shape, const MatmulOperands& operands,
                                  int64_t m, int64_t n) {
  const int64_t rows = std::min(kBlockM, shape.m - m);
  const int64_t columns = std::min(kBlockN, shape.n - n);
  float* const a = reinterpret_cast<float*>(widened_.data());
  float* const b = a + kBlockM * kBlockK;
  float* const c = b + kBlockK * kBlockN;
  float* const bias = c + kBlockM * kBlockN;
  const auto* from_a = reinterpret_cast<const Bf16*>(operands.a);
  const auto* from_b = reinterpret_cast<const Bf16*>(operands.b);
  for (int64_t k = 0; k < shape.k; k += kBlockK) {
    const int64_t depth = std::min(kBlockK, shape.k - k);
    if (shape.a_transposed) {
      Widen(loops_, from_a, shape.m, k, m, depth, rows, a);
    } else {
      Widen(loops_, from_a, shape.k, m, k, rows, depth, a);
    }
    if (shape.b_transposed) {
      Widen(loops_, from_b, shape.k, n, k, columns, depth, b);
    } else {
      Widen(loops_, from_b, shape.n, k, n, depth, columns, b);
    }
    RETURN_IF_ERROR(Execute({.m = rows,
                             .n = columns,
                             .k = depth,
                             .a_transposed = shape.a_transposed,
                             .b_transposed = shape.b_transposed,
                             .accumulate = k > 0},
                            {.a = reinterpret_cast<std::byte*>(a),
                             .b = reinterpret_cast<std::byte*>(b),
                             .c = reinterpret_cast<std::byte*>(c)}));
  }
  if (shape.bias) {
    loops_.bf16.to_fp32(reinterpret_cast<const Bf16*>(operands.bias) + n, bias, columns);
  }
  for (int64_t r = 0; r < rows; ++r) {
    float* const row = c + r * columns;
    if (shape.bias) loops_.fp32.accumulate(bias, row, columns);
    const int64_t at = (m + r) * shape.n + n;
    if (shape.out_type == ElementType::kBf16) {
      loops_.bf16.from_fp32(row, reinterpret_cast<Bf16*>(operands.c) + at, columns);
    } else if (shape.accumulate) {
      loops_.fp32.accumulate(row, reinterpret_cast<float*>(operands.c) + at, columns);
    } else {
      loops_.fp32.from_fp32(row, reinterpret_cast<float*>(operands.c) + at, columns);
    }
  }
  return absl::OkStatus();
}

}  // namespace esteira
